//! Imports of files that other tools wrote. The figures are known. A file that is truncated
//! anywhere is readable to the truncation. A file that is damaged anywhere results in an error or
//! in figures, without panic, and in memory of a few times the file size.

use heaptape_analyzer::import::{self, Imported};
use heaptape_formats::{Ending, Error, Format, sniff};
use std::path::Path;

/// All files are of the same program. It keeps 1,001 bytes, allocates 0 to 99 bytes a hundred
/// times, and reallocates 5,000 bytes to 9,000. The Go program keeps 50 blocks of 1,000 bytes
/// (1,024 with the allocator's padding).
const FILES: [(&str, Format); 5] = [
    ("go-heap.pb", Format::Pprof),
    ("heaptrack.txt", Format::Heaptrack),
    ("valgrind-dhat.json", Format::Dhat),
    ("valgrind-massif.out", Format::Massif),
    ("go-debug1.heap", Format::HeapText),
];

fn golden(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/import").join(name)).unwrap()
}

fn import_complete(name: &str, format: Format) -> Imported {
    let bytes = golden(name);
    assert_eq!(sniff::format(&bytes), Some(format), "{name}");
    let (imported, ending) = import::from_bytes(format, &bytes).unwrap();
    assert_eq!(ending, Ending::Complete, "{name}");
    imported
}

/// Returns the innermost named functions of the stack with the maximum of an amount.
fn names(imported: &Imported, of: fn(&heaptape_formats::tape::SiteSums) -> u64) -> Vec<String> {
    let row = imported.sums.iter().max_by_key(|row| of(row)).unwrap();
    let stack = imported.stacks.stack(row.site).map(|(_, site)| site.named);
    let named = stack.filter_map(|named| imported.stacks.named.get((named as usize).checked_sub(1)?));
    named.map(|named| String::from_utf8_lossy(&named.function).into_owned()).collect()
}

#[test]
fn imported_figures_are_those_of_the_tools() {
    let go = import_complete("go-heap.pb", Format::Pprof);
    assert_eq!(names(&go, |row| row.bytes - row.freed_bytes)[..2], ["main.keeps", "main.main"]);
    assert_eq!(names(&go, |row| row.bytes)[..2], ["main.drops", "main.main"]);
    let live = go.sums.iter().map(|row| row.bytes - row.freed_bytes).max();
    assert!(live >= Some(50 * 1024), "{live:?}");
    assert!(!go.has_peak);

    let dhat = import_complete("valgrind-dhat.json", Format::Dhat);
    assert_eq!((dhat.totals.bytes_allocated, dhat.totals.allocs), (1001 + 5050 + 14000, 103));
    assert_eq!((dhat.totals.live_bytes, dhat.totals.live_blocks, dhat.totals.peak_bytes), (1001, 1, 10001));
    assert_eq!(names(&dhat, |row| row.bytes - row.freed_bytes), ["malloc", "leaf", "middle", "main"]);

    let massif = import_complete("valgrind-massif.out", Format::Massif);
    assert_eq!(massif.totals.peak_bytes, 10001);
    assert_eq!(names(&massif, |row| row.peak_bytes), ["main"]);

    // heaptrack also recorded 72,704 bytes of the C++ library that it loads itself.
    let heaptrack = import_complete("heaptrack.txt", Format::Heaptrack);
    assert_eq!((heaptrack.totals.allocs, heaptrack.totals.live_bytes), (104, 1001));
    assert_eq!(heaptrack.totals.bytes_allocated, 72704 + 1001 + 5050 + 14000);
    assert_eq!(heaptrack.totals.peak_bytes, 72704 + 1001 + 9000);
    assert_eq!(names(&heaptrack, |row| row.bytes - row.freed_bytes)[..3], ["leaf", "middle", "main"]);
    assert_eq!(heaptrack.argv, ["./t"]);
}

/// Blocks and bytes, live and allocated, of text heap profiles, by `jeprof` (jemalloc), `google-pprof`
/// (gperftools) and `go tool pprof -raw` (Go, Java). These round or truncate each sum or sample.
#[test]
fn text_heap_profiles_have_the_sums_of_the_tools() {
    for (name, live, allocated) in [
        ("jemalloc.heap", (32_179, 4_484_095), (32_179, 4_484_095)),
        ("gperftools.heap", (33_333, 4_149_967), (50_002, 6_325_010)),
        ("gperftools-sampled.heap", (41_074, 80_935_305), (41_074, 80_935_305)),
        ("gperftools.growth", (85, 178_257_920), (85, 178_257_920)),
        ("go-debug1.heap", (707, 766_372), (707, 766_372)),
        ("java.heap", (67_347, 9_968_703), (67_347, 9_968_703)),
    ] {
        let imported = import_complete(name, Format::HeapText);
        let totals = &imported.totals;
        let found = [totals.live_blocks, totals.live_bytes, totals.allocs, totals.bytes_allocated];
        for (found, wanted) in found.into_iter().zip([live.0, live.1, allocated.0, allocated.1]) {
            assert!(found.abs_diff(wanted) <= imported.sums.len() as u64, "{name}: {found} instead of {wanted}");
        }
        assert!(!imported.has_peak, "{name}");
    }
    let live = |row: &heaptape_formats::tape::SiteSums| row.bytes - row.freed_bytes;
    let go = import_complete("go-debug1.heap", Format::HeapText);
    assert_eq!(names(&go, live), ["main.keeps", "main.main", "runtime.main"]);
    let java = import_complete("java.heap", Format::HeapText);
    assert_eq!(names(&java, live)[0], "com.example.function02b");
    let short = import_complete("gperftools-sampled.heap", Format::HeapText);
    assert_eq!(short.argv, ["/home/cppbench_server_main"], "the short form of mapped files");
    let unnamed = import_complete("jemalloc.heap", Format::HeapText);
    assert!(unnamed.argv.is_empty(), "it names its libraries, but not itself: {:?}", unnamed.argv);
}

#[test]
fn truncated_file_is_readable_to_the_truncation() {
    for (name, format) in FILES {
        let bytes = golden(name);
        let all = import_complete(name, format);
        let (mut read, mut sums) = (0, 0);
        for end in 0..bytes.len() {
            let Ok((imported, ending)) = import::from_bytes(format, &bytes[..end]) else { continue };
            read += 1;
            assert!(imported.totals.allocs <= all.totals.allocs, "{name} truncated at {end}");
            assert!(imported.sums.len() <= all.sums.len() + 1, "{name} truncated at {end}");
            sums = sums.max(imported.sums.len());
            if let Ending::Truncated { offset, .. } = ending {
                assert!(offset <= end as u64, "{name} truncated at {end}: {offset}");
            }
        }
        // A file that ends before the names of the values, or before the version, is rejected.
        assert!(read > bytes.len() / 4, "{name}: {read} of {}", bytes.len());
        assert!(sums + 1 >= all.sums.len(), "{name}: {sums} of {} stacks", all.sums.len());
    }
}

#[test]
fn damage_is_reported_with_its_offset() {
    let mut refused = 0;
    for (name, format) in FILES {
        let bytes = golden(name);
        for at in 0..bytes.len() {
            for flip in [0x01, 0x20, 0x80, 0xff] {
                let mut bytes = bytes.clone();
                bytes[at] ^= flip;
                if let Err(Error { offset, field, .. }) = import::from_bytes(format, &bytes) {
                    assert!(offset <= bytes.len() as u64 + 1 && !field.is_empty(), "{name} at {at}: {offset} {field}");
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 100, "{refused}");
}

#[test]
fn profiles_of_other_events_are_rejected_by_name() {
    use heaptape_formats::pprof::{Record, ValueType, Writer, record};
    let mut bytes = Vec::new();
    record(&mut bytes, &Record::SampleType(ValueType { kind: 1, unit: 2 }));
    let mut texts = Writer::new(&mut bytes);
    texts.text(&mut bytes, b"cpu");
    texts.text(&mut bytes, b"nanoseconds");
    assert_eq!(sniff::format(&bytes), Some(Format::Pprof));
    let error = import::from_bytes(Format::Pprof, &bytes).unwrap_err().to_string();
    assert!(error.contains("cpu") && error.contains("not a heap profile"), "{error}");
}

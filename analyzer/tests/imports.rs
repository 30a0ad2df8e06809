//! Files of other tools, made by these: their figures are known; cut anywhere they give what stands before the cut; damaged anywhere they
//! give an error or figures, and neither panic nor take more memory than a few times their size.

use heaptape_analyzer::import::{self, Imported};
use heaptape_formats::{Ending, Error, Format, sniff};
use std::path::Path;

/// One program in all: 1,001 bytes that stay, 0 to 99 bytes a hundred times, and 5,000 that become 9,000. Go's has 50 blocks of 1,000 bytes
/// (1,024 with what its allocator adds) that stay.
const FILES: [(&str, Format); 4] = [
    ("go-heap.pb", Format::Pprof),
    ("heaptrack.txt", Format::Heaptrack),
    ("valgrind-dhat.json", Format::Dhat),
    ("valgrind-massif.out", Format::Massif),
];

fn golden(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/import").join(name)).unwrap()
}

fn whole(name: &str, format: Format) -> Imported {
    let bytes = golden(name);
    assert_eq!(sniff::format(&bytes), Some(format), "{name}");
    let (imported, ending) = import::from_bytes(format, &bytes).unwrap();
    assert_eq!(ending, Ending::Complete, "{name}");
    imported
}

/// The innermost named functions of the stack that holds most of something.
fn names(imported: &Imported, of: fn(&heaptape_formats::tape::SiteSums) -> u64) -> Vec<String> {
    let row = imported.sums.iter().max_by_key(|row| of(row)).unwrap();
    let stack = imported.stacks.stack(row.site).map(|(_, site)| site.named);
    let named = stack.filter_map(|named| imported.stacks.named.get((named as usize).checked_sub(1)?));
    named.map(|named| String::from_utf8_lossy(&named.function).into_owned()).collect()
}

#[test]
fn what_the_tools_counted_is_what_is_read() {
    let go = whole("go-heap.pb", Format::Pprof);
    assert_eq!(names(&go, |row| row.bytes - row.freed_bytes)[..2], ["main.keeps", "main.main"]);
    assert_eq!(names(&go, |row| row.bytes)[..2], ["main.drops", "main.main"]);
    let live = go.sums.iter().map(|row| row.bytes - row.freed_bytes).max();
    assert!(live >= Some(50 * 1024), "{live:?}");
    assert!(!go.has_peak);

    let dhat = whole("valgrind-dhat.json", Format::Dhat);
    assert_eq!((dhat.totals.bytes_allocated, dhat.totals.allocs), (1001 + 5050 + 14000, 103));
    assert_eq!((dhat.totals.live_bytes, dhat.totals.live_blocks, dhat.totals.peak_bytes), (1001, 1, 10001));
    assert_eq!(names(&dhat, |row| row.bytes - row.freed_bytes), ["malloc", "leaf", "middle", "main"]);

    let massif = whole("valgrind-massif.out", Format::Massif);
    assert_eq!(massif.totals.peak_bytes, 10001);
    assert_eq!(names(&massif, |row| row.peak_bytes), ["main"]);

    // heaptrack also saw 72,704 bytes of the C++ library that it brings along.
    let heaptrack = whole("heaptrack.txt", Format::Heaptrack);
    assert_eq!((heaptrack.totals.allocs, heaptrack.totals.live_bytes), (104, 1001));
    assert_eq!(heaptrack.totals.bytes_allocated, 72704 + 1001 + 5050 + 14000);
    assert_eq!(heaptrack.totals.peak_bytes, 72704 + 1001 + 9000);
    assert_eq!(names(&heaptrack, |row| row.bytes - row.freed_bytes)[..3], ["leaf", "middle", "main"]);
    assert_eq!(heaptrack.argv, ["./t"]);
}

#[test]
fn a_cut_file_gives_what_stands_before_the_cut() {
    for (name, format) in FILES {
        let bytes = golden(name);
        let all = whole(name, format);
        let (mut read, mut sums) = (0, 0);
        for end in 0..bytes.len() {
            let Ok((imported, ending)) = import::from_bytes(format, &bytes[..end]) else { continue };
            read += 1;
            assert!(imported.totals.allocs <= all.totals.allocs, "{name} cut at {end}");
            assert!(imported.sums.len() <= all.sums.len() + 1, "{name} cut at {end}");
            sums = sums.max(imported.sums.len());
            if let Ending::Cut { offset, .. } = ending {
                assert!(offset <= end as u64, "{name} cut at {end}: {offset}");
            }
        }
        // What comes before the names of the values, or the version, is no file.
        assert!(read > bytes.len() / 4, "{name}: {read} of {}", bytes.len());
        assert!(sums + 1 >= all.sums.len(), "{name}: {sums} of {} stacks", all.sums.len());
    }
}

#[test]
fn damage_is_an_error_with_its_place() {
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
fn other_profiles_are_refused_with_what_they_count() {
    use heaptape_formats::pprof::{Record, ValueType, Writer, record};
    let mut bytes = Vec::new();
    record(&mut bytes, &Record::SampleType(ValueType { kind: 1, unit: 2 }));
    let mut texts = Writer::new(&mut bytes);
    texts.text(&mut bytes, b"cpu");
    texts.text(&mut bytes, b"nanoseconds");
    assert_eq!(sniff::format(&bytes), Some(Format::Pprof));
    let error = import::from_bytes(Format::Pprof, &bytes).unwrap_err().to_string();
    assert!(error.contains("cpu") && error.contains("no profile of memory"), "{error}");
}

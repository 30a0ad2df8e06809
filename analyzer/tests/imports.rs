//! Imports of files that other tools wrote. The figures are known. A file that is truncated
//! anywhere is readable to the truncation. A file that is damaged anywhere results in an error or
//! in figures, without panic, and in memory of a few times the file size.

use heaptape_analyzer::import::{self, Imported};
use heaptape_analyzer::report::{Query, View};
use heaptape_analyzer::symbols::Origin;
use heaptape_formats::{Ending, Error, Format, sniff};
use std::io::Write;
use std::path::Path;

/// All files are of the same program. It keeps 1,001 bytes, allocates 0 to 99 bytes a hundred
/// times, and reallocates 5,000 bytes to 9,000. The Go program keeps 50 blocks of 1,000 bytes
/// (1,024 with the allocator's padding).
const FILES: [(&str, Format); 10] = [
    ("go-heap.pb", Format::Pprof),
    ("heaptrack.txt", Format::Heaptrack),
    ("valgrind-dhat.json", Format::Dhat),
    ("valgrind-massif.out", Format::Massif),
    ("go-debug1.heap", Format::HeapText),
    ("leaks-asan.log", Format::LeakLog),
    ("memcheck.txt", Format::LeakLog),
    ("memcheck.xml", Format::LeakLog),
    ("mtrace.log", Format::LeakLog),
    ("memleak.txt", Format::LeakLog),
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

/// Blocks and bytes, live and allocated, of text heap profiles, by `jeprof` (jemalloc),
/// `google-pprof` (gperftools) and `go tool pprof -raw` (Go, Java). These round or truncate each
/// sum or sample.
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

/// The program of the leak reports keeps 4,000 bytes, loses ten blocks of 70 bytes and one of 16
/// (with one of 1,000 that the compiler left out), frees 50 of 100 to 149, and reallocates 10 bytes
/// to 5,000.
#[test]
fn leak_reports_have_the_sums_of_the_tools() {
    let live = |imported: &Imported| (imported.totals.live_blocks, imported.totals.live_bytes);
    let most = |row: &heaptape_formats::tape::SiteSums| row.bytes - row.freed_bytes;
    for name in ["leaks-asan.log", "leaks-stripped.log", "leaks-lsan.log"] {
        let imported = import_complete(name, Format::LeakLog);
        assert_eq!(live(&imported), (11, 716), "{name}");
        assert_eq!(names(&imported, most)[..2], ["malloc", "remember"], "{name}");
        assert!(imported.notes[0].starts_with("LeakSanitizer: the report has only what was lost"), "{name}");
        assert_eq!(imported.notes[1], "LeakSanitizer says: Direct 716 B in 11 blocks", "{name}");
        assert!(imported.pid > 0 && !imported.has_peak, "{name}");
    }
    for name in ["memcheck.txt", "memcheck.xml", "memcheck-default.txt"] {
        let imported = import_complete(name, Format::LeakLog);
        assert_eq!(live(&imported), (12, 4716), "{name}");
        let is_text = name.ends_with(".txt");
        let calls = if is_text { (64, 52, 15_951) } else { (12, 0, 4716) };
        let totals = &imported.totals;
        assert_eq!((totals.allocs, totals.frees, totals.bytes_allocated), calls, "{name}");
        assert_eq!(imported.argv, ["./shop"], "{name}");
        if name == "memcheck-default.txt" {
            assert_eq!(names(&imported, most), ["(not listed in the report)"]);
            let notes = &imported.notes[1..];
            assert_eq!(notes[0], "memcheck says: definitely lost 716 B in 11 blocks");
            assert!(notes[1].starts_with("3.91 KiB in 1 block are in its sums only: run valgrind with "), "{notes:?}");
        } else {
            assert_eq!(names(&imported, most), ["malloc", "remember", "main"], "{name}");
            let kinds = "memcheck says: definitely lost 716 B in 11 blocks, still reachable 3.91 KiB in 1 block";
            assert_eq!(imported.notes[1], kinds, "{name}");
            // XML has no sums, so what valgrind was not asked for is missing unnoticed.
            let more = "memcheck's XML has only the kinds of leaks that valgrind was asked for: --show-leak-kinds=all";
            assert_eq!(imported.notes[2..], if is_text { vec![] } else { vec![more] }, "{name}");
        }
    }
    // By the tool `mtrace`: the same blocks, and each call.
    let mtrace = import_complete("mtrace.log", Format::LeakLog);
    assert_eq!(live(&mtrace), (12, 4716));
    let freed: u64 = (100..150).sum();
    assert_eq!((mtrace.totals.allocs, mtrace.totals.bytes_allocated), (64, 4716 + freed + 10 + 5000));
    assert_eq!((mtrace.totals.frees, mtrace.totals.unknown_frees), (52, 0));
    assert_eq!(mtrace.totals.peak_bytes, 4716 + 5000);
    let memleak = import_complete("memleak.txt", Format::LeakLog);
    assert_eq!((live(&memleak), memleak.pid), ((11, 716), 5193));
    assert_eq!(names(&memleak, most), ["remember(unsigned long)", "main"]);
    assert_eq!(memleak.notes[1], "2 intervals: the last one is read");
}

/// A program that AddressSanitizer ends looks for no leaks: "0 B never freed" would be wrong.
#[test]
fn reports_of_other_errors_are_refused_by_name() {
    let overflow = "=====\n==9==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x60\n    #0 0x7f in f a.c:7\n\nSUMMARY: x\n";
    let failed =
        "==9==LeakSanitizer has encountered a fatal error.\n==9==HINT: LeakSanitizer does not work under ptrace\n";
    for (text, offset, expected) in [
        (overflow, 6, "about heap-buffer-overflow, not about leaks"),
        (failed, 0, "LeakSanitizer failed and looked for no leaks"),
    ] {
        assert_eq!(sniff::format(text.as_bytes()), Some(Format::LeakLog));
        let error = import::from_bytes(Format::LeakLog, text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains(&format!("offset {offset}")), "{error}");
    }
    // With `halt_on_error=0` the leaks come after the error.
    let both = [overflow.as_bytes(), &golden("leaks-asan.log")].concat();
    assert_eq!(import::from_bytes(Format::LeakLog, &both).unwrap().0.totals.live_bytes, 716);
}

#[test]
fn names_of_leak_reports_are_read_in_each_form() {
    let report = |frames: &str| {
        let text = format!(
            "==7==ERROR: LeakSanitizer: detected memory leaks\n\nIndirect leak of 8 byte(s) in 1 object(s) allocated from:\n{frames}\n\nSUMMARY: x"
        );
        let (log, _) = heaptape_formats::leak_log::read(text.as_bytes()).unwrap();
        assert_eq!(log.leaks[0].kind, "Indirect");
        log.leaks[0].stack.clone()
    };
    for (frame, function, file, line, module, offset) in [
        (
            "#0 0x10 in operator new(unsigned long) ../../../src/asan_new_delete.cpp:95",
            "operator new(unsigned long)",
            "../../../src/asan_new_delete.cpp",
            95,
            "",
            None,
        ),
        (
            "#1 0x10 in std::vector<int, std::allocator<int> >::push(int const&) /usr/include/c++/12/v.h:7:3",
            "std::vector<int, std::allocator<int> >::push(int const&)",
            "/usr/include/c++/12/v.h",
            7,
            "",
            None,
        ),
        ("#2 0x10 in main shop.c:12", "main", "shop.c", 12, "", None),
        ("#3 0x10 in load (/srv/my shop/bin+0x1f) (BuildId: 0aff)", "load", "", 0, "/srv/my shop/bin", Some(0x20)),
        ("#4 0x10  (/srv/shop+0x2f)", "", "", 0, "/srv/shop", Some(0x30)),
        ("#5 0x10 in _start (/srv/shop+0x3f)", "_start", "", 0, "/srv/shop", Some(0x40)),
        ("#6 0x10  (<unknown module>)", "", "", 0, "", None),
    ] {
        let [found] = &report(&format!("    {frame}"))[..] else { panic!("{frame}") };
        let names = (&*found.function, &*found.file, found.line, &*found.module, found.offset);
        assert_eq!(names, (function, file, line, module, offset), "{frame}");
        assert_eq!(found.address, 0x11, "{frame}");
    }
}

/// Sums of samples are estimates, which reports say.
#[test]
fn sampled_text_profiles_say_that_they_are() {
    for (name, mean) in [
        ("jemalloc.heap", Some("4.00 KiB")),
        ("gperftools.heap", None),
        ("gperftools-sampled.heap", Some("512 KiB")),
        ("java.heap", Some("512 KiB")),
    ] {
        let imported = import_complete(name, Format::HeapText);
        let note = |mean| format!("sampled, a block for each {mean} allocated: bytes and blocks are estimates");
        assert_eq!(imported.notes, mean.map(note).into_iter().collect::<Vec<_>>(), "{name}");
    }
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
            let mut bytes = bytes.clone();
            bytes[at] ^= [0x01, 0x20, 0x80, 0xff][at % 4];
            if let Err(Error { offset, field, .. }) = import::from_bytes(format, &bytes) {
                assert!(offset <= bytes.len() as u64 + 1 && !field.is_empty(), "{name} at {at}: {offset} {field}");
                refused += 1;
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

fn replaced(name: &str, from: &str, to: &str) -> Vec<u8> {
    let text = String::from_utf8(golden(name)).unwrap();
    assert!(text.contains(from), "{name}: {from}");
    text.replacen(from, to, 1).into_bytes()
}

#[test]
fn modes_of_dhat_that_count_no_heap_are_refused_by_name() {
    for (mode, verb) in [("copy", "Copied"), ("ad-hoc", "Occurred")] {
        let other = format!("\"mode\":\"{mode}\",\"verb\":\"{verb}\"");
        let bytes = replaced("valgrind-dhat.json", "\"mode\":\"heap\",\"verb\":\"Allocated\"", &other);
        let error = import::from_bytes(Format::Dhat, &bytes).unwrap_err().to_string();
        let expected = format!("mode {mode} counts \"{verb}\"; run DHAT without --mode");
        assert!(error.contains(&expected), "{error}");
    }
}

#[test]
fn options_of_massif_that_count_other_memory_are_said() {
    assert!(import_complete("valgrind-massif.out", Format::Massif).notes.is_empty());
    let pages = replaced("valgrind-massif.out", "desc: ", "desc: --pages-as-heap=yes ");
    let (pages, _) = import::from_bytes(Format::Massif, &pages).unwrap();
    assert!(pages.notes.iter().any(|note| note.starts_with("massif counted pages (--pages-as-heap=yes)")));
    let stacks = replaced("valgrind-massif.out", "mem_stacks_B=0", "mem_stacks_B=2048");
    let (stacks, _) = import::from_bytes(Format::Massif, &stacks).unwrap();
    let expected = "massif measured stacks, too (--stacks=yes), 2.00 KiB at most: they are not in these bytes";
    assert_eq!(stacks.notes, [expected]);
}

#[test]
fn suppressions_of_heaptrack_are_those_of_the_file() {
    assert!(import_complete("heaptrack.txt", Format::Heaptrack).suppressions.is_empty());
    let bytes = [&golden("heaptrack.txt")[..], b"S leak:leaf\nS leak:^std::*\n"].concat();
    let (imported, _) = import::from_bytes(Format::Heaptrack, &bytes).unwrap();
    assert_eq!(imported.suppressions, ["leak:leaf", "leak:^std::*"]);
}

/// Such a file is no recording, but no unknown file either.
#[test]
fn files_without_a_heap_are_refused_with_what_shows_them() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden");
    for (name, expected) in [
        ("gmon/real/calls64.gmon", "this is a gmon.out file of gprof: heaptape gprof PROGRAM FILE shows it"),
        ("gmon/pe/lines32.gmon", "this is a gmon.out file of gprof: heaptape gprof PROGRAM FILE shows it"),
        ("dcpi/good/v007-many.dcpi", "this is a profile of DCPI: heaptape dcpiprof FILE shows it"),
    ] {
        let error = heaptape_analyzer::open(&golden.join(name)).unwrap_err().to_string();
        assert!(error.ends_with(expected), "{error}");
    }
    // What `dump` does not print either.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("callgrind.out");
    std::fs::write(&path, "# callgrind format\nversion: 1\n").unwrap();
    let error = heaptape_analyzer::dump(&path, &mut Vec::new()).unwrap_err().to_string();
    assert!(error.contains("this is a file of callgrind: it counts instructions"), "{error}");
}

/// The content of a container may be any format, so the error is the container's.
#[test]
fn damaged_containers_are_named_with_their_offset() {
    let folder = tempfile::tempdir().unwrap();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    gzip.write_all(&golden("memcheck.txt")).unwrap();
    let zstd = zstd::encode_all(&golden("memcheck.txt")[..], 1).unwrap();
    for (kind, bytes) in [("gzip", gzip.finish().unwrap()), ("zstd", zstd)] {
        let path = folder.path().join(kind);
        std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
        let error = heaptape_analyzer::open(&path).unwrap_err().to_string();
        assert!(error.contains(&format!("truncated or damaged {kind} after ")), "{error}");
        assert!(error.ends_with(" unpacked bytes"), "{error}");
    }
}

#[test]
fn sums_of_imported_files_are_what_verify_counts() {
    for (name, allocs, blocks) in [("leaks-lsan.log", 11, 11), ("memcheck.txt", 64, 12)] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/import").join(name);
        let checked = heaptape_analyzer::report::verify::check(&path).unwrap();
        let [process] = &checked.processes[..] else { panic!("{name}: one process") };
        assert_eq!((process.allocs, process.live_blocks), (allocs, blocks), "{name}");
    }
}

/// A profile of another machine has addresses of code that its files alone place: here the first
/// segment is not linked at 0. The folder with these files is named by the user.
#[test]
fn modules_of_other_machines_are_placed_by_the_files_of_the_sysroot() {
    const PLACED: u64 = 0x7f00_0000_0000;
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    let library = root.join("nowhere/lib/libplaced.so");
    std::fs::create_dir_all(library.parent().unwrap()).unwrap();
    let source = folder.path().join("placed.c");
    std::fs::write(&source, "int unused(void) { return 1; }\nint keeps(void) { return 2; }\n").unwrap();
    let flags = ["-shared", "-fPIC", "-O1", "-Wl,-Ttext-segment=0x400000", "-o"];
    let built = std::process::Command::new("gcc").args(flags).arg(&library).arg(&source).status();
    if !built.is_ok_and(|status| status.success()) {
        return;
    }
    let bytes = std::fs::read(&library).unwrap();
    let elf = object::File::parse(&*bytes).unwrap();
    let symbol = object::Object::symbol_by_name(&elf, "keeps").unwrap();
    let address = object::ObjectSymbol::address(&symbol);
    assert!(address > 0x40_0000, "the linker has placed it: {address:#x}");
    // What is mapped is the page with the code, at its offset in the file.
    let (page, offset) = (PLACED + (address & 0xfff_f000), (address - 0x40_0000) & !0xfff);
    let profile = folder.path().join("other.heap");
    let text = format!(
        "heap profile: 1: 100 [1: 100] @ heapprofile\n1: 100 [1: 100] @ {:#x}\n\nMAPPED_LIBRARIES:\n\
         {page:x}-{:x} r-xp {offset:08x} 00:00 0 /nowhere/lib/libplaced.so\n",
        PLACED + address + 2,
        page + 0x1000
    );
    std::fs::write(&profile, text).unwrap();
    let named = |sysroot: Option<&Path>| {
        let origin = Origin { sysroot: sysroot.map(Into::into), ..Origin::default() };
        let query = Query::of(&profile, View { origin, ..View::default() });
        let recordings = query.open().unwrap();
        let stacks = recordings[0].processes[0].stacks();
        let frame = query.view.symbolizer().name(stacks, &stacks.site(1));
        frame.function.as_deref().map(str::to_owned)
    };
    assert_eq!(named(Some(&root)).as_deref(), Some("keeps"));
    assert_eq!(named(None), None);
}

//! Prefixes of known allocators, and allocators that cannot be hooked: those in stripped files, and
//! in libraries that are opened after the start. The recording names them.

use heaptape_formats::recording::{self as formats, Allocator};
use heaptape_tests::wait::until;
use heaptape_tests::{Program, Recording, Target, same, test_env};
use std::cell::Cell;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Events of `prefixed.c`: allocations, resizes and frees.
const EVENTS: u64 = 61 + 40 + 60;

fn prefixed(prefix: &str, is_library: bool) -> Target {
    let name = format!("prefixed-{prefix}{}", if is_library { ".so" } else { "" });
    let target =
        if is_library { Target::library("prefixed.c").flag("-DLIBRARY") } else { Target::program("prefixed.c") };
    target.flag(format!("-DPREFIX={prefix}")).flag("-Wl,--build-id").named(&name)
}

/// Copies a file without its symbols.
fn stripped(file: &Path, folder: &Path) -> PathBuf {
    let out = folder.join(file.file_name().expect("a name"));
    let strip = Command::new("strip").arg("-o").arg(&out).arg(file).status().expect("strip");
    assert!(strip.success());
    out
}

/// Records a program, which behaves as before, and returns its allocators.
fn allocators(program: &Program) -> (Recording, Vec<Allocator>) {
    let plain = program.plain().success();
    let recording = program.recorded();
    same(&plain, &recording.outcome);
    let recording = recording.complete();
    let allocators = recording.about().processes[0].allocators.clone();
    (recording, allocators)
}

/// Asserts that the allocator is named as not recorded, with this reason, and that the report says
/// so.
fn is_named(program: &Program, why: &str) {
    let (recording, allocators) = allocators(program);
    let [allocator] = &allocators[..] else { panic!("one allocator: {allocators:#?}") };
    assert_eq!((&allocator.name[..], allocator.found, allocator.events), ("jemalloc", 0, 0), "{allocator:#?}");
    assert!(allocator.refused[0].why.starts_with(why), "{allocator:#?}");
    let module = allocator.module.rsplit('/').next().unwrap_or_default();
    let text = recording.heaptape(&["report"]).success().text();
    assert!(text.contains(&format!("! {module}: jemalloc inside of it not recorded: {why}")), "{text}");
    // It has no blocks to be selected.
    recording.heaptape(&["leaks", "--allocator", "jemalloc"]).exits(2);
}

/// The functions of jemalloc are hooked with each prefix that it is known to have, also those which
/// only Redis has added. A call inside of the allocator is no event.
#[test]
fn prefixes_of_jemalloc_are_recorded_exactly() {
    for prefix in ["je_", "_rjem_", "je_arrow_", "duckdb_je_"] {
        let (recording, allocators) = allocators(&Program::new(prefixed(prefix, false).build()));
        let [allocator] = &allocators[..] else { panic!("one allocator: {allocators:#?}") };
        assert_eq!((&allocator.name[..], allocator.found, allocator.hooked), ("jemalloc", 6, 6), "{allocator:#?}");
        assert_eq!(allocator.events, EVENTS, "{prefix}");
        let leaks = recording.leaks();
        let leak = leaks.iter().find(|leak| (leak.blocks, leak.bytes) == (1, 4321));
        assert!(leak.is_some_and(|leak| leak.functions().contains(&"leaves_one")), "{prefix}: {leaks:#?}");
    }
}

/// A stripped program with jemalloc inside is named.
#[test]
fn allocators_of_stripped_programs_are_named() {
    let folder = test_env::folder();
    let program = stripped(&prefixed("je_", false).build(), folder.path());
    is_named(&Program::new(&program), "the file is stripped");
}

/// An allocator in a library that is opened later is named, with and without its symbols. It is
/// recorded if the library is preloaded.
#[test]
fn allocators_of_libraries_that_are_opened_later_are_named() {
    let folder = test_env::folder();
    let library = prefixed("_rjem_", true).build();
    let program = Program::new(prefixed("other_", false).build());
    let opens = |library: &Path| program.clone().arg(library);
    is_named(&opens(&library), "the library was opened after the start");
    is_named(&opens(&stripped(&library, folder.path())), "the file is stripped");
    is_hooked(&opens(&library), &library);
}

/// Asserts that the allocator in a library is recorded exactly if the library is preloaded.
fn is_hooked(program: &Program, library: &Path) {
    let (_, allocators) = allocators(&program.clone().env("LD_PRELOAD", library));
    let [allocator] = &allocators[..] else { panic!("one allocator: {allocators:#?}") };
    assert_eq!((allocator.found, allocator.hooked, allocator.events), (6, 6, EVENTS), "{allocator:#?}");
}

/// A library may keep an allocator to itself that has no prefix, as modules of Python do with the
/// allocator that they are linked with.
#[test]
fn allocators_with_the_names_of_libc_are_found_inside_of_libraries() {
    let library = prefixed("", true).named("hides-its-names.so").build();
    let program = Program::new(prefixed("other_", false).build()).arg(&library);
    is_named(&program, "the library was opened after the start");
    is_hooked(&program, &library);
}

/// The hint that names such an allocator is an option of `record` that works: the library is
/// preloaded into the program, where its symbols are, and not into heaptape, which lacks them.
#[test]
fn library_of_the_hint_is_preloaded_into_the_program_only() {
    let library = prefixed("_rjem_", true).flag("-DNEEDS").named("needs-program.so").build();
    let built = prefixed("other_", false)
        .flag("-DNEEDS")
        .flag("-Wl,--export-dynamic-symbol=only_the_program_has_it")
        .named("has-what-it-needs")
        .build();
    let program = Program::new(&built).arg(&library);
    let (recording, _) = allocators(&program);
    let text = recording.heaptape(&["report"]).success().text();
    let hint = format!("run 'heaptape record --preload {} …' to have it hooked", library.display());
    assert!(text.contains(&hint), "{text}");
    let preloads = |path: &Path| program.clone().option("--preload").option(path);
    let (_, found) = allocators(&preloads(&library));
    let [allocator] = &found[..] else { panic!("one allocator: {found:#?}") };
    assert_eq!((allocator.found, allocator.hooked, allocator.events), (6, 6, EVENTS), "{allocator:#?}");
    // Relative to the folder of the command, and beside what LD_PRELOAD names already.
    let name = Path::new("./needs-program.so");
    let folder = library.parent().expect("a folder");
    let (_, found) = allocators(&preloads(name).folder(folder).env("LD_PRELOAD", "libm.so.6"));
    assert!(found.iter().any(|allocator| allocator.hooked == 6), "{found:#?}");
    let outcome = preloads(Path::new("./no-such.so")).recorded().outcome.exits(2);
    assert!(outcome.error().contains("no-such.so"), "{outcome}");
}

/// Copies a program, and makes its symbol tables this much larger: empty symbols, and empty strings
/// after the real ones.
fn with_large_tables(program: &Path, copy: &Path, symbols: u64, strings: u64) {
    const SYMTAB: usize = 2;
    let mut file = std::fs::read(program).expect("the program");
    let number = |file: &[u8], at: usize, bytes: usize| {
        file[at..at + bytes].iter().rev().fold(0, |value, byte| value << 8 | usize::from(*byte))
    };
    let (headers, count) = (number(&file, 40, 8), number(&file, 60, 2));
    let kind = |index: &usize| number(&file, headers + index * 64 + 4, 4) == SYMTAB;
    let table = headers + (0..count).find(kind).expect("a symbol table") * 64;
    let names = headers + number(&file, table + 40, 4) * 64;
    let mut end = file.len().next_multiple_of(64) as u64;
    let mut parts = Vec::new();
    for (header, more) in [(names, strings), (table, symbols)] {
        let (offset, bytes) = (number(&file, header + 24, 8), number(&file, header + 32, 8));
        parts.push((end, file[offset..offset + bytes].to_vec()));
        file[header + 24..header + 32].copy_from_slice(&end.to_le_bytes());
        file[header + 32..header + 40].copy_from_slice(&(bytes as u64 + more).to_le_bytes());
        end = (end + bytes as u64 + more).next_multiple_of(64);
    }
    let unfinished = copy.with_extension("unfinished");
    let out = std::fs::File::create(&unfinished).expect("a file");
    out.write_all_at(&file, 0).expect("written");
    parts.iter().for_each(|(offset, bytes)| out.write_all_at(bytes, *offset).expect("written"));
    out.set_len(end).expect("a large file");
    out.set_permissions(PermissionsExt::from_mode(0o755)).expect("it may be executed");
    test_env::copy(&unfinished, copy);
}

/// Symbol tables of 500 MB delay the start of a program by no more than the limit of the search: the
/// first start does not wait for its end, and is not hooked. The next one is.
#[test]
fn start_with_large_symbol_tables_is_bounded() {
    const LIMIT_MS: &str = "20";
    let folder = test_env::folder();
    let program = folder.path().join("large");
    with_large_tables(&prefixed("je_", false).build(), &program, 192 << 20, 320 << 20);
    let number = Cell::new(0);
    let start = || {
        number.set(number.get() + 1);
        let recording = folder.path().join(format!("recording{}", number.get()));
        let mut recorder = Command::new(test_env::command())
            .args(["record", "-q", "-o"])
            .args([&recording, Path::new("--"), &program])
            .env("XDG_CACHE_HOME", folder.path().join("cache"))
            .env("HEAPTAPE_SEARCH_MS", LIMIT_MS)
            .stdout(Stdio::piped())
            .spawn()
            .expect("heaptape record starts");
        let mut line = String::new();
        BufReader::new(recorder.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
        assert_eq!(line, "done\n");
        assert!(recorder.wait().expect("its end").success());
        let about = std::fs::read(recording.join("recording.json")).expect("recording.json");
        let about: formats::Recording = serde_json::from_slice(&about).expect("JSON");
        about.processes[0].allocators[0].clone()
    };
    let first = start();
    assert_eq!((first.hooked, first.found), (0, 0), "{first:#?}");
    assert!(first.refused[0].why.starts_with("its symbol table is too large"), "{first:#?}");
    until("a start is hooked", || {
        let next = start();
        (next.hooked, next.events) == (6, EVENTS)
    });
}

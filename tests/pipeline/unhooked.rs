//! Prefixes of known allocators, and allocators that cannot be hooked: those in stripped files, and
//! in libraries that are opened after the start. The recording names them.

use heaptape_formats::recording::Allocator;
use heaptape_tests::{Program, Recording, Target, same, test_env};
use std::path::{Path, PathBuf};
use std::process::Command;

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
    let (_, allocators) = allocators(&opens(&library).env("LD_PRELOAD", &library));
    let [allocator] = &allocators[..] else { panic!("one allocator: {allocators:#?}") };
    assert_eq!((allocator.found, allocator.hooked, allocator.events), (6, 6, EVENTS), "{allocator:#?}");
}

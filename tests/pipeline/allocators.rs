//! Other allocators than libc's, other libcs, other preloads.

use heaptape_formats::recording::ProcessInfo;
use heaptape_tests::{Program, Target, own, same, target, test_env, torture};
use std::path::PathBuf;

/// Allocators of the distribution that are installed.
fn libraries() -> Vec<PathBuf> {
    let names = ["libjemalloc.so.2", "libtcmalloc_minimal.so.4", "libmimalloc.so.2", "libmimalloc.so.2.0"];
    let folders = [target::LIBRARIES, "/usr/lib"];
    let paths = folders.iter().flat_map(|folder| names.iter().map(move |name| PathBuf::from(folder).join(name)));
    let mut found: Vec<PathBuf> = paths.filter(|path| path.exists()).collect();
    found.dedup_by(|a, b| std::fs::canonicalize(a).ok() == std::fs::canonicalize(b).ok());
    found
}

/// heaptape comes before a preloaded allocator, so that calls of the program are events, and inner
/// calls of the allocator are not.
#[test]
fn preloaded_allocators_are_recorded() {
    let libraries = libraries();
    assert!(!libraries.is_empty(), "no other allocator is installed: run scripts/install-tools");
    for library in &libraries {
        // The threads allocate by their own_ calls only. The libraries of the allocator allocate
        // on the main thread.
        for (name, arguments) in [("pairs", ["50000", "4"]), ("threads", ["4", "5000"])] {
            let folder = test_env::folder();
            let file = folder.path().join("own");
            let program =
                Program::new(target::c(name)).args(arguments).env("OWN_FILE", &file).env("LD_PRELOAD", library);
            let recording = program.recorded_counting(&file);
            let recording = recording.complete();
            own::equal(&own::read(&file), &own::recorded(&recording));
            let output = recording.heaptape(&["report", "--json"]).success();
            let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
            // The program maps memory, too. What the allocator maps is counted only.
            let counted = report["processes"][0]["mappings"]["allocator_calls"].as_u64();
            assert!(counted > Some(0), "{report:#}");
            let rows = report["mapped"].as_array().unwrap_or_else(|| panic!("{report:#}"));
            let module = |row: &serde_json::Value| row["stack"][0]["module"].as_str().map(str::to_owned);
            let allocators = ["libjemalloc", "libmimalloc", "libtcmalloc"];
            let is_own = |name: String| allocators.iter().all(|allocator| !name.contains(allocator));
            assert!(!rows.is_empty() && rows.iter().all(|row| module(row).is_some_and(is_own)), "{rows:#?}");
            // The allocator that is called is known, also to each forked process.
            let called = |process: &ProcessInfo| std::fs::canonicalize(&process.malloc).ok();
            let about = recording.about();
            assert!(about.processes.iter().all(|one| called(one) == std::fs::canonicalize(library).ok()), "{about:#?}");
        }
        let cpp = Program::new(Target::program("each_operator.cpp").build()).env("LD_PRELOAD", library);
        let plain = cpp.plain().success();
        let recording = cpp.recorded().complete();
        same(&plain, &recording.outcome);
        let leaks = recording.leaks();
        for bytes in [5003, 5009, 5011, 5021, 5023, 5039, 5051, 5059] {
            let found = leaks.iter().filter(|leak| leak.bytes == bytes && leak.blocks == 1).count();
            assert_eq!(found, 1, "{}: {bytes} bytes by new, once: {leaks:#?}", library.display());
        }
    }
    torture::passed(29, "preloaded allocators", libraries.len() as u64);
}

/// An allocator that is linked into the program as a shared library.
#[test]
fn linked_allocators_are_recorded() {
    let libraries = libraries();
    for library in &libraries {
        let folder = test_env::folder();
        let file = folder.path().join("own");
        let built = Target::program("pairs.c").with(library).build();
        let program = Program::new(built).args(["50000", "2"]).env("OWN_FILE", &file);
        let recording = program.recorded_counting(&file);
        let recording = recording.complete();
        own::equal(&own::read(&file), &own::recorded(&recording));
    }
    torture::passed(29, "allocators linked by the program", libraries.len() as u64);
}

/// Returns the path of a library of the distribution, if it is installed.
fn library(name: &str) -> Option<PathBuf> {
    libraries().into_iter().find(|path| path.ends_with(name))
}

/// Names of a shared allocator that no C library has, and which heaptape does not export, are
/// hooked where the program calls them. Its blocks may be freed by its `free`.
#[test]
fn other_names_of_a_shared_allocator_are_recorded() {
    let Some(jemalloc) = library("libjemalloc.so.2") else { return };
    let program = Program::new(Target::program("other_names.c").with(&jemalloc).named("other-names").build());
    let plain = program.plain().success();
    let recording = program.recorded();
    same(&plain, &recording.outcome);
    let recording = recording.complete();
    let report = recording.report();
    let process = report.only("other-names");
    let leaks: Vec<_> = recording.leaks().into_iter().filter(|leak| leak.bytes == 30 * 2011).collect();
    assert_eq!(leaks.iter().map(|leak| leak.blocks).sum::<u64>(), 30, "{process:#?}");
    assert!((140..150).contains(&process.allocs) && process.resizes == 100, "{process:#?}");
    assert!((110..120).contains(&process.frees), "{process:#?}");
    let about = recording.about();
    let [allocator] = &about.processes[0].allocators[..] else { panic!("one allocator: {about:#?}") };
    assert_eq!((&allocator.name[..], allocator.found, allocator.hooked), ("jemalloc", 4, 4), "{about:#?}");
    let leaks = recording.heaptape(&["leaks", "--json"]).success().text();
    let leaks: serde_json::Value = serde_json::from_str(&leaks).expect("JSON");
    assert!(leaks["crossed_allocators"].is_null(), "{:#}", leaks["crossed_allocators"]);
    // A program that does not call them has nothing to hook.
    let recording = Program::new(Target::program("pairs.c").with(&jemalloc).build()).args(["9", "1"]).recorded();
    assert!(recording.about().processes[0].allocators.is_empty());
}

/// Where such a name is another one for the library's `malloc`, it is named as not recorded.
#[test]
fn other_names_of_malloc_itself_are_reported() {
    let Some(mimalloc) = library("libmimalloc.so.2") else { return };
    let target = Target::program("other_names.c").flag("-DMIMALLOC").named("other-malloc");
    let program = Program::new(target.with(&mimalloc).build());
    let plain = program.plain().success();
    let recording = program.recorded();
    same(&plain, &recording.outcome);
    let about = recording.about();
    let [allocator] = &about.processes[0].allocators[..] else { panic!("one allocator: {about:#?}") };
    assert_eq!((&allocator.name[..], allocator.found, allocator.hooked), ("mimalloc", 2, 0), "{about:#?}");
    assert!(allocator.refused[0].why.contains("would count twice"), "{about:#?}");
    let text = recording.heaptape(&["report"]).text();
    assert!(text.contains("2 functions of mimalloc (mi_malloc, …) not recorded"), "{text}");
}

/// A program that defines malloc itself runs unchanged, and its accounting balances.
#[test]
fn program_with_its_own_allocator_is_unharmed() {
    let object = Target::program("signal_safe_allocator.c").flag("-c").named("own_allocator.o").build();
    let built = Target::program("pairs.c").flag(object).flag("-rdynamic").named("own-allocator").build();
    let program = Program::new(built).args(["20000", "2"]);
    let plain = program.plain().success();
    same(&plain, &program.preloaded());
    let recording = program.recorded();
    assert_eq!(
        (recording.outcome.code(), &recording.outcome.stdout),
        (plain.code(), &plain.stdout),
        "{}",
        recording.outcome
    );
    recording.report().processes.iter().for_each(heaptape_tests::Process::assert_accounting);
    torture::passed(29, "unharmed programs with their own allocator", 1);
}

#[test]
fn musl_program_is_recorded() {
    if test_env::find("musl-gcc").is_none() {
        return; // musl-tools is not installed
    }
    let built = Target::program("small.c").by("musl-gcc").named("small-musl").flag("-Wl,--eh-frame-hdr").build();
    let program = Program::new(built).arg("12");
    let plain = program.plain().exits(12);
    let preloaded = program.preloaded();
    assert_eq!((preloaded.code(), &preloaded.stdout), (12, &plain.stdout), "{preloaded}");
    let recording = program.recorded();
    assert_eq!((recording.outcome.code(), &recording.outcome.stdout), (12, &plain.stdout), "{}", recording.outcome);
    let recording = recording.complete();
    let report = recording.report();
    let process = report.only("small-musl");
    assert_eq!((process.allocs, process.frees, process.live_bytes), (100, 50, 50 * 107), "{process:#?}");
    // The process may be gone before anybody could ask what its libraries are. They are not the program.
    let leaks = recording.leaks();
    let frames = leaks.iter().flat_map(|leak| &leak.stack);
    let callers: Vec<_> = frames.skip_while(|frame| frame.function.as_deref() != Some("main")).skip(1).collect();
    let is_program = |module: &str| module.ends_with("small-musl");
    assert!(!callers.is_empty(), "{leaks:#?}");
    assert!(!callers.iter().any(|frame| frame.module.as_deref().is_some_and(is_program)), "{callers:#?}");
    torture::passed(29, "recorded programs of musl", 1);
}

/// With another preloaded library before heaptape or after it, each call is one event.
#[test]
fn calls_are_recorded_once_beside_another_preload() {
    let other = Target::library("passes_on.c").build();
    for line in ["export LD_PRELOAD=\"$LD_PRELOAD:$OTHER\"", "export LD_PRELOAD=\"$OTHER:$LD_PRELOAD\""] {
        let folder = test_env::folder();
        let file = folder.path().join("own");
        let program = Program::new(target::c("pairs")).args(["20000", "2"]).env("OWN_FILE", &file).env("OTHER", &other);
        let program = program.launched_by(&["bash", "-c", &format!("{line}; exec \"$@\""), "bash"]);
        let recording = program.recorded_counting(&file);
        let recording = recording.complete();
        let (own, report) = (own::sum(&own::read(&file)), recording.report());
        let process = report.only("pairs");
        assert!((own.allocs..own.allocs + 8).contains(&process.allocs), "{line}: {own:#?} {process:#?}");
        assert_eq!(process.resizes, own.resizes, "{line}");
    }
    torture::passed(30, "orders of another preloaded library", 2);
}

//! Programs with an allocator inside: linked statically, as Rust's global allocator, or their
//! own. The functions are found by their symbols and hooked by a jump in their first bytes.

use heaptape_tests::recording::Leak;
use heaptape_tests::{Outcome, Program, Recording, Target, own, same, target, test_env};
use std::path::{Path, PathBuf};
use std::process::Command;

const FOLDER: &str = "/usr/lib/x86_64-linux-gnu";

/// A program that is linked with a static archive of the distribution.
fn linked(source: &str, archive: &str) -> Program {
    let path = Path::new(FOLDER).join(archive);
    assert!(path.exists(), "{} is missing: run scripts/install-tools", path.display());
    let path = path.to_str().expect("a plain path");
    Program::new(Target::program(source).libraries(&[path, "-lstdc++", "-lm"]).build())
}

/// Archives, with the name under which `report` lists the allocator.
const ARCHIVES: [(&str, &str); 2] = [("libjemalloc_pic.a", "jemalloc"), ("libtcmalloc_minimal.a", "tcmalloc")];

/// Asserts that one allocator was found, and that all its functions are hooked.
fn is_hooked(recording: &Recording, name: &str) {
    let about = recording.about();
    let process = about.processes.first().expect("a process");
    let allocators = &process.allocators;
    assert!(allocators.iter().all(|one| one.events > 0), "{about:#?}");
    assert!(!process.own_malloc, "{about:#?}");
    assert_eq!(allocators.iter().map(|one| &one.name[..]).collect::<Vec<_>>(), [name], "{about:#?}");
    assert!(allocators[0].found > 0 && allocators[0].hooked == allocators[0].found, "{allocators:#?}");
}

#[test]
fn linked_in_allocators_are_recorded_exactly() {
    for (archive, name) in ARCHIVES {
        for (source, arguments) in [("pairs.c", ["20000", "4"]), ("threads.c", ["4", "3000"])] {
            let folder = test_env::folder();
            let file = folder.path().join("own");
            let program = linked(source, archive).args(arguments).env("OWN_FILE", &file);
            let plain = program.plain().success();
            std::fs::remove_file(&file).expect("own figures");
            let recording = program.recorded();
            same(&plain, &recording.outcome);
            let recording = recording.complete();
            own::equal(&own::read(&file), &own::recorded(&recording));
            is_hooked(&recording, name);
        }
    }
}

/// Each operator is one event, with the size that the program requested, and exceptions pass
/// through the hooks.
#[test]
fn operators_of_linked_in_allocators_are_recorded_once() {
    for (archive, name) in ARCHIVES {
        let recording = linked("each_operator.cpp", archive).recorded().complete();
        is_hooked(&recording, name);
        let leaks = recording.leaks();
        for bytes in [5003, 5009, 5011, 5021, 5023, 5039, 5051, 5059] {
            let found = leaks.iter().filter(|leak| leak.bytes == bytes && leak.blocks == 1).count();
            assert_eq!(found, 1, "{archive}: {bytes} bytes by new, once: {leaks:#?}");
        }
        for source in ["bad_alloc.cpp", "exceptions.cpp"] {
            let program = linked(source, archive);
            same(&program.plain(), &program.recorded().outcome);
        }
    }
}

/// Builds the Rust program with an allocator.
fn rust(allocator: &str, profile: &str) -> PathBuf {
    let folder = test_env::kept().join("inside").join(allocator);
    let result = Command::new("cargo")
        .args(["build", "--quiet", "--locked", "--features", allocator, "--profile", profile, "--manifest-path"])
        .arg(test_env::programs().join("inside/Cargo.toml"))
        .arg("--target-dir")
        .arg(&folder)
        .output()
        .expect("cargo");
    assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
    folder.join(profile).join("inside")
}

/// Returns allocations, resizes, frees and bytes of the events of the allocator inside.
fn counted_inside(recording: &Recording) -> [u64; 4] {
    let file = recording.directory.path().join("events.json");
    let out = file.to_str().expect("a plain path");
    recording.heaptape(&["export", "--format", "json", "--events", "-o", out]).success();
    let mut counts = [0; 4];
    for line in std::fs::read_to_string(&file).expect("events").lines() {
        let event: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let Some(("allocator 1", kind)) = event["function"].as_str().and_then(|name| name.split_once(": ")) else {
            continue;
        };
        let kind = ["allocate", "resize", "free"].iter().position(|known| *known == kind).expect("a known kind");
        counts[kind] += 1;
        counts[3] += if kind == 2 { 0 } else { event["size"].as_u64().expect("a size") };
    }
    counts
}

fn own_counts(outcome: &Outcome) -> [u64; 4] {
    let error = outcome.error();
    let line = error.lines().find(|line| line.split(' ').count() == 4).unwrap_or_else(|| panic!("no counts: {error}"));
    let numbers: Vec<u64> = line.split(' ').map(|number| number.parse().expect("a number")).collect();
    numbers.try_into().expect("four numbers")
}

/// Every request of a Rust program is recorded, also with fat LTO, and its leak has the stack of
/// the program.
#[test]
fn rust_programs_with_mimalloc_are_recorded_exactly() {
    for profile in ["release", "fat"] {
        let recording = Program::new(rust("mimalloc", profile)).recorded();
        let own = own_counts(&recording.outcome);
        let recording = recording.complete();
        is_hooked(&recording, "mimalloc");
        assert_eq!(counted_inside(&recording), own, "{profile}");
        assert_eq!(recording.about().processes[0].allocators[0].events, own[..3].iter().sum::<u64>(), "{profile}");
        let leaks = recording.leaks();
        let known = leaks.iter().find(|leak| (leak.blocks, leak.bytes) == (500, 228_000));
        let is_named = |leak: &Leak| {
            let functions = leak.stack.iter().filter_map(|frame| frame.function.as_deref());
            functions.into_iter().any(|function| function.contains("leaks_here"))
        };
        assert!(known.is_some_and(is_named), "{profile}: {leaks:#?}");
        let text = recording.heaptape(&["leaks"]).success().text();
        assert!(text.contains("leaks_here") && !text.contains("GlobalAlloc"), "{profile}: {text}");
    }
}

/// A system that forbids to change code leaves the program as it is, and the recording says so.
#[test]
fn programs_that_may_not_change_their_code_run_unhooked() {
    let program = linked("bad_alloc.cpp", "libtcmalloc_minimal.a");
    let plain = program.plain().success();
    let launcher = target::c("forbids_code");
    let probe = program.as_arguments_of(Program::new(&launcher)).plain();
    if probe.code() == 77 {
        return;
    }
    let recording = program.as_arguments_of(Program::new(&launcher)).recorded();
    same(&plain, &recording.outcome);
    let about = recording.about();
    let process = about.processes.last().expect("a process");
    assert!(process.own_malloc && process.allocators[0].hooked == 0, "{about:#?}");
    assert!(process.allocators[0].refused[0].why.contains("does not let the process change its code"), "{about:#?}");
    let text = recording.heaptape(&["report"]).text();
    assert!(text.contains("has its own malloc"), "{text}");
}

/// A forked child has the hooks of its parent.
#[test]
fn forked_children_keep_the_hooks() {
    let recording = linked("fork_kinds.c", "libjemalloc_pic.a").args(["fork", "5"]).recorded().success();
    let about = recording.about();
    let forked: Vec<_> = about.processes.iter().filter(|process| process.origin == "fork").collect();
    assert!(!forked.is_empty(), "{about:#?}");
    for process in forked {
        assert!(!process.own_malloc && process.allocators.iter().all(|one| one.hooked > 0), "{process:#?}");
    }
    let report = recording.report();
    assert!(report.processes.iter().all(|process| process.allocs > 0), "{report:#?}");
}

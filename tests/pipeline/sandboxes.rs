//! Sandboxed programs: no system call and no clock of the library kills them, and recording goes
//! on.

use heaptape_tests::{Program, same, target, torture};

fn sandboxed(arguments: &[&str]) -> heaptape_tests::Recording {
    let program = Program::new(target::c("sandbox_kinds")).args(arguments);
    let plain = program.plain().success();
    assert_eq!(plain.text(), "alive\n");
    same(&plain, &program.preloaded());
    let recording = program.recorded();
    same(&plain, &recording.outcome);
    recording
}

#[test]
fn program_without_the_timestamp_counter_is_recorded() {
    for (how, pairs) in [("counter", 100_000), ("strict", 1_000)] {
        let recording = sandboxed(&[how]);
        let report = recording.report();
        let process = report.only("sandbox_kinds");
        process.assert_accounting();
        assert!(process.allocs >= 100 + pairs && process.lost_events == 0, "{how}: {process:#?}");
    }
    torture::passed(23, "ways to disable the timestamp counter", 2);
}

/// Stacks that need a system call are truncated or counted.
#[test]
fn new_stacks_inside_a_sandbox_are_truncated_or_counted() {
    for (arguments, pairs) in
        [(["deep", "3"], 100), (["deep", "300"], 100), (["nodes", "13"], 1 << 13), (["nodes", "17"], 1 << 17)]
    {
        let recording = sandboxed(&arguments);
        let report = recording.report();
        let process = report.only("sandbox_kinds");
        process.assert_accounting();
        assert!(process.allocs >= 100 + pairs && process.lost_events == 0, "{arguments:?}: {process:#?}");
    }
    torture::passed(23, "call stacks first captured inside a sandbox", 1 << 17);
}

/// Nothing tells the library that there is a filter. It asks nothing, since no mapping but the stack
/// can be where the main thread's stack grows.
#[test]
fn filter_that_the_library_does_not_see_kills_nothing() {
    // The second one comes before the first event.
    for how in ["unseen", "first"] {
        let recording = sandboxed(&[how, "300"]);
        let report = recording.report();
        let process = report.only("sandbox_kinds");
        process.assert_accounting();
        assert!(process.allocs >= 100 + 301 + 256 && process.lost_events == 0, "{how}: {process:#?}");
    }
}

#[test]
fn filter_that_fakes_results_does_not_stop_recording() {
    let recording = sandboxed(&["masked"]);
    let report = recording.report();
    assert!(report.only("sandbox_kinds").allocs >= 1_100);
}

#[test]
fn seccomp_queries_are_not_taken_for_a_sandbox() {
    for how in ["ask", "permissive"] {
        let recording = sandboxed(&[how]);
        let report = recording.report();
        let all: Vec<_> = report.all("sandbox_kinds").collect();
        assert_eq!(all.iter().filter(|process| process.allocs == 10).count(), 3, "{how}: {report:#?}");
        let threads = if how == "ask" { 0 } else { 1_000 };
        assert!(all.iter().any(|process| process.allocs >= 100 + threads), "{how}: {report:#?}");
    }
    torture::passed(23, "programs that query seccomp, or forbid none of the library's calls", 2);
}

/// The loader of a program that may not read the library would complain about it. It gets an
/// environment without it, and is named.
#[test]
fn programs_that_landlock_keeps_from_the_library_say_nothing() {
    let program = Program::new(target::c("landlocked")).args(["/bin/echo", "words"]);
    let plain = program.plain().success();
    if plain.text() == "none\n" {
        eprintln!("this kernel has no Landlock");
        return;
    }
    let recording = program.recorded();
    same(&plain, &recording.outcome);
    let named = recording.not_traced("echo");
    assert_eq!(named.len(), 2, "{named:?}");
    assert!(named.iter().all(|why| why.contains("cannot reach the recorder")), "{named:?}");
}

/// Nothing is left to map, neither for the helper that inspects the program nor for lists.
#[test]
fn programs_are_started_rightly_without_any_address_space() {
    const STARTS: usize = 4;
    /// The fourth is a system call of its own, and said otherwise.
    const HOOKED: usize = 3;
    let program = Program::new(target::c("starts_without_room"));
    for arguments in [&[][..], &["sandbox"]] {
        let program = program.clone().args(arguments);
        let plain = program.plain().success();
        assert_eq!(plain.text(), "0 ha\n1 ha\n2 ha\n3 ha\n", "the programs end with 7");
        same(&plain, &program.preloaded());
        let recording = program.recorded();
        same(&plain, &recording.outcome);
        let recorded = recording.report().all("starts_without_room").count();
        let named = recording.not_traced("starts_without_room");
        assert!(named.iter().all(|why| why.contains("sandbox")), "{named:?}");
        let expected = if arguments.is_empty() { (1 + STARTS, 0) } else { (1, HOOKED) };
        assert_eq!((recorded, named.len()), expected, "{named:?}");
    }
}

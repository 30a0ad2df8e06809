//! Children of every kind attach by themselves. Their parents are known, and blocks of the parent
//! are inherited.

use heaptape_tests::oracle::Depth;
use heaptape_tests::{Program, Target, is_full, same, target, torture};

/// Children of a fork are processes of their own.
#[test]
fn children_of_every_kind_of_fork_are_recorded() {
    let count = if is_full() { 300 } else { 3 };
    for kind in ["fork", "_Fork", "raw", "clone", "clone3"] {
        let program = Program::new(target::c("fork_kinds")).arg(kind).arg(count.to_string());
        let plain = program.plain().success();
        same(&plain, &program.preloaded());
        let (recording, report, _) = program.recorded_like_counted(Depth::Live);
        same(&plain, &recording.outcome);
        let recording = recording.complete();
        let all: Vec<_> = report.all("fork_kinds").collect();
        assert_eq!(all.len(), 1 + count, "{kind}: {report:#?}");
        let parent = all.iter().find(|process| process.live_blocks == 2 * count as u64).expect("the parent");
        for child in all.iter().filter(|process| process.pid != parent.pid) {
            assert_eq!((child.allocs, child.frees, child.live_bytes), (5, 2, 3 * 401), "{kind}: {child:#?}");
            assert_eq!(child.ppid, parent.pid, "{kind}");
        }
        drop(recording);
    }
    torture::passed(16, "children by each of 5 kinds of fork", count as u64);
}

/// Children that run in the parent's memory are the parent's events; those that exec are processes
/// of their own.
#[test]
fn children_of_every_kind_of_spawn_are_recorded() {
    let count = if is_full() { 300 } else { 3 };
    for kind in ["vfork", "vfork-exec", "posix_spawn", "system", "popen"] {
        let program = Program::new(target::c("fork_kinds")).arg(kind).arg(count.to_string());
        let plain = program.plain().success();
        same(&plain, &program.preloaded());
        let (recording, report, _) = program.recorded_like_counted(Depth::Live);
        same(&plain, &recording.outcome);
        recording.complete();
        let processes = report.all("fork_kinds").count();
        assert_eq!(processes, if kind == "vfork" { 1 } else { 1 + count }, "{kind}: {report:#?}");
    }
    torture::passed(16, "children by each of 5 kinds of spawn", count as u64);
}

/// The threads of a forked child whose first events come at once: one of them attaches the child,
/// and the others wait for it.
#[test]
fn first_events_of_several_threads_of_a_child_are_recorded() {
    let target = Target::program("child_attach_race.c").flag("-pthread");
    let recording = Program::new(target.build()).recorded().success().complete();
    let report = recording.report();
    assert_eq!(report.processes.len(), 41, "{report:#?}");
    for process in &report.processes {
        assert!(process.allocs >= 200 && process.frees >= 200, "{process:#?}");
    }
}

#[test]
fn inherited_blocks_are_not_leaked_twice() {
    let program = Program::new(target::c("fork_inherited"));
    let plain = program.plain().success();
    let (recording, report, _) = program.recorded_like_counted(Depth::Live);
    same(&plain, &recording.outcome);
    let recording = recording.complete();
    let parent = report.processes.iter().find(|process| process.live_blocks == 8).expect("the parent");
    let child = report.processes.iter().find(|process| process.ppid == parent.pid).expect("the child");
    assert_eq!(parent.live_bytes, 8 * 601, "{parent:#?}");
    assert_eq!((child.inherited_blocks, child.inherited_bytes), (5, 5 * 601), "{child:#?}");
    assert_eq!((child.live_blocks, child.live_bytes), (3, 607 + 2 * 613), "{child:#?}");
    assert_eq!(child.unknown_frees, 0, "{child:#?}");
    let leaked: u64 = recording.leaks().iter().filter(|leak| leak.bytes % 601 == 0).map(|leak| leak.blocks).sum();
    assert_eq!(leaked, 8, "what the child inherited is not leaked twice: {:#?}", recording.leaks());
}

#[test]
fn forks_beside_allocating_threads_are_recorded() {
    let forks: u64 = if is_full() { 1_000 } else { 100 };
    let program = Program::new(target::c("fork_in_threads")).arg(forks.to_string());
    let recording = program.undisturbed().success();
    let recording = recording.complete();
    let report = recording.report();
    let children: Vec<_> =
        report.processes.iter().filter(|process| process.allocs == 100 && process.frees == 100).collect();
    assert_eq!(children.len() as u64, forks, "each child is a process of its own");
    torture::passed(15, "forks while 7 threads allocated", forks);
}

/// A child whose `pthread_atfork` handler allocates has attached before `fork` returns: it is one
/// thread nevertheless.
#[test]
fn child_that_allocates_in_atfork_handler_has_one_thread() {
    let program = Program::new(target::c("fork_atfork")).arg("3");
    let recording = program.undisturbed().success();
    let recording = recording.complete();
    let report = recording.report();
    let children: Vec<_> = report.all("fork_atfork").filter(|process| process.allocs == 1010).collect();
    assert_eq!(children.len(), 3, "{report:#?}");
    let output = recording.heaptape(&["threads", "--json"]).success();
    let threads: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    for process in threads["processes"].as_array().expect("processes") {
        let threads = process["threads"].as_array().expect("threads");
        assert_eq!(threads.len(), 1, "{process:#}");
    }
}

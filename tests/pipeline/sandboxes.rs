//! Programs that shut themselves in: none of our system calls and no look at a clock kills them,
//! and they are recorded on.

use heaptape_tests::{Program, same, target, torture};

fn shut_in(words: &[&str]) -> heaptape_tests::Recording {
    let program = Program::new(target::c("sandbox_kinds")).args(words);
    let plain = program.plain().success();
    assert_eq!(plain.text(), "alive\n");
    same(&plain, &program.preloaded());
    let recording = program.recorded();
    same(&plain, &recording.outcome);
    recording
}

#[test]
fn a_program_without_the_time_stamp_counter() {
    for (how, pairs) in [("counter", 100_000), ("strict", 1_000)] {
        let recording = shut_in(&[how]);
        let report = recording.report();
        let process = report.only("sandbox_kinds");
        process.ledger();
        assert!(process.allocs >= 100 + pairs && process.lost_events == 0, "{how}: {process:#?}");
    }
    torture::passed(23, "ways to lose the time stamp counter", 2);
}

/// What cannot be captured without a system call is cut or counted.
#[test]
fn deeper_and_more_stacks_than_before_the_sandbox() {
    for (words, pairs) in
        [(["deep", "3"], 100), (["deep", "300"], 100), (["nodes", "13"], 1 << 13), (["nodes", "17"], 1 << 17)]
    {
        let recording = shut_in(&words);
        let report = recording.report();
        let process = report.only("sandbox_kinds");
        process.ledger();
        assert!(process.allocs >= 100 + pairs && process.lost_events == 0, "{words:?}: {process:#?}");
    }
    torture::passed(23, "stacks that were first seen inside a sandbox", 1 << 17);
}

#[test]
fn a_filter_that_answers_for_the_kernel() {
    let recording = shut_in(&["masked"]);
    let report = recording.report();
    assert!(report.only("sandbox_kinds").allocs >= 1_100);
}

#[test]
fn asking_about_seccomp_is_no_sandbox() {
    for how in ["ask", "permissive"] {
        let recording = shut_in(&[how]);
        let report = recording.report();
        let all: Vec<_> = report.all("sandbox_kinds").collect();
        assert_eq!(all.iter().filter(|process| process.allocs == 10).count(), 3, "{how}: {report:#?}");
        let threads = if how == "ask" { 0 } else { 1_000 };
        assert!(all.iter().any(|process| process.allocs >= 100 + threads), "{how}: {report:#?}");
    }
    torture::passed(23, "programs that ask about seccomp, or forbid nothing of ours", 2);
}

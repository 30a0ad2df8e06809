//! The recorder, or a reader, has no memory from some allocation on: it may end, and the program
//! and what was written stay unharmed.

use heaptape_tests::recording::heaptape;
use heaptape_tests::{Program, Target, is_full, target, test_env, torture};
use std::ffi::OsStr;

/// Returns the numbers of the allocations that fail: each of the first ones, then at growing
/// distances.
fn numbers(most: u64) -> impl Iterator<Item = u64> {
    let (step, first) = if is_full() { (50, 60) } else { (4, 6) };
    let next = move |number: &u64| Some(number + (number / step).max(1) + u64::from(*number > first));
    std::iter::successors(Some(1), next).take_while(move |number| *number < most)
}

fn without_memory(program: Program, from: u64, once: bool) -> Program {
    let program = program.env("LD_PRELOAD", Target::library("fails_nth.c").build()).env("FAILS_FROM", from.to_string());
    if once { program.env("FAILS_ONCE", "1") } else { program }
}

#[test]
fn failed_allocations_of_the_recorder_harm_no_program() {
    let pairs = target::c("pairs");
    let plain = Program::new(&pairs).args(["60000", "2"]).plain().success();
    let mut tried = 0;
    for (number, once) in numbers(40_000).flat_map(|number| [(number, false), (number, true)]) {
        let directory = test_env::folder();
        let folder = directory.path().join("r");
        let recorder = Program::new(test_env::command()).args(["record", "-q", "-o"]).arg(&folder).arg("--");
        let recorder = without_memory(recorder, number, once).arg(&pairs).args(["60000", "2"]);
        let outcome = recorder.plain();
        let what = format!("no memory from allocation {number} on (once: {once}): {outcome}");
        let ran = outcome.stdout == plain.stdout;
        assert!(ran || outcome.stdout.is_empty(), "{what}");
        assert!(!outcome.error().contains("panicked"), "{what}");
        assert!(ran || outcome.code() != 0, "a program that was not started is no success: {what}");
        if folder.exists() {
            heaptape(["record", "--quiet", "--resume"].map(OsStr::new).into_iter().chain([folder.as_os_str()]));
            let output = heaptape([OsStr::new("verify"), folder.as_os_str()]);
            assert!(output.code() <= 2 && !output.error().contains("panicked"), "{what}{output}");
        }
        tried += 1;
    }
    torture::passed(35, "failed allocations of the recorder with an unharmed program", tried);
}

#[test]
fn failed_allocations_of_a_reader_give_no_wrong_answer() {
    let recording = Program::new("ls").args(["-l", "/"]).recorded().success();
    let mut tried = 0;
    for command in ["report", "leaks", "verify"] {
        let whole = recording.heaptape(&[command]).success();
        for (number, once) in numbers(200_000).flat_map(|number| [(number, false), (number, true)]) {
            let reader = Program::new(test_env::command()).arg(command).arg(&recording.folder);
            let output = without_memory(reader, number, once).plain();
            let what = format!("{command}, no memory from allocation {number} on (once: {once}): {output}");
            assert!(!output.error().contains("panicked"), "{what}");
            // The answer is right, or the command reports an error.
            assert!(output.stdout == whole.stdout || output.code() > 1 && !output.error().is_empty(), "{what}");
            tried += 1;
        }
    }
    torture::passed(35, "failed allocations of a reader", tried);
}

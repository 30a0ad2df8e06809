//! Hooks that are left by a jump: the recording goes on, and lost events are counted.

use heaptape_tests::{Program, is_full, same, target, torture};

#[test]
fn siglongjmp_out_of_hooks_loses_at_most_that_event() {
    let jumps: u64 = if is_full() { 200_000 } else { 5_000 };
    let program = Program::new(target::signal_safe("jumps_out")).arg(jumps.to_string());
    let plain = program.plain().success();
    let recording = program.recorded();
    same(&plain, &recording.outcome);
    let report = recording.report();
    let process = report.only("jumps_out");
    process.assert_accounting();
    // At most one event per jump may be lost, and the 100,000 pairs after them are recorded.
    assert!(process.lost_events <= jumps * 2, "{process:#?}");
    assert!(process.allocs >= 100_000 && process.frees >= 100_000, "{process:#?}");
    torture::passed(14, "jumps out of hooks by siglongjmp", jumps);
}

#[test]
fn asynchronous_cancellation_keeps_the_accounting() {
    let threads: u64 = if is_full() { 20_000 } else { 300 };
    let program = Program::new(target::signal_safe("cancels")).arg(threads.to_string());
    let plain = program.plain().success();
    let recording = program.recorded();
    same(&plain, &recording.outcome);
    let report = recording.report();
    let process = report.only("cancels");
    process.assert_accounting();
    assert!(process.allocs >= 10_000 && process.frees >= 10_000, "{process:#?}");
    torture::passed(14, "threads cancelled at any instruction", threads);
}

/// On a stack that is not the thread's own, too, a jump loses only the event that it interrupted.
#[test]
fn siglongjmp_out_of_hooks_on_a_coroutine_stack_loses_at_most_that_event() {
    let jumps: u64 = if is_full() { 20_000 } else { 1_000 };
    let program = Program::new(target::signal_safe("jumps_out_of_coroutine")).arg(jumps.to_string());
    let plain = program.plain().success();
    let recording = program.recorded();
    same(&plain, &recording.outcome);
    let report = recording.report();
    let process = report.only("jumps_out_of_coroutine");
    process.assert_accounting();
    assert!(process.lost_events <= jumps * 2, "{process:#?}");
    assert!(process.allocs >= 120_000 && process.frees >= 120_000, "{process:#?}");
    torture::passed(14, "jumps out of hooks on the stack of a coroutine", jumps);
}

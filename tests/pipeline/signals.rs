//! Signal handlers that allocate and fork while they interrupt hooks.

use heaptape_tests::wait::until;
use heaptape_tests::{Process, Program, is_full, ring, run, target, torture};
use nix::sys::signal::{Signal, kill};
use std::time::Duration;

#[test]
fn allocations_of_handlers_inside_hooks_are_recorded() {
    let rounds: u64 = if is_full() { 5_000_000 } else { 200_000 };
    let program = Program::new(target::signal_safe("signal_storm")).arg(rounds.to_string());
    program.plain().success();
    let recording = program.recorded().success();
    let handled: u64 = recording.outcome.text().trim().parse().expect("how often the handler ran");
    let report = recording.report();
    let process = report.only("signal_storm");
    process.assert_accounting();
    assert_eq!(process.lost_events, 0, "{process:#?}");
    // A resize of a block into a block; pthread_create allocates a little besides.
    let (allocs, resizes) = (4 * rounds + handled, rounds + handled);
    assert!((allocs..allocs + 20).contains(&process.allocs), "{allocs} allocations: {process:#?}");
    assert_eq!(process.resizes, resizes, "{process:#?}");
    assert!((allocs..allocs + 20).contains(&process.frees), "{allocs} frees: {process:#?}");
    assert_eq!(process.unknown_frees, 0, "{process:#?}");
    torture::passed(13, "signals whose handlers allocated", handled);
}

/// A handler may interrupt a hook that emits what an earlier handler has left: no event is emitted twice,
/// none is lost, and each block is freed after its allocation.
#[cfg(target_arch = "x86_64")] // It has the processor stop after each instruction.
#[test]
fn handlers_interrupt_hooks_that_emit_deferred_events() {
    let rounds = if is_full() { 2_000 } else { 100 };
    let program = Program::new(target::signal_safe("interrupts_hooks")).arg(rounds.to_string());
    program.plain().success();
    let recording = program.recorded().success();
    let handled: u64 = recording.outcome.text().trim().parse().expect("how often the handler allocated");
    assert!(handled > 2 * rounds, "{handled}");
    let report = recording.report();
    let process = report.only("interrupts_hooks");
    process.assert_accounting();
    let all = 1 + rounds + handled;
    assert_eq!((process.allocs, process.resizes, process.frees), (all, all, all), "{process:#?}");
    assert_eq!((process.lost_events, process.unknown_frees), (0, 0), "{process:#?}");
}

/// While a hook waits for space in its ring, handlers interrupt it thousands of times.
#[test]
fn allocations_of_handlers_inside_waiting_hooks_are_recorded() {
    let program = Program::new(target::signal_safe("signal_storm")).arg("200000");
    let recording = program.option(ring(4)).recorded_while(|command, folder| {
        let survivor = run::survivor(command);
        // Before, it would go on without us when it has waited long enough.
        until("the program is recorded", || run::has_events(folder));
        for round in 0..4 {
            std::thread::sleep(Duration::from_millis(200));
            if command.try_wait().expect("waits").is_some() {
                break;
            }
            // The program and its recorder may end at any moment, also before a signal takes effect.
            let stopped = kill(survivor, Signal::SIGSTOP);
            assert!(stopped.is_ok() || round > 0, "{stopped:?}");
            std::thread::sleep(Duration::from_millis(600));
            let _ = kill(survivor, Signal::SIGCONT);
        }
    });
    let recording = recording.success().complete();
    assert_eq!(recording.report().only("signal_storm").lost_events, 0);
}

#[test]
fn forks_of_handlers_inside_hooks_are_recorded() {
    let forks: u64 = if is_full() { 10_000 } else { 100 };
    for how in [None, Some("raw"), Some("atfork"), Some("data")] {
        let program = Program::new(target::signal_safe("fork_in_handler")).arg(forks.to_string()).args(how);
        let recording = program.undisturbed().success();
        let report = recording.report();
        report.processes.iter().for_each(Process::assert_accounting);
        let (parents, children): (Vec<_>, Vec<_>) =
            report.all("fork_in_handler").partition(|process| process.allocs > 1_000);
        assert_eq!(parents.len(), 1, "{how:?}: {report:#?}");
        // What the interrupted call of the parent still does in the child is one event more.
        let is_exact =
            |process: &&Process, allocs| (allocs..=allocs + 1).contains(&process.allocs) && process.lost_events == 0;
        let count = |allocs| children.iter().filter(|process| is_exact(process, allocs)).count() as u64;
        match how {
            Some("atfork") => assert_eq!((count(131), count(110)), (forks, forks), "{how:?}: {report:#?}"),
            Some("data") => {
                let named = recording.not_traced("fork_in_handler");
                assert!(named.iter().all(|why| why.contains("limit on memory")), "{how:?}: {named:?}");
                assert_eq!(count(100) + named.len() as u64, forks, "{how:?}: {report:#?}");
            }
            _ => assert_eq!(count(100), forks, "{how:?}: {report:#?}"),
        }
    }
    torture::passed(17, "forks in signal handlers", 4 * forks);
}

/// Signals wait while a program that is to be started is inspected, and their handlers run right
/// after that, inside the library.
#[test]
fn handlers_inside_starts_of_programs_have_whole_stacks() {
    for how in ["execv", "syscall"] {
        let program = Program::new(target::c("signals_in_starts")).args([how, "1000"]);
        let recording = program.recorded().complete();
        assert!(recording.report().only("signals_in_starts").allocs >= 1000, "{how}");
    }
}

/// A handler may interrupt the library at each of its instructions, and its stack is whole there.
#[cfg(target_arch = "x86_64")] // It has the processor stop after each instruction.
#[test]
fn stacks_of_handlers_are_whole_at_each_instruction_of_the_hooks() {
    use heaptape_tests::{Target, recording::Leak};
    let allocator = Target::library("signal_safe_allocator.c").build();
    // The loader's code that binds a symbol at its first call needs a register that is not followed.
    let program = Target::program("steps_through_hooks.c").with(&allocator).libraries(&["-lstdc++"]);
    let program = Program::new(program.flag("-Wl,-z,now").build());
    program.plain().success();
    let recording = program.recorded().success();
    let steps: u64 = recording.outcome.text().trim().parse().expect("the steps");
    let report = recording.report();
    let process = report.only("steps_through_hooks");
    process.assert_accounting();
    // A handler inside a hook keeps a few events until that ends.
    assert!(steps > 10_000 && process.lost_events < 100, "{steps} steps, {process:#?}");
    let leaks = recording.leaks_as(&["--by", "stack"]);
    let is_a_step = |leak: &&Leak| leak.bytes == 77 * leak.blocks && leak.functions().contains(&"step");
    let of_steps: Vec<&Leak> = leaks.iter().filter(is_a_step).collect();
    let blocks: u64 = of_steps.iter().map(|leak| leak.blocks).sum();
    assert!(blocks + process.lost_events >= steps, "{blocks} of {steps}");
    for leak in of_steps {
        assert!(leak.functions().contains(&"main"), "{leak:#?}");
    }
}

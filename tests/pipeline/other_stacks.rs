//! Stacks that are not a thread's own: reading them cannot fault, and needs no system call once
//! they are known.

use heaptape_tests::{Program, Target, is_full, same, target, test_env, torture};
use nix::libc;

/// Returns the number of lines of strace that are not of the program: all, and those after it has said
/// that its stacks are known.
fn system_calls(how: &str, pairs: &str) -> (usize, usize) {
    let folder = test_env::folder();
    let file = folder.path().join("calls");
    let program =
        Program::new("strace").args(["-f", "-o"]).arg(&file).arg(target::c("other_stacks")).args([how, pairs]);
    program.recorded().success();
    let text = std::fs::read_to_string(file).expect("strace's output");
    let ours = |line: &&str| ["EINVAL", "process_vm_readv", "gettid"].iter().any(|name| line.contains(name));
    let after = text.split_once("\"known\\n\"").map_or("", |(_, after)| after);
    assert!(how == "interrupts" || !after.is_empty(), "{text}");
    (text.lines().filter(ours).count(), after.lines().filter(ours).count())
}

#[test]
fn known_stacks_need_no_system_call() {
    for how in ["coroutine", "forked", "split"] {
        let (all, after) = system_calls(how, "20000");
        assert!(all > 3 && after <= 3, "{how}: {all} system calls, {after} of them once the stacks are known");
    }
    torture::passed(63, "kinds of stack that no thread owns, without a system call", 3);
}

/// What a handler on the alternate stack interrupted may be gone, so the kernel copies it. A call for each
/// word took longer than the interval of a timer, whose handlers then ran for ever.
#[test]
fn interrupted_stacks_are_copied_in_few_calls() {
    let ((few, _), (many, _)) = (system_calls("interrupts", "100"), system_calls("interrupts", "1100"));
    let each = (many - few) / 1000;
    assert!((1..=30).contains(&each), "{each} system calls for each of 1,000 stacks of 64 calls");
}

/// The first call of each function that heaptape intercepts, on the stack of a new thread and on
/// one that no thread knows, takes at most 2.5 KiB more than without it, and 4 KiB in all.
#[test]
fn calls_take_a_bounded_part_of_the_callers_stack() {
    const MORE: usize = 2_560;
    const ALL: usize = 4_096;
    // Bound at the start: the loader's search at a first call takes 3 KiB.
    let program = Target::program("stack_need.cpp").flag("-pthread").flag("-Wl,-z,now").build();
    for how in ["thread", "other"] {
        let program = Program::new(&program).arg(how);
        let needs = |text: String| -> Vec<(String, usize)> {
            let line =
                |line: &str| line.split_once(' ').map(|(name, bytes)| (name.to_owned(), bytes.parse().expect("bytes")));
            text.lines().map(|text| line(text).expect("a name and bytes")).collect()
        };
        let plain = needs(program.plain().success().text());
        let recorded = needs(program.recorded().success().outcome.text());
        assert_eq!((plain.len(), recorded.len()), (32, 32), "{plain:?} {recorded:?}");
        for ((name, plain), (_, recorded)) in plain.into_iter().zip(recorded) {
            assert!(recorded <= ALL && recorded <= plain + MORE, "{how}, {name}: {plain} bytes, {recorded} recorded");
        }
    }
}

#[test]
fn stacks_of_coroutines_forked_threads_and_split_stacks_are_complete() {
    for (how, depth, outermost) in [("coroutine", 11, "coroutine"), ("forked", 11, "forks"), ("split", 202, "main")] {
        let program = Program::new(target::c("other_stacks")).args([how, "20000"]);
        let recording = program.undisturbed().success();
        let leaks = recording.leaks();
        let leak = leaks.iter().find(|leak| leak.bytes == 1709).expect("the block that was kept");
        let names = leak.functions();
        assert!(names.len() >= depth && names.contains(&outermost), "{how}: {names:?}");
    }
}

/// What the handler has interrupted is the main thread's stack, of which nothing is known yet, and a
/// filter kills for the question. `starts` installs it, so it is known.
#[test]
fn first_event_in_a_handler_on_an_alternate_stack_has_its_whole_stack() {
    let (starts, program) = (target::c("starts"), target::c("handler_first"));
    let number = libc::SYS_process_vm_readv.to_string();
    let filtered = Program::new(&starts).args(["filter", "kill", &number]).arg(&program);
    for program in [Program::new(&program), filtered] {
        let recording = program.recorded().complete();
        let leaks = recording.leaks();
        let leak = leaks.iter().find(|leak| leak.bytes == 1709).expect("the block that was kept");
        let names = leak.functions();
        let own = |name: &&&str| ["allocates", "handles", "interrupted", "main"].contains(name);
        assert_eq!(names.iter().filter(own).count(), 4, "{names:?}");
    }
}

#[test]
fn frame_pointer_to_unmapped_memory_does_not_fault() {
    let pairs = if is_full() { "20000000" } else { "200000" };
    let program = Program::new(target::c("other_stacks")).args(["guess", pairs]);
    let plain = program.plain().success();
    same(&plain, &program.recorded().outcome);
    torture::passed(63, "stack walks through a pointer to unmapped memory", pairs.parse().unwrap_or_default());
}

/// The program may unmap what a walk and its tables read.
#[test]
fn program_that_unmaps_its_header_is_recorded() {
    let program = Program::new(Target::program("hides_header.c").flag("-Wl,-z,now").build());
    let plain = program.plain().success();
    same(&plain, &program.preloaded());
    let recording = program.recorded().complete();
    same(&plain, &recording.outcome);
    let leaks = recording.leaks();
    let leak = leaks.iter().find(|leak| leak.bytes == 701).expect("the block that was kept");
    assert!(leak.functions().contains(&"main"), "{leak:#?}");
}

#[test]
fn calls_with_a_misaligned_stack_are_recorded() {
    let program = Program::new(target::c("misaligned"));
    let plain = program.plain().success();
    same(&plain, &program.preloaded());
    // Its assembly moves the stack pointer and has no unwind data for that, so where its stacks end
    // depends on the words that are there by chance.
    let recording = program.recorded();
    same(&plain, &recording.outcome);
    let report = recording.report();
    let process = report.only("misaligned");
    process.assert_accounting();
    assert!(process.allocs >= 1 << 10 && process.lost_events == 0, "{process:#?}");
}

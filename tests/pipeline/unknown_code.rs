//! Code without unwind data: generated at run time, or built without tables. Guesses are checked,
//! and what was found is kept, so that no event costs a system call.

use heaptape_tests::recording::Leak;
use heaptape_tests::{Program, Recording, Target, same, target, test_env};
use std::path::{Path, PathBuf};

fn without_tables() -> PathBuf {
    let target = Target::program("unknown_code.c").flag("-fno-asynchronous-unwind-tables").flag("-fno-unwind-tables");
    target.flag("-fomit-frame-pointer").named("without_tables").build()
}

#[track_caller]
fn leak(recording: &Recording) -> Leak {
    let mut leaks = recording.leaks();
    leaks.retain(|leak| leak.bytes == 809);
    assert_eq!(leaks.len(), 1, "one leak: {leaks:#?}");
    leaks.remove(0)
}

/// What a frame pointer points to by chance is no frame, even if it looks like one.
#[test]
fn values_that_are_no_return_addresses_are_no_frames() {
    for count in 1..=5 {
        let program = Program::new(target::c("unknown_code")).args(["garbage", &count.to_string()]);
        let plain = program.plain().success();
        let recording = program.recorded();
        same(&plain, &recording.outcome);
        let leak = leak(&recording);
        let functions = leak.functions();
        assert!(functions.len() == 2 && functions[0] == "inner", "with words of kind {count}: {leak:#?}");
    }
}

#[test]
fn stacks_continue_through_code_that_keeps_frame_pointers() {
    let recording = Program::new(target::c("unknown_code")).args(["frames", "3"]).recorded().complete();
    let leak = leak(&recording);
    let functions = leak.functions();
    assert_eq!((functions[0], functions[2]), ("inner", "main"), "{leak:#?}");
    assert!(functions.contains(&"_start"), "{leak:#?}");
}

/// Without tables and frame pointers callers may be unknown, but none is invented.
#[test]
fn stacks_without_tables_have_only_callers() {
    let recording = Program::new(without_tables()).args(["chain", "3"]).recorded().success();
    let leak = leak(&recording);
    let functions = leak.functions();
    assert_eq!(functions[0], "inner", "{leak:#?}");
    let callers = ["inner", "middle", "outer", "main", "__libc_start_call_main", "__libc_start_main", "_start"];
    assert!(functions.iter().all(|name| callers.iter().any(|caller| name.starts_with(caller))), "{leak:#?}");
}

/// A frame pointer that two functions leave alone leads from the innermost one to the caller of the
/// outermost. The innermost is not shown as called from there.
#[test]
fn functions_that_a_guess_leaves_out_are_shown_as_a_gap() {
    let recording = Program::new(without_tables()).args(["skip", "3"]).recorded().success();
    let leak = leak(&recording);
    let functions = leak.functions();
    assert_eq!(functions[..3], ["inner", "[skipped frames]", "main"], "{leak:#?}");
}

/// Stacks that end early are counted, with module and reason, and the recording is not complete.
#[test]
fn early_ends_of_stacks_are_counted() {
    let ends = |program: Program| {
        let recording = program.recorded().success();
        let report: serde_json::Value =
            serde_json::from_str(&recording.heaptape(&["report", "--json"]).text()).expect("JSON");
        (report["processes"][0]["early_ends"].clone(), recording.heaptape(&["verify"]))
    };
    let made = || Program::new(target::c("unknown_code"));
    let (found, verdict) = ends(made().args(["garbage", "50"]));
    assert_eq!(
        (found["allocations"].as_u64(), found["modules"][0]["module"].as_str()),
        (Some(51), Some("")),
        "{found}"
    );
    assert_eq!(verdict.code(), 1, "{verdict}");
    assert!(verdict.text().contains("end early: 51 in no module"), "{verdict}");
    let (found, verdict) = ends(Program::new(without_tables()).args(["chain", "50"]));
    let module = found["modules"][0]["module"].as_str().unwrap_or_default();
    assert!(module.ends_with("/without_tables"), "{found}");
    assert_eq!(verdict.code(), 1, "{verdict}");
    // Guesses that reach the entry, and the depth limit, are no early ends.
    for program in [made().args(["frames", "50"]), Program::new(target::c("deep")).arg("900").option("--max-frames=8")]
    {
        let (found, verdict) = ends(program);
        assert!(found.is_null() && verdict.code() == 0, "{found} {verdict}");
    }
}

/// Returns how often a program called the kernel in ways that the unwinder does.
fn calls(program: &Path, arguments: &[&str]) -> u64 {
    const OURS: [&str; 5] = ["process_vm_readv", "rt_sigprocmask", "openat", "read", "pread64"];
    let folder = test_env::folder();
    let counts = folder.path().join("counts");
    let strace = Program::new("strace").args(["-f", "-c", "-o"]).arg(&counts).arg(program).args(arguments);
    strace.recorded().success();
    let text = std::fs::read_to_string(&counts).expect("the table of strace");
    let count = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let name = fields.last()?;
        OURS.contains(name).then(|| fields[3].parse::<u64>().expect("a number of calls"))
    };
    text.lines().filter_map(count).sum()
}

#[test]
fn unknown_code_costs_no_system_calls_for_events() {
    let (made, without) = (target::c("unknown_code"), without_tables());
    let programs = [(&made, "garbage"), (&made, "frames"), (&without, "chain")];
    for (program, how) in programs {
        let [few, many] = ["1000", "20000"].map(|count| calls(program, &[how, count]));
        assert!(many <= few + 20, "{how}: {few} calls for 1,000 blocks, {many} for 20,000");
    }
    // The code of each function is read once.
    let [few, many] = ["4096", "20000"].map(|count| calls(&made, &["copies", count]));
    assert!(many <= few + 20, "copies: {few} calls for 4,096 blocks, {many} for 20,000");
}

/// The official node has gaps between its segments, and generates code.
#[test]
fn node_costs_no_system_calls_for_events() {
    let [few, many] = ["100", "10100"].map(|count| {
        let script = format!("for (let i = 0; i < {count}; i++) Buffer.alloc(20000)");
        calls(&test_env::need("node"), &["-e", &script])
    });
    assert!(many <= few + 1_000, "{few} calls for 100 buffers, {many} for 10,100");
}

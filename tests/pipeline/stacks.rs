//! Captured stacks against call chains that are known by name.

use heaptape_tests::{Program, Target, own, same, target, test_env, torture};

/// Asserts that the leak of `bytes` bytes has these consecutive functions, innermost first, and
/// that its stack reaches `outermost`.
#[track_caller]
fn chain(leaks: &[heaptape_tests::recording::Leak], bytes: u64, functions: &[&str], outermost: &str) {
    let found: Vec<_> = leaks.iter().filter(|leak| leak.bytes == bytes).collect();
    assert_eq!(found.len(), 1, "one leak of {bytes} bytes in {leaks:#?}");
    let names = found[0].functions();
    assert!(
        names.windows(functions.len()).any(|window| window == functions),
        "{bytes} bytes: {functions:?} in {names:?}"
    );
    assert!(names.contains(&outermost), "{bytes} bytes: {names:?} reaches {outermost}");
}

#[test]
fn captured_stacks_match_known_call_chains() {
    let program = Program::new(target::c("known_stacks"));
    let plain = program.plain().success();
    let recording = program.recorded().complete();
    same(&plain, &recording.outcome);
    let leaks = recording.leaks();
    chain(&leaks, 3001, &["leaf", "plain_c", "plain_b", "plain_a", "main"], "main");
    chain(&leaks, 3011, &["leaf", "with_alloca", "main"], "main");
    chain(&leaks, 3019, &["leaf", "with_aligned_frame", "main"], "main");
    chain(&leaks, 3023, &["leaf", "with_aligned_alloca", "main"], "main");
    chain(&leaks, 3037, &["leaf", "with_variable_array", "main"], "main");
    chain(&leaks, 3041, &["leaf", "compares"], "main");
    chain(&leaks, 3041, &["sorts", "main"], "main");
    chain(&leaks, 3049, &["leaf", "handles"], "main");
    chain(&leaks, 3049, &["interrupted", "main"], "main");
    chain(&leaks, 3061, &["leaf", "in_thread"], "in_thread");
    chain(&leaks, 3067, &["leaf", "at_exit"], "at_exit");
    chain(&leaks, 3079, &["leaf", "recurses", "recurses"], "main");
    chain(&leaks, 3083 * 3, &["leaf", "by_pointer", "main"], "main");
    chain(&leaks, 3089, &["twin_leaf", "twin_b", "twin_one", "main"], "main");
    chain(&leaks, 3109, &["twin_leaf", "twin_b", "twin_two", "main"], "main");
    let recursion = leaks
        .iter()
        .find(|leak| leak.bytes == 3079)
        .map(heaptape_tests::recording::Leak::functions)
        .unwrap_or_default();
    assert_eq!(recursion.iter().filter(|name| **name == "recurses").count(), 301, "all frames of the recursion");
}

#[test]
fn frames_have_source_lines() {
    let recording = Program::new(target::c("known_stacks")).recorded().complete();
    let leaks = recording.leaks();
    let leak = leaks.iter().find(|leak| leak.bytes == 3001).expect("the leak");
    let frame = &leak.stack[0];
    assert!(frame.file.as_deref().is_some_and(|file| file.ends_with("known_stacks.c")), "{frame:?}");
    let text = std::fs::read_to_string(test_env::programs().join("known_stacks.c")).expect("the source");
    let line = text.lines().position(|line| line.contains("void leaf(")).map(|index| index as u64 + 1);
    assert_eq!(frame.line, line, "{frame:?}");
}

/// Frames without frame pointers, through a stripped libc, in C++ with exceptions.
#[test]
fn exceptions_through_hooks_keep_the_accounting() {
    let program = Program::new(Target::program("exceptions.cpp").build());
    let plain = program.plain().success();
    let (recording, report, _) = program.recorded_like_counted(heaptape_tests::oracle::Depth::Peak);
    same(&plain, &recording.outcome);
    recording.complete();
    assert!(report.only("exceptions").frees >= 100_000);
    torture::passed(14, "exceptions through callers of hooks", 6_000);
}

#[test]
fn very_deep_recursion_is_recorded() {
    let program = Program::new(target::c("deep")).arg("90000");
    let plain = program.plain().success();
    let folder = test_env::folder();
    let file = folder.path().join("own");
    let recording = program.env("OWN_FILE", &file).recorded();
    same(&plain, &recording.outcome);
    let recording = recording.complete();
    own::equal(&own::read(&file), &own::recorded(&recording));
}

#[test]
fn small_alternate_and_coroutine_stacks_are_recorded() {
    for name in ["tiny_stack", "alternate_stack", "coroutines"] {
        let folder = test_env::folder();
        let file = folder.path().join("own");
        let program = Program::new(target::bound_at_start(name)).env("OWN_FILE", &file);
        let plain = program.plain().success();
        std::fs::remove_file(&file).expect("own figures");
        same(&plain, &program.preloaded());
        std::fs::remove_file(&file).expect("own figures");
        let recording = program.recorded();
        same(&plain, &recording.outcome);
        let recording = recording.complete();
        own::equal(&own::read(&file), &own::recorded(&recording));
        let function = match name {
            "alternate_stack" => "takes_in_handler",
            "coroutines" => "takes_in_coroutine",
            _ => continue,
        };
        let leaks = recording.leaks();
        let known = leaks.iter().any(|leak| leak.bytes > 1000 && leak.functions().contains(&function));
        assert!(known, "the caller on the other stack is known: {leaks:#?}");
    }
    torture::passed(12, "kinds of small stack", 3);
}

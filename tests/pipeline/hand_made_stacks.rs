//! Stacks that a program makes by hand: what is below their first function is no caller.

use heaptape_tests::{Program, Recording, same, target};

/// The functions of the one leak on the stack, and how many stacks end early.
fn recorded(how: &str) -> (Vec<String>, u64, Recording) {
    let program = Program::new(target::c("hand_made_stack")).args([how, "50"]);
    let plain = program.plain().success();
    let recording = program.recorded();
    same(&plain, &recording.outcome);
    let mut leaks = recording.leaks();
    leaks.retain(|leak| leak.bytes == 821);
    assert_eq!(leaks.len(), 1, "one leak: {leaks:#?}");
    let functions = leaks[0].functions().into_iter().map(str::to_owned).collect();
    let report: serde_json::Value =
        serde_json::from_str(&recording.heaptape(&["report", "--json"]).text()).expect("JSON");
    let early = report["processes"][0]["early_ends"]["allocations"].as_u64().unwrap_or_default();
    (functions, early, recording)
}

/// What is no address of a program ends the stack early, and is no frame.
#[test]
fn word_that_is_no_address_is_no_frame() {
    for how in ["garbage", "small", "negative"] {
        let (functions, early, recording) = recorded(how);
        assert_eq!((&functions[..], early), (&["takes".to_owned(), "runs".to_owned()][..], 50), "{how}");
        recording.heaptape(&["verify"]).exits(1);
    }
}

/// A return address that is a function's start is that function's, and not that of the one before.
#[test]
fn start_of_a_function_is_not_a_call_of_the_one_before() {
    let (functions, early, recording) = recorded("start");
    assert_eq!((&functions[..], early), (&["takes", "runs", "never"].map(str::to_owned)[..], 0));
    recording.heaptape(&["verify"]).success();
}

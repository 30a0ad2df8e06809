//! The GitHub action of `packaging/`, run by `scripts/play-runner` as a runner would.

use heaptape_tests::{Target, test_env};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

/// What the runner saw.
struct Run {
    status: Option<i32>,
    /// Outputs, uploads, annotations and the step summary.
    seen: Value,
    messages: String,
}

impl Run {
    fn annotations(&self) -> Vec<&str> {
        let annotations = self.seen["annotations"].as_array().expect("a list of annotations");
        annotations.iter().filter_map(Value::as_str).collect()
    }

    fn summary(&self) -> &str {
        self.seen["summary"].as_str().expect("a summary")
    }
}

/// Runs the action in `folder` with these inputs.
fn play(folder: &Path, inputs: &[(&str, &str)]) -> Run {
    let root = test_env::root();
    let ended = Command::new(root.join("scripts/play-runner"))
        .arg(root.join("packaging/github-action"))
        .arg(format!("heaptape={}", test_env::command().display()))
        .args(inputs.iter().map(|(name, value)| format!("{name}={value}")))
        .current_dir(folder)
        .output()
        .expect("the runner starts");
    let messages = String::from_utf8_lossy(&ended.stderr).into_owned();
    let seen = serde_json::from_slice(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {messages}"));
    Run { status: ended.status.code(), seen, messages }
}

#[test]
fn thresholds_fail_the_step_and_name_the_leak() {
    let folder = test_env::folder();
    let shop = Target::program("leaks/shop.c").build();
    let run = play(
        folder.path(),
        &[
            ("run", &shop.to_string_lossy()),
            ("fail-if", "leaked > 1MiB\n\n# A comment.\n  leaked.blocks > 50\npeak > 10KiB"),
            ("upload-sarif", "true"),
        ],
    );
    assert_eq!(run.status, Some(1), "{}", run.messages);
    assert_eq!(run.annotations().len(), 2, "one per exceeded threshold: {:?}", run.annotations());
    assert!(run.annotations().iter().all(|line| line.starts_with("::error title=heaptape threshold::")));
    assert!(run.summary().contains("ok: leaked = ") && run.summary().contains("FAILED: leaked.blocks = 51"));
    assert!(run.summary().contains("load_order"), "the leak is named: {}", run.summary());

    let uploads = run.seen["uploads"].as_array().expect("uploads");
    assert_eq!(uploads.len(), 2, "artifact and SARIF");
    let output = |name: &str| folder.path().join(run.seen["outputs"][name].as_str().expect("an output"));
    let sarif: Value = serde_json::from_slice(&fs::read(output("sarif")).expect("the SARIF file")).expect("JSON");
    let results = sarif["runs"][0]["results"].as_array().expect("results");
    assert!(!results.is_empty(), "an exceeded threshold for leaks is an alert");
    let junit = fs::read_to_string(output("junit")).expect("the JUnit file");
    assert_eq!(junit.matches("<testcase ").count(), 3);
    assert_eq!(junit.matches("<failure ").count(), 2);
    assert_eq!((junit.matches("<testsuites>").count(), junit.matches("</testsuites>").count()), (1, 1));
    let page = fs::read_to_string(output("page")).expect("the page");
    assert!(page.starts_with("<!doctype html>") || page.starts_with("<!DOCTYPE html>"));
    let verified = Command::new(test_env::command()).arg("verify").arg(output("recording")).output().expect("verify");
    assert_eq!(verified.status.code(), Some(0), "{}", String::from_utf8_lossy(&verified.stderr));
}

#[test]
fn a_recording_below_all_thresholds_passes_and_is_a_baseline() {
    let folder = test_env::folder();
    let (less, more) =
        (Target::program("leaks/shop.c").build(), Target::program("leaks/shop.c").flag("-DMORE").build());
    let before =
        play(folder.path(), &[("run", &less.to_string_lossy()), ("fail-if", "peak > 1GiB"), ("output", "before")]);
    assert_eq!(before.status, Some(0), "{}", before.messages);
    assert!(before.annotations().is_empty(), "{:?}", before.annotations());
    let after = play(
        folder.path(),
        &[
            ("run", &more.to_string_lossy()),
            ("fail-if", "diff.live > 5%"),
            ("baseline", "before/recording"),
            ("output", "after"),
        ],
    );
    assert_eq!(after.status, Some(1), "a tenth more: {}", after.messages);
    assert!(after.summary().contains("load_order"), "{}", after.summary());
}

#[test]
fn a_failing_command_has_its_own_status_and_nothing_recorded_is_no_pass() {
    let folder = test_env::folder();
    let failing = play(folder.path(), &[("run", "sh -c 'exit 7'"), ("fail-if", "peak > 1GiB"), ("output", "failing")]);
    assert_eq!(failing.status, Some(7), "{}", failing.messages);
    let absent = play(folder.path(), &[("run", "true && true"), ("output", ".")]);
    assert_eq!(absent.status, Some(2), "two commands are refused: {:?}", absent.annotations());
    let static_program = Target::program("small.c").flag("-static").flag("-s").named("small-stripped").build();
    let unrecorded = play(
        folder.path(),
        &[("run", &static_program.to_string_lossy()), ("fail-if", "leaked > 0"), ("output", "unrecorded")],
    );
    assert_eq!(unrecorded.status, Some(2), "nothing was recorded: {:?}", unrecorded.seen);
}

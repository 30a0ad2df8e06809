//! Panics of the command and of its recorder, which a debug build makes on request: a report, and a
//! program that notices nothing.
#![cfg(debug_assertions)]

use std::process::{Command, Output};
use std::time::Duration;

/// Records a program that has itself a panic made in the process of this role. Returns what it
/// left, the report, and the folder.
fn panics(role: &str) -> (Output, String, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let (recording, file) = (folder.path().join("r"), folder.path().join("requested"));
    let line = format!("echo out; printf {role} > {}; kill -CONT $PPID; sleep 1.5; echo more; exit 7", file.display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_heaptape"));
    command.args(["record", "-o"]).arg(&recording).args(["--", "sh", "-c", &line]);
    let output = command.env("HEAPTAPE_TEST_PANIC", &file).output().unwrap();
    let report = recording.join("crash-report.txt");
    let start = std::time::Instant::now();
    while !report.exists() && start.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(20));
    }
    (output, std::fs::read_to_string(report).unwrap_or_default(), folder)
}

#[track_caller]
fn is_report(text: &str, role: &str, function: &str) {
    let cause = "cause: panic at recorder/src/crash.rs:";
    let message = "requested by a test, with ? in the message";
    for part in [cause, message, role, "thread ", "  #0 0x", function, "end of the report\n"] {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
}

#[test]
fn a_panic_of_the_recorder() {
    let (output, text, folder) = panics("Survivor");
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(7), &b"out\nmore\n"[..]), "{output:?}");
    is_report(&text, "the recorder of `heaptape record`", " heaptape_recorder::");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("please send its report: ") && stderr.contains("/r/crash-report.txt"), "{stderr}");
    let verify =
        Command::new(env!("CARGO_BIN_EXE_heaptape")).arg("verify").arg(folder.path().join("r")).output().unwrap();
    assert_eq!(verify.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&verify.stdout).contains("truncated"), "{verify:?}");
}

#[test]
fn a_panic_of_the_command() {
    use std::os::unix::process::ExitStatusExt;
    let (output, text, folder) = panics("Command");
    assert_eq!((output.status.signal(), &output.stdout[..]), (Some(6), &b"out\nmore\n"[..]), "{output:?}");
    // Of an inlined function, the debug information has the name without its module.
    is_report(&text, "process: the command, pid ", "record at ");
    assert!(text.contains("/recorder/src/launch.rs:"), "{text}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains("the command crashed; please send its report: /") && stderr.contains("/r/crash-report.txt"),
        "{stderr}"
    );
    // The recorder is another process, and ends the recording.
    let recording = folder.path().join("r");
    let heaptape = |arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_heaptape")).args(arguments).arg(&recording).output().unwrap()
    };
    heaptape(&["record", "--quiet", "--resume"]);
    let verify = heaptape(&["verify"]);
    let text = String::from_utf8_lossy(&verify.stdout);
    assert!(verify.status.code() == Some(0) && text.contains("complete\n"), "{verify:?}");
    assert!(text.contains("note: ") && text.contains("crash-report.txt"), "{text}");
}

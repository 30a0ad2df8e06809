//! Panics of the command and of its recorder, which a debug build makes on request: a report, and a
//! program that notices nothing.
#![cfg(debug_assertions)]

use std::path::{Path, PathBuf};
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
    let cause = "cause: panic at recorder/src/os/crash.rs:";
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
    assert!(text.contains("/recorder/src/run/launch.rs:"), "{text}");
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

/// The daemon reports its panic in its log and in the open epoch, and the program that it records
/// notices nothing.
#[test]
fn a_panic_of_the_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (socket, state, requested) = (path("socket"), path("state"), path("requested"));
    let log = std::fs::File::create(path("log")).unwrap();
    let mut daemon = Command::new(env!("CARGO_BIN_EXE_heaptape"))
        .args(["daemon", "--mode", "trace", "--socket"])
        .arg(&socket)
        .arg("--control")
        .arg(path("control"))
        .arg("--state")
        .arg(&state)
        .env("HEAPTAPE_TEST_PANIC", &requested)
        .stderr(log)
        .spawn()
        .unwrap();
    let library = Command::new(env!("CARGO_BIN_EXE_heaptape")).arg("library").output().unwrap();
    until(|| socket.exists());
    let line = "echo out; until grep -q 'end of the report' log; do sleep 0.1; done; echo more; exit 7";
    let program = Command::new("sh")
        .args(["-c", line])
        .current_dir(folder.path())
        .env("LD_PRELOAD", String::from_utf8_lossy(&library.stdout).trim())
        .env("HEAPTAPE_SOCKET", &socket)
        .env("HEAPTAPE_ATTACH_MS", "10000")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    until(|| crash_reports_and_folders(&state).1 > 0);
    std::fs::write(&requested, "Daemon").unwrap();
    let status = daemon.wait().unwrap();
    let output = program.wait_with_output().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(6), "{status:?}");
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(7), &b"out\nmore\n"[..]), "{output:?}");
    is_report(&std::fs::read_to_string(path("log")).unwrap(), "the daemon, pid ", "/daemon/src/service.rs:");
    let reports = crash_reports_and_folders(&state).0;
    assert!(!reports.is_empty(), "no report in an epoch");
    for report in reports {
        is_report(&std::fs::read_to_string(report).unwrap(), "the daemon, pid ", "/daemon/src/service.rs:");
    }
}

/// Returns the crash reports below a folder, and the number of recorded processes.
fn crash_reports_and_folders(folder: &Path) -> (Vec<PathBuf>, usize) {
    let (mut reports, mut processes) = (Vec::new(), 0);
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.file_name().to_str() {
            Some("crash-report.txt") => reports.push(path),
            Some("events.tape") => processes += 1,
            _ if entry.file_type().is_ok_and(|kind| kind.is_dir()) => {
                let (more, further) = crash_reports_and_folders(&path);
                reports.extend(more);
                processes += further;
            }
            _ => {}
        }
    }
    (reports, processes)
}

#[track_caller]
fn until(mut is_reached: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !is_reached() {
        assert!(start.elapsed() < Duration::from_secs(60), "it does not happen");
        std::thread::sleep(Duration::from_millis(20));
    }
}

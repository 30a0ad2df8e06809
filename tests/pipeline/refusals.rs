//! Programs that cannot be recorded: one line, the right exit status, and an unharmed program.

use heaptape_tests::recording::heaptape;
use heaptape_tests::{Outcome, Program, Target, is_root, target, test_env};
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The lines of the command itself on standard error.
fn lines(text: &str) -> Vec<&str> {
    text.lines().filter(|line| line.starts_with("heaptape:")).collect()
}

/// Runs `heaptape record -q -o DESTINATION -- PROGRAM`.
fn record_into(destination: &Path, program: &OsStr) -> Outcome {
    let options = ["record", "-q", "-o"].map(OsStr::new);
    heaptape(options.into_iter().chain([destination.as_os_str(), "--".as_ref(), program]))
}

#[test]
fn missing_program_fails_with_one_line() {
    let folder = test_env::folder();
    let destination = folder.path().join("r");
    let outcome = record_into(&destination, "no-such-program-here".as_ref());
    assert!([2, 127].contains(&outcome.code()), "{outcome}");
    assert_eq!(lines(&outcome.error()).len(), 1, "{outcome}");
    assert!(outcome.error().contains("no-such-program-here"), "{outcome}");
    assert!(!destination.exists(), "nothing is left");
}

#[test]
fn folder_that_cannot_be_created_is_refused_with_advice() {
    let outcome = record_into(Path::new("/proc/recording"), "true".as_ref()).exits(2);
    assert_eq!(lines(&outcome.error()).len(), 1, "{outcome}");
    assert!(outcome.error().contains("/proc/recording: ") && outcome.error().contains(" -o"), "{outcome}");
}

#[test]
fn process_that_does_not_exist_is_named_by_its_pid() {
    // Above the largest pid that Linux permits.
    let outcome = heaptape(["attach", "4194305"]).exits(2);
    assert!(outcome.error().contains("heaptape: process 4194305 is not attached: "), "{outcome}");
}

#[test]
fn file_without_execute_permission_fails_with_one_line() {
    let folder = test_env::folder();
    let file = folder.path().join("plain-file");
    fs::write(&file, "#!/bin/sh\necho ran\n").expect("a file");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("its mode");
    let destination = folder.path().join("r");
    let outcome = record_into(&destination, file.as_ref());
    assert!([2, 126].contains(&outcome.code()), "{outcome}");
    assert_eq!(lines(&outcome.error()).len(), 1, "{outcome}");
}

#[test]
fn stripped_static_program_runs_and_is_named() {
    let program =
        Program::new(Target::program("small.c").flag("-static").flag("-s").named("small-stripped").build()).arg("6");
    let plain = program.plain().exits(6);
    let recording = program.recorded();
    assert_eq!((recording.outcome.code(), &recording.outcome.stdout), (6, &plain.stdout), "{}", recording.outcome);
    let error = recording.outcome.error();
    assert_eq!(lines(&error).len(), 1, "one line says that nothing was recorded: {error}");
    assert!(error.contains("static"), "and why: {error}");
}

#[test]
fn setuid_program_runs_and_is_named() {
    if !is_root() {
        return;
    }
    let folder = test_env::folder();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("a folder for everybody");
    let copy = folder.path().join("setuid-small");
    test_env::copy(target::c("small"), &copy);
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o4755)).expect("setuid");
    let command = folder.path().join("heaptape");
    test_env::copy(test_env::command(), &command);
    fs::set_permissions(&command, fs::Permissions::from_mode(0o755)).expect("its mode");
    let destination = folder.path().join("r");
    let program = Program::new(&command).args(["record", "-q", "-o"]).arg(&destination).arg("--").arg(&copy).arg("9");
    let outcome = program
        .launched_by(&["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"])
        .env("HOME", folder.path())
        .plain();
    assert_eq!((outcome.code(), outcome.text().as_str()), (9, "small\n"), "{outcome}");
    let error = outcome.error();
    assert_eq!(lines(&error).len(), 1, "one line says that nothing was recorded: {error}");
    assert!(error.contains("setuid"), "and why: {error}");
    heaptape_tests::torture::passed(20, "named setuid programs, unharmed", 1);
}

/// The library preloaded into a process with more rights than its caller is inert: it reads no
/// environment and connects to no socket.
#[test]
fn library_is_inert_in_a_privileged_process() {
    if !is_root() {
        return;
    }
    let folder = test_env::folder();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("a folder for everybody");
    let copy = folder.path().join("small");
    test_env::copy(target::c("small"), &copy);
    let calls = folder.path().join("calls");
    // File capabilities make AT_SECURE as setuid does; strace as root keeps them.
    let program = Program::new("strace")
        .args(["-u", "nobody", "-f", "-o"])
        .arg(&calls)
        .args([
            "-E",
            &format!("LD_PRELOAD={}", test_env::library().display()),
            "-E",
            "HEAPTAPE_SOCKET=/nonexistent/socket",
        ])
        .arg(&copy);
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o4755)).expect("setuid");
    let outcome = program.plain();
    if outcome.code() != 0 {
        return; // strace may not trace here
    }
    let text = fs::read_to_string(&calls).expect("strace's output");
    assert!(!text.contains("/nonexistent/socket"), "an inert library does not connect:\n{text}");
    heaptape_tests::torture::passed(20, "privileged processes without a system call of the library", 1);
}

#[test]
fn unwritable_folder_fails_with_one_line() {
    for path in ["/proc/heaptape-cannot-be-here", "/nonexistent/folder/r"] {
        let outcome = record_into(Path::new(path), "true".as_ref());
        if Path::new("/nonexistent").exists() {
            fs::remove_dir_all("/nonexistent").expect("what the command made");
            continue;
        }
        assert_eq!(outcome.code(), 2, "{outcome}");
        assert_eq!(lines(&outcome.error()).len(), 1, "{outcome}");
        assert!(outcome.error().contains(path), "{outcome}");
    }
}

#[test]
fn existing_folder_is_not_touched() {
    let folder = test_env::folder();
    fs::write(folder.path().join("precious"), "data").expect("a file");
    let outcome = heaptape([
        OsStr::new("record"),
        "-q".as_ref(),
        "-o".as_ref(),
        folder.path().as_ref(),
        "--".as_ref(),
        "true".as_ref(),
    ]);
    assert_eq!(outcome.code(), 2, "{outcome}");
    assert_eq!(lines(&outcome.error()).len(), 1, "{outcome}");
    assert_eq!(fs::read_dir(folder.path()).expect("the folder").count(), 1, "nothing is touched");
}

#[test]
fn program_runs_without_memory_for_the_rings() {
    // The command has no address space for an area: the program runs all the same.
    let program = Program::new(target::c("small")).arg("4");
    let plain = program.plain().exits(4);
    let folder = test_env::folder();
    let destination = folder.path().join("r");
    let recorder = Program::new(test_env::command())
        .args(["record", "-q", "-o"])
        .arg(&destination)
        .arg("--")
        .arg(target::c("small"))
        .arg("4");
    let outcome = recorder.after("ulimit -v 200000").plain();
    assert_eq!((outcome.code(), &outcome.stdout), (4, &plain.stdout), "{outcome}");
    assert!(lines(&outcome.error()).len() <= 1, "at most one line: {outcome}");
}

#[test]
fn missing_arguments_exit_with_2() {
    assert_eq!(heaptape(["record"]).code(), 2);
    assert_eq!(heaptape(["report"]).code(), 2);
    assert_eq!(heaptape(["report", "/nonexistent/recording"]).code(), 2);
    assert_eq!(heaptape(["verify", "/nonexistent/recording"]).code(), 2);
    assert_eq!(heaptape(["leaks", "/dev/null"]).code(), 2);
    assert_eq!(heaptape(["no-such-word"]).code(), 2);
}

/// What shares the memory of a process is not stopped with it, and what handles its system calls
/// itself would be ended by those of the library: both are refused, and go on.
#[test]
fn processes_that_an_attach_would_harm_are_refused() {
    let program = Target::program("stands_apart.c").build();
    for (how, why) in [("shares", "shares its memory"), ("dispatches", "handles its system calls itself")] {
        let piped = std::process::Stdio::piped;
        let mut child = std::process::Command::new(&program);
        let mut child = child.arg(how).stdin(piped()).stdout(piped()).spawn().expect("it starts");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        match lines.next().expect("a line").expect("text").as_str() {
            "ready" => {}
            _ => continue, // A kernel without it.
        }
        let folder = test_env::folder();
        let options = ["attach", "--for", "100ms", "-o"].map(OsStr::new);
        let (pid, destination) = (child.id().to_string(), folder.path().join("r"));
        let outcome = heaptape(options.into_iter().chain([destination.as_os_str(), pid.as_ref()])).exits(2);
        assert!(outcome.error().contains(why), "{how}: {outcome}");
        assert!(child.try_wait().expect("its state").is_none(), "{how}: it runs on");
        drop(child.stdin.take());
        assert_eq!(lines.next().expect("a line").expect("text"), "done", "{how}");
        assert!(child.wait().expect("it ends").success(), "{how}");
    }
}

/// Attach and detach stop all threads, and no system call in which one waits reports an
/// interruption: not those with a time limit either, which the kernel does not begin again after a
/// stop.
#[test]
fn no_call_is_interrupted_by_an_attach() {
    let piped = std::process::Stdio::piped;
    let program = Target::program("waits_in_calls.c").flag("-pthread").build();
    let mut child = std::process::Command::new(program).stdin(piped()).stdout(piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    assert_eq!(lines.next().expect("a line").expect("text"), "ready");
    for round in 0..3 {
        let folder = test_env::folder();
        let options = ["attach", "--for", "50ms", "-o"].map(OsStr::new);
        let (pid, destination) = (child.id().to_string(), folder.path().join("r"));
        let outcome = heaptape(options.into_iter().chain([destination.as_os_str(), pid.as_ref()]));
        assert_eq!(outcome.code(), 0, "round {round}: {outcome}");
    }
    drop(child.stdin.take());
    let rest: Vec<String> = lines.map(|line| line.expect("text")).collect();
    assert_eq!(rest, ["32 calls"]);
    assert!(child.wait().expect("it ends").success());
}

/// A process whose main thread has ended runs on, and is refused for that reason.
#[test]
fn process_without_its_main_thread_is_refused_for_that() {
    let program = Target::program("leader_ends.c").flag("-pthread").build();
    let mut child =
        std::process::Command::new(program).stdout(std::process::Stdio::piped()).spawn().expect("it starts");
    let state = || fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
    heaptape_tests::wait::until("its main thread has ended", || state().contains(") Z "));
    let folder = test_env::folder();
    let options = ["attach", "--for", "100ms", "-o"].map(OsStr::new);
    let pid = child.id().to_string();
    let destination = folder.path().join("r");
    let outcome = heaptape(options.into_iter().chain([destination.as_os_str(), pid.as_ref()])).exits(2);
    assert!(outcome.error().contains("its main thread has ended, and only others run"), "{outcome}");
    assert!(child.try_wait().expect("its state").is_none(), "it runs on");
    child.kill().expect("it ends");
    child.wait().expect("it has ended");
}

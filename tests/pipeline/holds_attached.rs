//! Who holds what in a program that was attached, and in one that runs on until it has much memory: what
//! only blocks from before lead to is never lost.

use heaptape_tests::daemon::Running;
use heaptape_tests::recording::heaptape;
use heaptape_tests::wait::until;
use heaptape_tests::{Daemon, Program, Target, test_env};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};

/// A program that makes its new blocks when it is told to.
pub(super) struct Earlier {
    running: Running,
    output: BufReader<ChildStdout>,
}

impl Earlier {
    pub(super) fn start() -> Earlier {
        let mut command = Command::new(Target::program("holds_earlier.cpp").build());
        let mut running = Running(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts"));
        let output = BufReader::new(running.0.stdout.take().expect("its output"));
        let mut earlier = Earlier { running, output };
        earlier.says("ready");
        earlier
    }

    fn says(&mut self, text: &str) {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        assert_eq!(line.trim_end(), text);
    }

    pub(super) fn make_blocks(&mut self) {
        self.running.0.stdin.as_mut().expect("its input").write_all(b"go\n").expect("a line");
        self.says("done");
    }

    pub(super) fn pid(&self) -> String {
        self.running.0.id().to_string()
    }
}

fn report(arguments: &[&str]) -> Value {
    let output = heaptape([&["holds", "--json", "--top", "100"], arguments].concat()).success();
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    answer["processes"][0]["holds"].clone()
}

/// All that was planted is found, and nothing else.
fn assert_truth(report: &Value) {
    assert_eq!(report["lacks"], "", "{report:#}");
    let rows = report["lost"].as_array().expect("rows");
    let is_planted = |row: &Value| {
        row["label"].as_str().is_some_and(|label| label.starts_with("lose ") || label.starts_with("make_cycle "))
    };
    assert!(rows.iter().all(is_planted), "{report:#}");
    // One or two may be in a word of a stack that is not in use any more.
    let number = |key: &str| report[key].as_u64().unwrap_or(0);
    assert!((498..=500).contains(&(number("lost_blocks") - number("cycle_blocks"))), "{report:#}");
    assert!((396..=400).contains(&number("cycle_blocks")), "{report:#}");
    let roots = report["roots"].as_array().expect("roots");
    let of = |kind: &str| -> u64 {
        roots.iter().filter(|root| root["kind"] == kind).filter_map(|root| root["blocks"].as_u64()).sum()
    };
    // 2,000 of holders, 1,500 of those of a thread, 3,000 of a table, 2,001 of a cache.
    let earlier = of("earlier");
    assert!((8490..=8501).contains(&earlier), "{report:#}");
    assert_eq!(of("global"), 100, "{report:#}");
}

#[test]
fn what_blocks_from_before_an_attach_hold_is_not_lost() {
    let mut earlier = Earlier::start();
    let folder = test_env::folder();
    let dir = folder.path().join("r");
    let text = dir.to_str().expect("a path").to_owned();
    let mut attach = Command::new(test_env::command());
    attach.args(["attach", "--references", "-o", &text, &earlier.pid()]).stderr(Stdio::piped());
    let mut attach = attach.spawn().expect("it starts");
    let mut messages = BufReader::new(attach.stderr.take().expect("its messages"));
    let mut line = String::new();
    messages.read_line(&mut line).expect("a line");
    assert!(line.starts_with("attached to "), "{line}");
    earlier.make_blocks();
    kill(Pid::from_raw(attach.id().cast_signed()), Signal::SIGINT).expect("it runs");
    messages.read_to_string(&mut line).expect("its messages");
    assert!(attach.wait().expect("it ends").success(), "{line}");
    let found = report(&[&text]);
    assert_truth(&found);
    assert!(found["at"]["time_ns"].as_u64().is_some_and(|at| at > 0), "{found:#}");
    // Nothing has happened since.
    let leaks = heaptape(["leaks", "--all", &text]).text();
    assert!(leaks.contains("held by global") && leaks.contains(", shortly before the end"), "{leaks}");
    // It runs on, and nothing of the copy is left.
    earlier.make_blocks();
    let status = std::fs::read_to_string(format!("/proc/{}/status", earlier.pid())).expect("it runs");
    assert!(status.contains("TracerPid:\t0\n"), "{status}");
}

#[test]
fn daemon_knows_what_it_does_not_know_of_an_attached_program() {
    let mut daemon = Daemon::start(&["--mode", "trace,overflow=wait:10s"]);
    let mut earlier = Earlier::start();
    daemon.query(&["attach", &earlier.pid(), "--mode", "trace"]);
    earlier.make_blocks();
    let control = daemon.control();
    assert_truth(&report(&["--live", &earlier.pid(), "--control", control.to_str().expect("a path")]));
    daemon.stop();
}

/// Another tracer keeps its program: the command says so, and the recording is as complete as without.
#[test]
fn a_traced_program_is_refused_and_goes_on() {
    let mut daemon = Daemon::start(&["--mode", "trace,overflow=wait:10s"]);
    let program = Target::program("holds_while_it_runs.cpp").build();
    let mut command = daemon.command(&program);
    command.arg("100").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut running = Running(command.spawn().expect("it starts"));
    let mut output = BufReader::new(running.0.stdout.take().expect("its output"));
    let mut line = String::new();
    output.read_line(&mut line).expect("a line");
    let pid = running.0.id().to_string();
    let status = || std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let mut strace = Command::new("strace");
    strace.args(["-o", "/dev/null", "-p", &pid]).stderr(Stdio::null());
    let strace = Running(strace.spawn().expect("strace starts"));
    until("strace traces it", || !status().contains("TracerPid:\t0\n"));
    let refused = daemon.ctl(&["snapshot", "--references", &pid]);
    assert!(refused.code() != 0 && refused.error().contains("traces it already"), "{refused}");
    kill(Pid::from_raw(strace.0.id().cast_signed()), Signal::SIGINT).expect("it runs");
    until("strace lets go of it", || status().contains("TracerPid:\t0\n"));
    assert_eq!(daemon.query(&["snapshot", "--references", &pid])["processes"], 1);
    drop(running.0.stdin.take());
    output.read_to_string(&mut line).expect("its output");
    assert!(line.contains("forks 0 children 0 late 0"), "{line}");
    daemon.stop();
}

/// Starts a recording in a folder, and waits until it has references.
fn recorded_until_read(folder: &Path, sessions: &str) -> (Command, std::path::PathBuf) {
    let dir = folder.join("r");
    let mut command = Command::new(test_env::command());
    command.args(["record", "-q", "--references-at", "48KiB", "-o"]).arg(&dir).arg("--");
    command.arg(Target::program("holds_while_it_runs.cpp").build()).arg(sessions);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    (command, dir)
}

/// Starts `attach` with options, and returns it with its messages once the program is hooked.
fn attached(earlier: &Earlier, dir: &str, options: &[&str]) -> (Running, BufReader<std::process::ChildStderr>) {
    let mut command = Command::new(test_env::command());
    command.arg("attach").args(options).args(["-o", dir, &earlier.pid()]).stderr(Stdio::piped());
    let mut attach = Running(command.spawn().expect("it starts"));
    let mut messages = BufReader::new(attach.0.stderr.take().expect("its messages"));
    let mut line = String::new();
    messages.read_line(&mut line).expect("a line");
    assert!(line.starts_with("attached to "), "{line}");
    (attach, messages)
}

/// `attach` says that it could not read what its program has taken with it.
#[test]
fn an_attached_program_that_ended_before_has_no_references() {
    let earlier = Earlier::start();
    let folder = test_env::folder();
    let dir = folder.path().join("r");
    let text = dir.to_str().expect("a path").to_owned();
    let (mut attach, mut messages) = attached(&earlier, &text, &["--references"]);
    kill(Pid::from_raw(earlier.running.0.id().cast_signed()), Signal::SIGKILL).expect("it runs");
    let mut said = String::new();
    messages.read_to_string(&mut said).expect("its messages");
    assert!(said.contains("which block holds which could not be read: it ended before"), "{said}");
    assert_ne!(attach.0.wait().expect("it ends").code(), Some(0), "{said}");
}

#[test]
fn an_attached_program_is_read_once_it_has_enough_memory() {
    let mut earlier = Earlier::start();
    let folder = test_env::folder();
    let dir = folder.path().join("r");
    let text = dir.to_str().expect("a path").to_owned();
    let (mut attach, mut messages) = attached(&earlier, &text, &["--references-at", "1KiB"]);
    let references = || {
        let folders = std::fs::read_dir(&dir).into_iter().flatten().flatten();
        folders.map(|entry| entry.path().join("references.tape")).find(|path| path.exists())
    };
    assert!(references().is_none());
    earlier.make_blocks();
    until("they are read", || references().is_some());
    kill(Pid::from_raw(attach.0.id().cast_signed()), Signal::SIGINT).expect("it runs");
    let mut said = String::new();
    messages.read_to_string(&mut said).expect("its messages");
    assert!(attach.0.wait().expect("it ends").success(), "{said}");
    let found = report(&[&text]);
    assert!(found["at"]["time_ns"].as_u64().is_some_and(|at| at > 0), "{found:#}");
    assert!(found["bytes"].as_u64().is_some_and(|bytes| bytes >= 1 << 10), "{found:#}");
    let said = heaptape(["leaks", &text]).text();
    assert!(said.contains("note: who holds what was read "), "{said}");
    earlier.make_blocks();
}

/// The recorder of `attach` answers, though the program does not know its socket.
#[test]
fn an_attached_program_is_read_while_it_runs() {
    let mut earlier = Earlier::start();
    let folder = test_env::folder();
    let dir = folder.path().join("r");
    let text = dir.to_str().expect("a path").to_owned();
    let (mut attach, mut messages) = attached(&earlier, &text, &[]);
    earlier.make_blocks();
    assert_truth(&report(&["--live", &earlier.pid()]));
    assert_truth(&report(&["--live", &text]));
    // Who asks meanwhile waits.
    let ask = |_| {
        let mut command = Command::new(test_env::command());
        command.args(["holds", "--live", &text]).stdout(Stdio::null()).spawn().expect("it starts")
    };
    let asked: Vec<_> = (0..3).map(ask).collect();
    asked.into_iter().for_each(|mut one| assert!(one.wait().expect("it ends").success()));
    kill(Pid::from_raw(attach.0.id().cast_signed()), Signal::SIGINT).expect("it runs");
    let mut said = String::new();
    messages.read_to_string(&mut said).expect("its messages");
    assert!(attach.0.wait().expect("it ends").success(), "{said}");
    earlier.make_blocks();
}

#[test]
fn references_are_read_once_when_live_memory_passes_a_limit() {
    let folder = test_env::folder();
    let (mut command, dir) = recorded_until_read(folder.path(), "500");
    let mut running = Running(command.spawn().expect("it starts"));
    let file = || {
        let folders = std::fs::read_dir(&dir).into_iter().flatten().flatten();
        folders.map(|entry| entry.path().join("references.tape")).find(|path| path.exists())
    };
    until("they are read", || file().is_some());
    let before = std::fs::read(file().expect("a file")).expect("a file");
    // The copy that was read ends when it is written.
    let name = file().and_then(|path| path.parent()?.file_name()?.to_str()?.split('.').next().map(str::to_owned));
    let pid = name.expect("the folder of the process");
    let has_child =
        |task: std::fs::DirEntry| std::fs::read(task.path().join("children")).is_ok_and(|all| !all.is_empty());
    let tasks = || std::fs::read_dir(format!("/proc/{pid}/task")).expect("its threads").flatten();
    until("the copy is gone", || !tasks().any(has_child));
    drop(running.0.stdin.take());
    let mut text = String::new();
    running.0.stdout.take().expect("its output").read_to_string(&mut text).expect("its output");
    assert_eq!(text, "ready\nforks 0 children 0 late 0 interrupted 0 left 0\n");
    assert!(running.0.wait().expect("it ends").success());
    assert!(std::fs::read(file().expect("a file")).expect("a file") == before, "they were read again");
    let found = report(&[dir.to_str().expect("a path")]);
    assert_eq!(found["lacks"], "", "{found:#}");
    assert!(found["at"]["time_ns"].as_u64().is_some_and(|at| at > 0), "{found:#}");
    assert!(found["bytes"].as_u64().is_some_and(|bytes| bytes >= 48 << 10), "{found:#}");
    // It makes the last ones after its cache: those that are there are the planted ones.
    assert!(found["lost_blocks"].as_u64().is_some_and(|lost| lost <= 600), "{found:#}");
    let rows = found["lost"].as_array().expect("rows");
    let is_planted = |row: &Value| {
        row["label"].as_str().is_some_and(|label| label.starts_with("lose ") || label.starts_with("make_cycle "))
    };
    assert!(rows.iter().all(is_planted), "{found:#}");
}

#[test]
fn program_that_never_has_so_much_is_read_at_its_end() {
    let program = Program::new(Target::program("holds_cache.cpp").build()).arg("10");
    let recording = program.option("--references-at=1GiB").recorded().success();
    let output = recording.heaptape(&["holds", "--json"]).success();
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let holds = &answer["processes"][0]["holds"];
    assert!(holds["held_blocks"].as_u64().is_some_and(|held| held > 80) && holds["at"].is_null(), "{holds:#}");
}

//! `heaptape holds --live`: who holds what in a program that runs on, read in a copy of it that the
//! program does not notice.

use super::holds::assert_only_nothing_is_lost;
use heaptape_tests::daemon::Running;
use heaptape_tests::recording::heaptape;
use heaptape_tests::wait::until;
use heaptape_tests::{Daemon, Target, target, test_env};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};

/// A program under a daemon, which has printed that it is ready.
pub(super) struct Live {
    pub(super) running: Running,
    output: BufReader<ChildStdout>,
}

impl Live {
    fn start(daemon: &Daemon, sessions: &str) -> Live {
        let program = Target::program("holds_while_it_runs.cpp").build();
        let mut command = daemon.command(&program);
        command.arg(sessions).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut running = Running(command.spawn().expect("it starts"));
        let mut output = BufReader::new(running.0.stdout.take().expect("its output"));
        let mut line = String::new();
        output.read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n");
        Live { running, output }
    }

    fn pid(&self) -> u32 {
        self.running.0.id()
    }

    /// Ends it by the end of its input, and returns what it has seen.
    pub(super) fn end(mut self) -> String {
        drop(self.running.0.stdin.take());
        let mut text = String::new();
        self.output.read_to_string(&mut text).expect("its output");
        text
    }
}

pub(super) const UNSEEN: &str = "forks 0 children 0 late 0 interrupted 0 left 0\n";

fn holds(daemon: &Daemon, name: &str) -> Value {
    let control = daemon.control();
    let control = control.to_str().expect("a path");
    let outcome = heaptape(["holds", "--json", "--top", "100", "--live", name, "--control", control]).success();
    let answer: Value = serde_json::from_slice(&outcome.stdout).expect("JSON");
    answer["processes"][0]["holds"].clone()
}

/// Returns what is held of a function.
fn held(report: &Value, function: &str) -> (u64, String) {
    let rows = report["held"].as_array().expect("rows").iter();
    let found: Vec<&Value> =
        rows.filter(|row| row["label"].as_str().is_some_and(|at| at.starts_with(function))).collect();
    let blocks = found.iter().filter_map(|row| row["blocks"].as_u64()).sum();
    let root = found.first().and_then(|row| row["paths"][0]["steps"].as_array()?.last()?.as_str()).unwrap_or_default();
    (blocks, root.to_owned())
}

pub(super) fn assert_truth(report: &Value, sessions: u64) {
    assert_eq!(report["lacks"], "", "{report:#}");
    assert!(report["at"]["time_ns"].as_u64().is_some_and(|at| at > 0), "{report:#}");
    let (blocks, root) = held(report, "open_session");
    // An order, and for each session a node and an array.
    assert_eq!((blocks, &*root), (sessions * 6, "global cache"), "{report:#}");
    assert_eq!((&report["cycle_blocks"], &report["lost_blocks"]), (&400.into(), &600.into()), "{report:#}");
    let (in_thread, on_stack, shared) =
        (held(report, "keep_in_thread"), held(report, "keep_on_stack"), held(report, "keep_shared"));
    assert!(in_thread.0 == 1 && in_thread.1.starts_with("thread-local data"), "{in_thread:?}: {report:#}");
    assert!(on_stack.0 == 1 && on_stack.1.contains("stack"), "{on_stack:?}: {report:#}");
    assert_eq!(shared.0, 1, "{report:#}");
}

/// The answer is that of the end, and the program has neither a child, nor a handler of `fork` that ran,
/// nor a pipe that stays open, nor a call that was interrupted.
#[test]
fn a_living_program_says_who_holds_what_and_notices_nothing() {
    let mut daemon = Daemon::start(&["--mode", "trace,overflow=wait:10s"]);
    let live = Live::start(&daemon, "500");
    let pid = live.pid().to_string();
    for _ in 0..5 {
        assert_truth(&holds(&daemon, &pid), 500);
    }
    // In the next segment of the process, too.
    daemon.query(&["epoch"]);
    assert_truth(&holds(&daemon, &pid), 500);
    let found = daemon.query(&["snapshot", "--references", &pid]);
    assert!(found["processes"] == 1 && found["stop_us"].as_u64().is_some_and(|stop| stop > 0), "{found:#}");
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
    assert!(status.contains("TracerPid:\t0\n") && status.contains("SigBlk:\t0000000000000000\n"), "{status}");
    assert_eq!(live.end(), UNSEEN);
    daemon.stop();
}

/// A copy does not get all memory, and what it does not get is read from the program.
#[test]
fn memory_that_children_do_not_get_holds() {
    let folder = test_env::folder();
    let daemon = Daemon::start(&["--mode", "trace,overflow=wait:10s"]);
    let mut command = daemon.command(&target::c("holds_odd_memory"));
    command.arg(folder.path().join("mapped")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut running = Running(command.spawn().expect("it starts"));
    let mut line = String::new();
    BufReader::new(running.0.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
    assert_only_nothing_is_lost(&holds(&daemon, &running.0.id().to_string()));
    drop(running.0.stdin.take());
    assert!(running.0.wait().expect("it ends").success());
}

/// A daemon that is killed while it reads takes the copy with it.
#[test]
fn a_killed_daemon_leaves_no_copy() {
    let mut daemon = Daemon::start(&["--mode", "trace,overflow=wait:10s"]);
    let live = Live::start(&daemon, "20000");
    let pid = live.pid();
    let children = || {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs").flatten();
        let lists = tasks.map(|task| std::fs::read_to_string(task.path().join("children")).unwrap_or_default());
        lists.flat_map(|list| list.split_ascii_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect::<Vec<_>>()
    };
    let name = pid.to_string();
    std::thread::scope(|scope| {
        scope.spawn(|| daemon.ctl(&["snapshot", "--references", &name]));
        until("there is a copy", || !children().is_empty());
        kill(Pid::from_raw(daemon.pid()), Signal::SIGKILL).expect("the daemon runs");
    });
    let is_zombie = |child: &String| {
        let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z ")
    };
    until("the copy has ended", || children().iter().all(is_zombie));
    daemon.restart();
    let seen = live.end();
    assert!(seen.starts_with("forks 0 children 0 late 0 interrupted 0"), "{seen}");
    daemon.stop();
}

/// A block of which nothing is known may hold others: nothing is called lost then.
#[test]
fn lost_events_leave_no_block_lost() {
    let mut daemon = Daemon::start(&["--mode", "trace"]);
    let live = Live::start(&daemon, "100");
    let name = live.pid().to_string();
    let lost = || daemon.list("holds_while_it_").first().and_then(|one| one["lost"].as_u64()).unwrap_or(0);
    until("its ring was full", || {
        daemon.signal(Signal::SIGSTOP);
        std::thread::sleep(std::time::Duration::from_millis(200));
        daemon.signal(Signal::SIGCONT);
        lost() > 0
    });
    let report = holds(&daemon, &name);
    assert!(report["lacks"].as_str().is_some_and(|lacks| lacks.contains("events were lost")), "{report:#}");
    assert_eq!(report["lost_blocks"], 0, "{report:#}");
    assert_eq!(live.end(), UNSEEN);
    daemon.stop();
}

/// Where most blocks are not known, the answer says so.
#[test]
fn sampled_programs_are_refused() {
    let mut daemon = Daemon::start(&["--mode", "profile:4KiB"]);
    let live = Live::start(&daemon, "100");
    let refused = daemon.ctl(&["snapshot", "--references", &live.pid().to_string()]);
    assert!(refused.code() != 0 && refused.error().contains("sampled"), "{refused}");
    assert_eq!(live.end(), UNSEEN);
    daemon.stop();
}

/// Starts the program under `record`, and returns the pid of the program with it.
pub(super) fn recorded(dir: &Path, options: &[&str]) -> (Live, String) {
    let program = Target::program("holds_while_it_runs.cpp").build();
    let mut command = Command::new(test_env::command());
    command.args(["record", "-q"]).args(options).arg("-o").arg(dir).arg("--").arg(program).arg("500");
    let mut running = Running(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts"));
    let mut output = BufReader::new(running.0.stdout.take().expect("its output"));
    let mut line = String::new();
    output.read_line(&mut line).expect("a line");
    assert_eq!(line, "ready\n");
    let about = || std::fs::read_to_string(dir.join("recording.json")).unwrap_or_default();
    let pid = || serde_json::from_str::<Value>(&about()).ok()?["images"][0]["pid"].as_u64();
    until("it is listed", || pid().is_some());
    (Live { running, output }, pid().expect("a pid").to_string())
}

pub(super) fn holds_of(which: &str) -> Value {
    let outcome = heaptape(["holds", "--json", "--top", "100", "--live", which]).success();
    let answer: Value = serde_json::from_slice(&outcome.stdout).expect("JSON");
    answer["processes"][0]["holds"].clone()
}

/// The recorder of one program answers as the daemon does, by pid and by folder, and its program
/// notices nothing.
#[test]
fn a_program_under_record_says_who_holds_what_and_notices_nothing() {
    let folder = test_env::folder();
    let dir = folder.path().join("r");
    let (live, pid) = recorded(&dir, &[]);
    for _ in 0..3 {
        assert_truth(&holds_of(&pid), 500);
        assert_truth(&holds_of(dir.to_str().expect("a path")), 500);
    }
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
    assert!(status.contains("TracerPid:\t0\n") && status.contains("SigBlk:\t0000000000000000\n"), "{status}");
    let Live { mut running, mut output } = live;
    drop(running.0.stdin.take());
    let mut text = String::new();
    output.read_to_string(&mut text).expect("its output");
    assert_eq!(text, UNSEEN);
    assert_eq!(running.0.wait().expect("it ends").code(), Some(0));
    let over = heaptape(["holds", "--live", dir.to_str().expect("a path")]);
    assert!(over.code() != 0 && over.error().contains("no process is recorded here now"), "{over}");
}

#[test]
fn a_sampled_program_under_record_is_refused() {
    let folder = test_env::folder();
    let (live, pid) = recorded(&folder.path().join("r"), &["--sample", "4KiB"]);
    let refused = heaptape(["holds", "--live", &pid]);
    assert!(refused.code() != 0 && refused.error().contains("sampled"), "{refused}");
    assert_eq!(live.end(), UNSEEN);
}

/// Who knows the socket and is another user gets no answer, and nothing is read.
#[test]
fn other_users_get_no_references() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let folder = test_env::folder();
    let dir = folder.path().join("r");
    let (live, pid) = recorded(&dir, &[]);
    let environment = std::fs::read(format!("/proc/{pid}/environ")).expect("it runs");
    let mut variables = environment.split(|byte| *byte == 0);
    let socket = variables.find_map(|one| one.strip_prefix(b"HEAPTAPE_SOCKET=")).expect("the socket");
    let socket = String::from_utf8_lossy(socket).into_owned();
    // The message as the command sends it, which waits until all is read.
    let ask = "import os, socket, struct, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
os.setuid(int(sys.argv[3]))
s.connect(sys.argv[1])
s.send(struct.pack('<4sHHII', b'HTPE', 8, 0, int(sys.argv[2]), 5).ljust(64, b'\\0'))
print(len(list(iter(lambda: s.recv(65536), b''))) > 0)";
    let answered = |uid: &str| {
        let output = Command::new("python3").args(["-c", ask, &socket, &pid, uid]).output().expect("python runs");
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    };
    assert_eq!((&*answered("65534"), &*answered("0")), ("False", "True"));
    assert_eq!(live.end(), UNSEEN);
}

//! `heaptape holds --live`: who holds what in a program that runs on, read in a copy of it that the
//! program does not notice.

use heaptape_tests::daemon::Running;
use heaptape_tests::recording::heaptape;
use heaptape_tests::wait::until;
use heaptape_tests::{Daemon, Target};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::process::{ChildStdout, Stdio};

/// A program under a daemon, which has printed that it is ready.
struct Live {
    running: Running,
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
    fn end(mut self) -> String {
        drop(self.running.0.stdin.take());
        let mut text = String::new();
        self.output.read_to_string(&mut text).expect("its output");
        text
    }
}

const UNSEEN: &str = "forks 0 children 0 late 0 interrupted 0 left 0\n";

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

fn assert_truth(report: &Value, sessions: u64) {
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

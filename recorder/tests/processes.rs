//! What only real processes can show: killed writers, forks, execs, ends.
//!
//! The test binary runs itself again as the traced process: `main_of_child_process` is the main
//! function of that process.

mod common;

use common::TestRecorder;
use common::fake::{Process, Thread, hello};
use heaptape_formats::recording::Exit;
use heaptape_formats::tape::Entry;
use heaptape_recorder::session::options::Options;
use heaptape_wire::Op;
use heaptape_wire::hello::{Hello, ORIGIN_FORK};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const ROLE: &str = "HEAPTAPE_TEST_ROLE";
const SOCKET: &str = "HEAPTAPE_TEST_SOCKET";

struct ChildProcess {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl ChildProcess {
    fn start(role: &str, socket: &Path) -> ChildProcess {
        let mut child = Command::new(std::env::current_exe().expect("a path"))
            .args(["main_of_child_process", "--exact", "--nocapture", "--test-threads=1"])
            .envs([(ROLE, role.as_ref()), (SOCKET, socket.as_os_str())])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        ChildProcess { child, lines }
    }

    /// Returns the next line that the process reports.
    fn report(&mut self) -> String {
        let reported =
            |line: std::io::Result<String>| line.ok()?.split_once("REPORT ").map(|(_, field)| field.to_owned());
        self.lines.by_ref().find_map(reported).expect("a report")
    }

    fn resume(&mut self) {
        self.child.stdin.as_mut().expect("piped").write_all(b"go\n").expect("writes");
    }
}

fn report(field: impl std::fmt::Display) {
    println!("REPORT {field}");
}

fn wait_for_line() {
    std::io::stdin().read_line(&mut String::new()).expect("reads");
}

#[test]
fn main_of_child_process() {
    let (Ok(role), Some(socket)) = (std::env::var(ROLE), std::env::var_os(SOCKET).map(PathBuf::from)) else { return };
    match role.as_str() {
        "writes" => {
            let process = Process::attach(&socket, hello());
            let mut thread = Thread::claim(&process);
            for count in 1u64.. {
                thread.event(Op::MALLOC, 0, 16 * count, count % 1000);
                if count % 3 == 0 {
                    thread.event(Op::FREE, 0, 16 * (count / 3), 0);
                }
                if count % 1000 == 0 {
                    report(count);
                }
            }
        }
        "exits" => {
            let process = Process::attach(&socket, hello());
            Thread::claim(&process).event(Op::MALLOC, 0, 16, 1);
            report("ready");
            wait_for_line();
            std::process::exit(7);
        }
        "stays" => {
            let process = Process::attach(&socket, hello());
            Thread::claim(&process).event(Op::MALLOC, 0, 16, 1);
            report("ready");
            wait_for_line();
        }
        "continues as another" => {
            let first = Process::attach(&socket, hello());
            Thread::claim(&first).event(Op::MALLOC, 0, 16, 1);
            let second = Process::attach(&socket, hello());
            Thread::claim(&second).event(Op::MALLOC, 0, 16, 2);
            report("ready");
            wait_for_line();
        }
        "forks" => {
            let process = Process::attach(&socket, hello());
            let mut thread = Thread::claim(&process);
            for block in 1..=100 {
                thread.event(Op::MALLOC, 0, 16 * block, 1);
            }
            report(process.now());
            // After the fork: some of the blocks go, others come.
            for block in 1..=50 {
                thread.event(Op::FREE, 0, 16 * block, 0);
                thread.event(Op::MALLOC, 0, 0x10000 + 16 * block, 7);
            }
            report("ready");
            wait_for_line();
        }
        grandchild if grandchild.starts_with("continues at once ") => {
            let mut fields = grandchild.split(' ').skip(3);
            let mut number = || fields.next().and_then(|field| field.parse::<u64>().ok()).expect("a number");
            let (parent_pid, fork_tick) = (number() as u32, number());
            let first = Process::attach(&socket, Hello { origin: ORIGIN_FORK, parent_pid, fork_tick, ..hello() });
            let second = Process::attach(&socket, hello());
            drop((first, second));
            report("ready");
            wait_for_line();
        }
        child => {
            let mut fields = child.split(' ');
            let mut number = || fields.next().and_then(|field| field.parse::<u64>().ok()).expect("a number");
            let (parent_pid, fork_tick) = (number() as u32, number());
            let process = Process::attach(&socket, Hello { origin: ORIGIN_FORK, parent_pid, fork_tick, ..hello() });
            let mut thread = Thread::claim(&process);
            thread.event(Op::FREE, 0, 16, 0);
            thread.event(Op::RESIZE_BEGIN, 0, 32, 0);
            thread.event(Op::RESIZE, 0, 0x5000, 10);
            thread.event(Op::MALLOC, 0, 0x6000, 20);
            report(process.now());
            wait_for_line();
        }
    }
}

#[test]
fn a_killed_writer_leaves_all_that_it_published() {
    for round in 0..4 {
        let mut recorder = TestRecorder::new(Options::default());
        let mut writer = ChildProcess::start("writes", &recorder.socket());
        let mut count = 0;
        for _ in 0..20 + 30 * round {
            count = writer.report().parse::<u64>().expect("a number");
        }
        writer.child.kill().expect("kills");
        writer.child.wait().expect("waits");
        std::thread::sleep(std::time::Duration::from_millis(50));
        let (outcome, processes) = recorder.finish();
        assert_eq!(outcome.recording.processes[0].exit, Some(Exit::Signal(9)));
        let back = &processes[0];
        back.check_invariants();
        let allocs: Vec<_> =
            back.events.iter().filter(|event| event.letter == 'A').map(|event| event.address).collect();
        assert!(allocs.len() as u64 >= count, "{} of {count}", allocs.len());
        assert!(allocs.iter().zip(1..).all(|(address, count)| *address == 16 * count));
        let account = &back.accounts[&1];
        // The event in whose middle it was killed, at most.
        assert!(account.emitted == account.recorded + account.lost && account.lost <= 1, "{account:?}");
    }
}

#[test]
fn process_ends_are_reported_with_their_status() {
    let mut recorder = TestRecorder::new(Options::default());
    let (mut exits, mut stays) =
        (ChildProcess::start("exits", &recorder.socket()), ChildProcess::start("stays", &recorder.socket()));
    let mut both = ChildProcess::start("continues as another", &recorder.socket());
    [&mut exits, &mut stays, &mut both].into_iter().for_each(|child_process| drop(child_process.report()));
    for child_process in [&mut exits, &mut both] {
        child_process.resume();
        child_process.child.wait().expect("waits");
    }
    std::thread::sleep(std::time::Duration::from_millis(50));
    let (outcome, processes) = recorder.finish();
    stays.resume();
    stays.child.wait().expect("waits");
    let ends = |child_process: &ChildProcess| {
        let of = outcome.recording.processes.iter().filter(|process| process.pid == child_process.child.id());
        of.map(|process| (process.exit, process.origin.as_str(), process.parent.is_some())).collect::<Vec<_>>()
    };
    assert_eq!(ends(&exits).iter().map(|end| end.0).collect::<Vec<_>>(), [Some(Exit::Code(7))]);
    assert_eq!(ends(&stays).iter().map(|end| end.0).collect::<Vec<_>>(), [Some(Exit::Running)]);
    let both = ends(&both);
    assert_eq!(both.iter().map(|end| end.0).collect::<Vec<_>>(), [Some(Exit::Exec), Some(Exit::Code(0))]);
    assert_eq!(both[1], (Some(Exit::Code(0)), "exec", true));
    for (process, back) in outcome.recording.processes.iter().zip(&processes) {
        back.check_invariants();
        assert_eq!(back.events.len(), 1);
        assert_eq!((back.process.pid, &*back.process.exe.lossy()), (process.pid, process.exe.as_str()));
        assert_eq!(back.process.argv.len(), process.argv.len());
    }
}

#[test]
fn a_forked_child_inherits_what_lived_at_the_fork() {
    let mut recorder = TestRecorder::new(Options::default());
    let mut parent = ChildProcess::start("forks", &recorder.socket());
    let tick = parent.report();
    parent.report();
    let mut child = ChildProcess::start(&format!("{} {tick}", parent.child.id()), &recorder.socket());
    // A grandchild that executes another program before the rings of both programs are read.
    let tick_of_child = child.report();
    let mut grandchild =
        ChildProcess::start(&format!("continues at once {} {tick_of_child}", child.child.id()), &recorder.socket());
    grandchild.report();
    for child_process in [&mut grandchild, &mut child, &mut parent] {
        child_process.resume();
        child_process.child.wait().expect("waits");
    }
    let (outcome, processes) = recorder.finish();
    let (parent, back) = (&processes[0], &processes[1]);
    let left = processes[2].inherited.as_ref().expect("inherits");
    assert_eq!((left.blocks, left.bytes), (100, 98 + 30));
    assert_eq!(outcome.recording.processes[3].origin, "exec");
    processes[2].check_invariants();
    parent.check_invariants();
    back.check_invariants();
    assert_eq!(outcome.recording.processes[1].origin, "fork");
    assert_eq!(outcome.recording.processes[1].parent.as_ref(), Some(&outcome.recording.processes[0].folder));
    let inherited = back.inherited.as_ref().expect("inherits");
    assert_eq!((inherited.blocks, inherited.bytes, inherited.tick.to_string()), (100, 100, tick));
    let found: Vec<_> = back.events.iter().map(|e| (e.letter, e.index, e.address, e.size, e.entry)).collect();
    let expected = [
        ('A', 1, 16, 1, Entry::Inherited),
        ('F', 1, 0, 0, Entry::Free),
        ('A', 2, 32, 1, Entry::Inherited),
        ('R', 2, 0x5000, 10, Entry::Realloc),
        ('A', 3, 0x6000, 20, Entry::Malloc),
    ];
    assert_eq!(found, expected);
    let totals = back.totals();
    assert_eq!((totals.inherited_blocks, totals.inherited_bytes), (98, 98));
    assert_eq!((totals.allocs, totals.resizes, totals.frees, totals.live_blocks, totals.live_bytes), (1, 1, 1, 2, 30));
}

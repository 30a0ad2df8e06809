//! Signals, dispositions and limits: the recorded program has them as if it had been started by
//! exec, each signal once.

use heaptape_tests::run::finish_while;
use heaptape_tests::wait::until;
use heaptape_tests::{Outcome, Program, is_root, same, target, test_env, torture};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Signals that a program can handle, and their numbers for `kill`.
const SIGNALS: [i32; 16] = [1, 2, 3, 6, 8, 10, 11, 12, 14, 16, 20, 21, 23, 24, 25, 40];

/// `heaptape record` of a program, as another program's last arguments.
fn recorder(recording: &Path) -> Program {
    Program::new(test_env::command()).args(["record", "-q", "-o"]).arg(recording).arg("--")
}

/// Runs `signal_log` bare and recorded, both started by `launcher`.
fn both(launcher: &[&str], arguments: &[&str]) -> (Outcome, Outcome) {
    let folder = test_env::folder();
    let program = Program::new(target::c("signal_log")).args(arguments);
    let recorded = program.as_arguments_of(recorder(&folder.path().join("r")));
    (program.launched_by(launcher).plain(), recorded.launched_by(launcher).plain())
}

/// What `signal_log log` has written so far.
struct Log {
    command: Pid,
    path: PathBuf,
}

impl Log {
    /// Waits until the program has logged this number of signals.
    fn wait_for(&self, signals: usize) {
        let count = || std::fs::read_to_string(&self.path).map_or(0, |text| text.lines().count());
        // The first line says that it handles signals.
        until("the program has logged its signals", || count() > signals);
    }

    /// Sends these signals to the command or its group, each when the one before has been handled:
    /// the kernel chooses the order of those that arrive together.
    fn send(&self, signals: &[i32], to: i32) {
        for (index, number) in signals.iter().enumerate() {
            send(*number, to);
            self.wait_for(index + 1);
        }
    }
}

/// Starts `signal_log log` recorded and waits until it handles signals. Returns its lines and how
/// it ended.
fn logged(signals: usize, meanwhile: impl FnOnce(&Log)) -> (Vec<String>, Outcome) {
    let folder = test_env::folder();
    let out = folder.path().join("out");
    let line = format!("exec \"$@\" > {}", out.display());
    let mut command = Command::new("bash");
    command.args(["-c", &line, "bash"]).arg(test_env::command()).args(["record", "-q", "-o"]);
    command.arg(folder.path().join("r")).arg("--").arg(target::c("signal_log")).arg("log");
    let outcome = finish_while(command, b"", |child: &mut Child| {
        let log = Log { command: Pid::from_raw(child.id() as i32), path: out.clone() };
        log.wait_for(0);
        meanwhile(&log);
        log.wait_for(signals);
        // A signal that arrives twice arrives by then.
        std::thread::sleep(Duration::from_millis(100));
        kill(log.command, Signal::SIGTERM).expect("SIGTERM");
    });
    let text = std::fs::read_to_string(&out).expect("its output");
    (text.lines().skip(1).map(str::to_owned).collect(), outcome)
}

/// Sends a signal by number; nix knows no real-time signals.
fn send(number: i32, to: i32) {
    let status = Command::new("bash").args(["-c", &format!("kill -{number} -- {to}")]).status().expect("bash");
    assert!(status.success());
    std::thread::sleep(Duration::from_millis(20));
}

#[test]
fn signals_to_the_command_reach_the_program_once() {
    let (lines, outcome) = logged(SIGNALS.len(), |log| log.send(&SIGNALS, log.command.as_raw()));
    assert_eq!(outcome.code(), 5, "{outcome}");
    assert_eq!(lines, SIGNALS.map(|number| format!("{number} 0 0")), "{outcome}");
    torture::passed(61, "signals to the command that reached the program once", SIGNALS.len() as u64);
}

#[test]
fn signals_to_the_group_reach_the_program_once() {
    let signals = [&SIGNALS[..], &SIGNALS, &[10]].concat();
    let (lines, outcome) = logged(signals.len(), |log| log.send(&signals, -log.command.as_raw()));
    assert_eq!(outcome.code(), 5, "{outcome}");
    let wanted: Vec<String> = signals.iter().map(|number| format!("{number} 0 0")).collect();
    assert_eq!(lines, wanted, "{outcome}");
}

/// A value that was queued for the command comes to the program.
#[test]
fn queued_signal_value_reaches_the_program() {
    let (lines, outcome) = logged(1, |log| {
        let arguments = ["--queue", "77", "-s", "40", &log.command.to_string()];
        let status = Command::new(test_env::need("kill")).args(arguments).status().expect("kill");
        assert!(status.success());
    });
    assert_eq!((outcome.code(), lines), (5, vec!["40 1 77".to_owned()]), "{outcome}");
}

#[test]
fn program_that_signals_its_group_is_signaled_once() {
    for number in ["15", "2", "10", "14"] {
        let recording = Program::new(target::c("signal_log")).args(["group", number, "20"]).recorded().success();
        assert_eq!(recording.outcome.text(), "20\n", "signal {number}: {}", recording.outcome);
    }
}

/// A signal that ends the command bare ends the program recorded. The tests may have been started
/// with some of them ignored, as a shell's background jobs are.
#[test]
fn signals_that_kill_the_command_kill_the_program() {
    let folder = test_env::folder();
    for number in [1, 2, 3, 6, 10, 11, 12, 13, 14, 15, 24, 26, 27, 31, 40] {
        let mut command = Command::new("env");
        command.arg("--default-signal").arg(test_env::command()).args(["record", "-q", "-o"]);
        command.arg(folder.path().join(number.to_string())).args(["--", "sleep", "300"]);
        let outcome = finish_while(command, b"", |command| {
            heaptape_tests::run::survivor(command);
            until("the program runs", || heaptape_tests::run::started(command.id()).is_some());
            send(number, command.id() as i32);
        });
        assert_eq!(outcome.code(), 128 + number, "{outcome}");
    }
}

#[test]
fn signal_to_the_parent_reaches_the_parent_of_the_command() {
    let line = "trap 'echo got it' USR1; \"$@\"; echo $?";
    let (plain, recorded) = both(&["bash", "-c", line, "bash"], &["parent", "10"]);
    assert_eq!(plain.text(), "got it\n0\n");
    same(&plain, &recorded);
}

/// Ignored signals, the mask, pending signals, timers, closed descriptors and what is set for the
/// parent's death are the program's as they were the command's.
#[test]
fn program_starts_as_by_exec() {
    let shells = [
        "exec \"$@\"",
        "trap '' PIPE; exec \"$@\"",
        "trap '' CHLD; exec \"$@\"",
        "trap '' HUP INT QUIT USR1 TSTP TTOU CHLD PIPE; exec \"$@\"",
        "exec \"$@\" <&-",
        "exec \"$@\" >&- 7>/dev/null 5</dev/null",
        "exec \"$@\" 0<&- >&- 9</dev/null",
    ];
    for line in shells {
        let (plain, recorded) = both(&["bash", "-c", line, "bash"], &["state"]);
        assert_eq!(plain.code(), 0, "{line}: {plain}");
        same(&plain, &recorded);
    }
    let start = "import os, sys, signal, ctypes\n";
    let lines = [
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGTERM, signal.SIGCHLD])",
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, 40])\nos.kill(os.getpid(), signal.SIGUSR1)\nos.kill(os.getpid(), 40)",
        "signal.alarm(1000)\nsignal.setitimer(signal.ITIMER_PROF, 500, 7)\nsignal.setitimer(signal.ITIMER_VIRTUAL, 400, 3)",
        "ctypes.CDLL(None).prctl(36, 1)\nctypes.CDLL(None).prctl(1, 10)",
    ];
    for line in lines {
        let script = format!("{start}{line}\nos.execv(sys.argv[1], sys.argv[1:])");
        let (plain, recorded) = both(&["python3", "-c", &script], &["state"]);
        assert_eq!(plain.code(), 0, "{line}: {plain}");
        same(&plain, &recorded);
    }
    torture::passed(61, "states of signals and descriptors at the start", (shells.len() + lines.len()) as u64);
}

/// `alarm(1); exec heaptape record -- sleep 300`: the alarm is the program's.
#[test]
fn alarm_set_before_the_start_reaches_the_program() {
    let folder = test_env::folder();
    let script = "import os, sys, signal\nsignal.alarm(1)\nos.execv(sys.argv[1], sys.argv[1:])";
    let program = Program::new("sleep").arg("300").as_arguments_of(recorder(&folder.path().join("r")));
    let outcome = program.launched_by(&["python3", "-c", script]).plain();
    assert_eq!(outcome.code(), 128 + Signal::SIGALRM as i32, "{outcome}");
}

/// A parent that ignores SIGCHLD gets the status of the program, and the command ends.
#[test]
fn ignored_sigchld_does_not_hide_the_exit_status() {
    let (plain, recorded) = both(&["bash", "-c", "trap '' CHLD; exec \"$@\"", "bash"], &["group", "10", "1"]);
    assert_eq!((plain.code(), plain.text().as_str()), (0, "1\n"));
    same(&plain, &recorded);
}

/// A reader sees the end of a pipe when the program closes it, not when the command ends.
#[test]
fn command_keeps_no_pipe_open() {
    let line = "exec 3>&1; \"$@\" > >(cat; echo closed >&3) 3>&-; echo ended";
    let folder = test_env::folder();
    let program =
        Program::shell("echo one; exec >/dev/null; sleep 1").as_arguments_of(recorder(&folder.path().join("r")));
    let outcome = program.launched_by(&["bash", "-c", line, "bash"]).plain();
    assert_eq!(outcome.text(), "one\nclosed\nended\n", "{outcome}");
}

/// Job control: the command stops as the program does and with the same signal, and goes on with
/// it.
#[test]
fn command_stops_with_the_program() {
    for (signal, number) in [(Signal::SIGSTOP, "19"), (Signal::SIGTSTP, "20"), (Signal::SIGTTIN, "21")] {
        let folder = test_env::folder();
        let mut command = Command::new(test_env::command());
        command.args(["record", "-q", "-o"]).arg(folder.path().join("r")).arg("--").arg(target::c("signal_log"));
        // A group of its own below this process: the kernel stops no process of an orphaned group,
        // and the group of the tests may be one.
        let mut child = command.args(["stop", number]).stdin(Stdio::null()).process_group(0).spawn().expect("starts");
        let pid = Pid::from_raw(child.id() as i32);
        let seen = waitpid(pid, Some(WaitPidFlag::WUNTRACED)).expect("waits");
        assert_eq!(seen, WaitStatus::Stopped(pid, signal), "{number}");
        // The program's child continues the program alone; nobody continues the command but its own
        // survivor process.
        let status = child.wait().expect("waits");
        assert_eq!(status.code(), Some(6), "{number}");
    }
}

#[test]
fn continued_command_continues_the_program() {
    let folder = test_env::folder();
    let mut command = Command::new(test_env::command());
    command.args(["record", "-q", "-o"]).arg(folder.path().join("r")).args([
        "--",
        "bash",
        "-c",
        "kill -STOP $$; exit 7",
    ]);
    let mut child = command.stdin(Stdio::null()).spawn().expect("starts");
    let pid = Pid::from_raw(child.id() as i32);
    let seen = waitpid(pid, Some(WaitPidFlag::WUNTRACED)).expect("waits");
    assert_eq!(seen, WaitStatus::Stopped(pid, Signal::SIGSTOP));
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(child.try_wait().expect("waits"), None, "it stays stopped");
    kill(pid, Signal::SIGCONT).expect("SIGCONT");
    assert_eq!(child.wait().expect("waits").code(), Some(7));
}

/// Where no further process may be started, the program replaces the command, unrecorded, with a
/// message.
#[test]
fn program_runs_unrecorded_under_a_process_limit() {
    if !is_root() {
        return;
    }
    let folder = test_env::folder();
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("open to all");
    let command = folder.path().join("heaptape");
    test_env::copy(test_env::command(), &command);
    let arguments = [
        "setpriv",
        "--reuid=61234",
        "--regid=61234",
        "--clear-groups",
        "bash",
        "-c",
        "ulimit -u 1; exec \"$@\"",
        "bash",
    ];
    let program = Program::new("echo").args(["it", "ran"]);
    let recorder = Program::new(&command).args(["record", "-o"]).arg(folder.path().join("r")).arg("--");
    let outcome = program.as_arguments_of(recorder).launched_by(&arguments).env("HOME", folder.path()).plain();
    assert_eq!((outcome.code(), outcome.text().as_str()), (0, "it ran\n"), "{outcome}");
    assert!(outcome.error().contains("runs unrecorded") && outcome.error().contains("RLIMIT_NPROC"), "{outcome}");
    assert!(!folder.path().join("r").exists(), "nothing is left");
}

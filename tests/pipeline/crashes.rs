//! Crashes of heaptape itself: a report with the call stack is in the recording and in the log, the
//! recording is readable, and the program is unharmed.

use heaptape_tests::run::{finish_while, started, survivor};
use heaptape_tests::wait::until;
use heaptape_tests::{Daemon, Program, target, test_env, torture};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const FATAL: [Signal; 5] = [Signal::SIGSEGV, Signal::SIGBUS, Signal::SIGILL, Signal::SIGFPE, Signal::SIGABRT];

/// Asserts that `text` is a complete crash report with this signal, process and function.
#[track_caller]
fn is_report(text: &str, signal: Signal, process: &str, function: &str) {
    let wanted = ["heaptape crash report\nversion: ", &format!("cause: {} sent by process ", signal.as_str()), process];
    for part in
        wanted.into_iter().chain([function, "  #0 0x", "/heaptape+0x", "registers: rip=0x", "end of the report\n"])
    {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
    assert!(text.len() < 256 << 10 && text.bytes().all(|byte| byte == b'\n' || !byte.is_ascii_control()), "{text}");
}

fn report_in(folder: &Path) -> String {
    std::fs::read_to_string(folder.join("crash-report.txt")).unwrap_or_else(|error| panic!("no report: {error}"))
}

#[test]
fn recorder_crash_leaves_a_report_and_an_unharmed_program() {
    for signal in FATAL {
        let line =
            "i=0; while [ $i -lt 60 ]; do i=$((i + 1)); /bin/true; echo $i; done; sleep 0.5; echo err >&2; exit 7";
        let program = Program::shell(line);
        let plain = program.plain();
        let recording = program.recorded_while(|command, _| {
            let recorder = survivor(command);
            std::thread::sleep(Duration::from_millis(150));
            kill(recorder, signal).expect("the recorder is there");
        });
        let outcome = &recording.outcome;
        assert_eq!((outcome.code(), outcome.text()), (plain.code(), plain.text()), "{signal}: {outcome}");
        let text = report_in(&recording.folder);
        is_report(&text, signal, "the recorder of `heaptape record`", " heaptape_recorder::");
        // The output of the program, and one line that names the report.
        let file = recording.folder.join("crash-report.txt");
        let closing =
            format!("the recorder crashed: the recording is truncated; please send its report: {}", file.display());
        assert!(outcome.error().starts_with("err\n") && outcome.error().contains(&closing), "{outcome}");
        let verdict = recording.heaptape(&["verify"]);
        let text = verdict.text() + &verdict.error();
        assert_eq!(verdict.code(), 1, "{verdict}");
        assert!(text.contains("truncated") && text.contains("crash-report.txt"), "{verdict}");
        assert!(recording.heaptape(&["report"]).text().contains("crash-report.txt"), "{signal}");
    }
    torture::passed(4, "crashes of the recorder with a report and an unharmed program", FATAL.len() as u64);
}

#[test]
fn command_crash_prints_a_report() {
    let folder = test_env::folder();
    let pipe = folder.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    for signal in FATAL {
        let mut command = Command::new(test_env::command());
        command.arg("dump").arg(&pipe);
        // It waits for a writer: asleep for a tenth of a second. Not every kernel shows where.
        let outcome = finish_while(command, b"", |child| {
            let stat = format!("/proc/{}/stat", child.id());
            let mut asleep = 0;
            until("it opens the pipe", || {
                let is_asleep = std::fs::read_to_string(&stat).is_ok_and(|text| text.contains(") S "));
                asleep = if is_asleep { asleep + 1 } else { 0 };
                asleep > 10
            });
            kill(Pid::from_raw(child.id() as i32), signal).expect("the command is there");
        });
        assert_eq!(outcome.code(), 128 + signal as i32, "it ends by the signal: {outcome}");
        is_report(&outcome.error(), signal, "the command, pid ", " heaptape::main");
    }
}

/// While the program runs, a fault signal that is sent to the command goes to the program.
#[test]
fn fault_signals_to_the_command_reach_the_program() {
    for signal in FATAL {
        let recording = Program::new("sleep").arg("300").recorded_while(|command, _| {
            survivor(command);
            until("the program runs", || started(command.id()).is_some());
            kill(Pid::from_raw(command.id() as i32), signal).expect("the command is there");
        });
        assert_eq!(recording.outcome.code(), 128 + signal as i32, "{}", recording.outcome);
        assert!(!recording.folder.join("crash-report.txt").exists(), "{}", recording.outcome);
    }
}

#[test]
fn daemon_crash_leaves_a_report_and_readable_epochs() {
    for signal in [Signal::SIGSEGV, Signal::SIGABRT] {
        let mut daemon = Daemon::start(&["--mode", "trace"]);
        let mut running = daemon.spawn(&target::c("leaks_slowly"), &["400", "5"], None);
        until("it is counted", || {
            daemon.list("leaks_slowly").iter().any(|one| one["live_blocks"].as_u64().unwrap_or(0) > 20)
        });
        // The events of the last second are in the daemon's memory, and end with it.
        daemon.query(&["flush"]);
        daemon.replace(signal);
        is_report(&daemon.log(), signal, "the daemon, pid ", " heaptape_daemon::service::");
        assert!(running.0.wait().expect("it ends").success(), "the program goes on");
        until("it is over", || daemon.query(&["status"])["processes"] == 0);
        daemon.stop();
        let epochs = daemon.epochs(&[]);
        let crashed: Vec<_> = epochs.iter().filter(|epoch| epoch.join("crash-report.txt").exists()).collect();
        let [epoch] = crashed[..] else { panic!("{crashed:?} of {epochs:?}") };
        is_report(&report_in(epoch), signal, "the daemon, pid ", " heaptape_daemon::service::");
        let verdict = daemon.heaptape(&["verify"], std::slice::from_ref(epoch));
        let text = verdict.text() + &verdict.error();
        assert!(verdict.code() == 1 && text.contains("crash-report.txt"), "{verdict}");
        let report = daemon.report(std::slice::from_ref(epoch));
        assert!(report.only("leaks_slowly").allocs > 20, "{report:#?}");
    }
}

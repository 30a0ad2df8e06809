//! Fatal signals of heaptape itself: the recording is readable, the signal is named, and the
//! program is unharmed. Reports of panics are tested with the command (`cli/tests/crash.rs`).

use heaptape_tests::run::{started, survivor};
use heaptape_tests::wait::until;
use heaptape_tests::{Daemon, Program, target, torture};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::time::Duration;

const FAULTS: [Signal; 5] = [Signal::SIGSEGV, Signal::SIGBUS, Signal::SIGILL, Signal::SIGFPE, Signal::SIGABRT];

/// Those that end a process when another one sends them. Rust's handler of the other two, which
/// recognizes a full stack, waits for the fault to happen again.
const FATAL: [Signal; 3] = [Signal::SIGILL, Signal::SIGFPE, Signal::SIGABRT];

#[test]
fn recorder_that_crashes_leaves_a_recording_and_an_unharmed_program() {
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
        // The output of the program, and one line that names the signal.
        let closing = format!("the recorder crashed ({}): the recording is truncated", signal.as_str());
        assert!(outcome.error().starts_with("err\n") && outcome.error().contains(&closing), "{outcome}");
        let verdict = recording.heaptape(&["verify"]);
        assert!(verdict.code() == 1 && verdict.text().contains("truncated"), "{verdict}");
    }
    torture::passed(4, "crashes of the recorder with a readable recording and an unharmed program", FATAL.len() as u64);
}

/// While the program runs, a fault signal that is sent to the command goes to the program.
#[test]
fn fault_signals_to_the_command_reach_the_program() {
    for signal in FAULTS {
        let recording = Program::new("sleep").arg("300").recorded_while(|command, _| {
            survivor(command);
            until("the program runs", || started(command.id()).is_some());
            kill(Pid::from_raw(command.id() as i32), signal).expect("the command is there");
        });
        assert_eq!(recording.outcome.code(), 128 + signal as i32, "{}", recording.outcome);
        assert!(!recording.outcome.error().contains("crashed"), "{}", recording.outcome);
    }
}

#[test]
fn daemon_that_crashes_leaves_readable_epochs() {
    for signal in [Signal::SIGILL, Signal::SIGABRT] {
        let mut daemon = Daemon::start(&["--mode", "trace"]);
        let mut running = daemon.spawn(&target::c("leaks_slowly"), &["400", "5"], None);
        until("it is counted", || {
            daemon.list("leaks_slowly").iter().any(|one| one["live_blocks"].as_u64().unwrap_or(0) > 20)
        });
        // The events of the last second are in the daemon's memory, and end with it.
        daemon.query(&["flush"]);
        daemon.replace(signal);
        assert!(running.0.wait().expect("it ends").success(), "the program goes on");
        until("it is over", || daemon.query(&["status"])["processes"] == 0);
        daemon.stop();
        let epochs = daemon.epochs(&[]);
        let truncated: Vec<_> = epochs
            .iter()
            .filter(|epoch| daemon.heaptape(&["verify"], std::slice::from_ref(epoch)).code() == 1)
            .collect();
        let [epoch] = truncated[..] else { panic!("{truncated:?} of {epochs:?}") };
        let report = daemon.report(std::slice::from_ref(epoch));
        assert!(report.only("leaks_slowly").allocs > 20, "{report:#?}");
    }
}

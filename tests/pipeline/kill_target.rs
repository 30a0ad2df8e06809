//! SIGKILL at random moments, of the program and of the recorder.

use heaptape_tests::cgroup::Cgroup;
use heaptape_tests::recording::heaptape;
use heaptape_tests::run::survivor;
use heaptape_tests::wait::until;
use heaptape_tests::{Process, Program, is_full, own, target, test_env, torture};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::ffi::OsStr;
use std::path::Path;
use std::process::Child;
use std::time::Duration;

/// Returns the process that the command started.
fn traced(command: &Child) -> Option<i32> {
    let id = command.id();
    let text = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).ok()?;
    let mut children = text.split_whitespace().filter_map(|word| word.parse::<i32>().ok());
    let is_one = |exe: &Path| exe.ends_with("endless") || exe.ends_with("pairs");
    children.find(|pid| std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| is_one(&exe)))
}

/// Waits until the program counts itself, and a moment more.
fn wait_for(file: &Path, moment: Duration) {
    until("the program starts", || own::has_begun(file));
    std::thread::sleep(moment);
}

/// Asserts that all calls that had returned are in the recording, and at most one more per thread.
#[track_caller]
fn published(own: &own::Thread, process: &Process, threads: u64) {
    let beyond = |name: &str, recorded: u64, counted: u64, more: u64| {
        assert!(
            (counted..=counted + threads + more).contains(&recorded),
            "{name}: {counted} had returned, {recorded} are recorded\n{own:#?}\n{process:#?}"
        );
    };
    // The start of a thread allocates once or twice.
    beyond("allocations", process.allocs, own.allocs, if threads > 1 { 2 * threads } else { 0 });
    beyond("resizes", process.resizes, own.resizes, 0);
    beyond("frees", process.frees, own.frees, 0);
}

#[test]
fn events_before_sigkill_of_the_program_are_recorded() {
    let rounds = if is_full() { 1_000 } else { 12 };
    for round in 0..rounds {
        let threads = [1, 1, 2, 4][round % 4];
        let folder = test_env::folder();
        let file = folder.path().join("own");
        let program = Program::new(target::c("endless")).arg(threads.to_string()).env("OWN_FILE", &file);
        let moment = Duration::from_micros((round as u64 * 7919) % 60_000);
        let recording = program.recorded_while(|command, _| {
            wait_for(&file, moment);
            let pid = traced(command).expect("the traced process");
            kill(Pid::from_raw(pid), Signal::SIGKILL).expect("SIGKILL");
        });
        assert_eq!(recording.outcome.code(), 128 + 9, "{}", recording.outcome);
        let report = recording.report();
        let process = report.only("endless");
        process.assert_accounting();
        // The event in progress of each thread was not yet published.
        assert!(process.lost_events <= threads, "{process:#?}");
        assert_eq!(process.exit.get("signal").and_then(serde_json::Value::as_u64), Some(9), "{process:#?}");
        published(&own::sum(&own::read(&file)), process, threads);
        let leaks = recording.heaptape(&["leaks", "--json"]);
        assert!(leaks.code() < 2, "{leaks}");
        let verdict = recording.heaptape(&["verify"]);
        assert!(verdict.code() < 2, "{verdict}");
    }
    torture::passed(3, "SIGKILLs of the program with all published events recorded", rounds as u64);
}

/// The command is killed under load: the program goes on, and all its events are recorded, once.
#[test]
fn sigkill_of_the_command_loses_nothing() {
    let rounds = if is_full() { 100 } else { 2 };
    for round in 0..rounds {
        let folder = test_env::folder();
        let file = folder.path().join("own");
        let program = Program::new(target::c("pairs")).args(["150000", "4"]).env("OWN_FILE", &file);
        let moment = Duration::from_micros((round as u64 * 104_729) % 120_000);
        let recording = program.recorded_while(|command, _| {
            wait_for(&file, moment);
            command.kill().expect("SIGKILL");
        });
        let resumed =
            heaptape([OsStr::new("record"), "--quiet".as_ref(), "--resume".as_ref(), recording.folder.as_ref()]);
        assert_eq!(resumed.code(), 0, "round {round}, after {moment:?}: {resumed}");
        let recording = recording.complete();
        own::equal(&own::read(&file), &own::recorded(&recording));
    }
    torture::passed(4, "SIGKILLs of the command under load without a lost or duplicate event", rounds as u64);
}

/// The survivor process is killed: the program continues unharmed, another survivor process records
/// it, no event is lost or doubled, and the killed recording is reported as truncated.
#[test]
fn sigkill_of_the_survivor_process_loses_nothing() {
    let rounds = if is_full() { 100 } else { 3 };
    for round in 0..rounds {
        let folder = test_env::folder();
        let file = folder.path().join("own");
        let program = Program::new(target::c("pairs")).args(["700000", "2"]).env("OWN_FILE", &file);
        let moment = Duration::from_micros((round as u64 * 104_729) % 200_000);
        let recording = program.recorded_while(|command, _| {
            let survivor = survivor(command);
            wait_for(&file, moment);
            kill(survivor, Signal::SIGKILL).expect("SIGKILL");
        });
        assert_eq!(recording.outcome.code(), 0, "the status is the program's: {}", recording.outcome);
        assert!(recording.outcome.error().contains("the recorder was killed"), "{}", recording.outcome);
        let own = own::sum(&own::read(&file));
        assert!(own.allocs >= 1_400_000);
        let verdict = recording.heaptape(&["verify"]);
        assert_eq!(verdict.code(), 1, "round {round}, after {moment:?}: readable and truncated: {verdict}");
        let resumed =
            heaptape([OsStr::new("record"), "--quiet".as_ref(), "--resume".as_ref(), recording.folder.as_ref()]);
        assert_eq!(resumed.code(), 1, "no process to wait for, which is reported: {resumed}");
        if recording.files("events.tape").is_empty() {
            // Killed before it wrote anything.
            let report = recording.heaptape(&["report"]);
            assert!(report.code() == 2 && report.error().contains("nothing was recorded"), "{report}");
            continue;
        }
        let report = recording.report();
        let segments: Vec<_> = report.all("pairs").collect();
        assert!(segments.iter().any(|process| !process.complete), "the killed recording is truncated: {segments:#?}");
        let (allocs, lost) =
            segments.iter().fold((0, 0), |sum, process| (sum.0 + process.allocs, sum.1 + process.lost_events));
        assert!((own.allocs..=own.allocs + 10).contains(&allocs) && lost == 0, "{own:#?} {segments:#?}");
    }
    torture::passed(4, "SIGKILLs of the recorder with an unharmed program and no lost event", rounds as u64);
}

#[test]
fn stopped_recorder_delays_the_program_by_a_bounded_time() {
    let folder = test_env::folder();
    let file = folder.path().join("own");
    let program = Program::new(target::c("pairs")).args(["500000", "1"]).env("OWN_FILE", &file);
    let recording = program.recorded_while(|command, _| {
        let id = survivor(command);
        wait_for(&file, Duration::from_millis(3));
        kill(id, Signal::SIGSTOP).expect("SIGSTOP");
        // The program ends although its events are not drained: its own counts reach their end.
        until("the program ends", || own::sum(&own::read(&file)).allocs >= 500_000);
        kill(id, Signal::SIGCONT).expect("SIGCONT");
    });
    assert_eq!(recording.outcome.code(), 0, "{}", recording.outcome);
    let report = recording.report();
    let process = report.only("pairs");
    let own = own::sum(&own::read(&file));
    assert_eq!(process.emitted_events, own.allocs + own.resizes + own.frees, "{process:#?}");
    process.assert_accounting();
    torture::passed(7, "recorders stopped under load", 1);
}

/// A recorder that gets no processor for seconds is waited for, unlike one that is stopped.
#[test]
fn starved_recorder_loses_nothing() {
    let Some(group) = Cgroup::starved() else { return };
    let folder = test_env::folder();
    let file = folder.path().join("own");
    let program = Program::new(target::c("pairs")).args(["300000", "2"]).env("OWN_FILE", &file);
    let recording = program.recorded_while(|command, _| {
        let id = survivor(command);
        wait_for(&file, Duration::from_millis(1));
        std::fs::write(group.processes(), id.to_string()).expect("a process of the group");
        std::thread::sleep(Duration::from_secs(5));
        assert!(own::sum(&own::read(&file)).allocs < 600_000, "the program waits");
        group.feed();
    });
    own::equal(&own::read(&file), &own::recorded(&recording.success().complete()));
    torture::passed(7, "recorders without a processor for five seconds with no lost event", 1);
}

/// Program and recorder stop together for longer than the program waits for a stopped recorder, and
/// the program continues first.
#[test]
fn recorder_that_was_stopped_with_its_program_loses_nothing() {
    let folder = test_env::folder();
    let file = folder.path().join("own");
    let program = Program::new(target::c("pairs")).args(["300000", "2"]).env("OWN_FILE", &file);
    let recording = program.recorded_while(|command, _| {
        let id = survivor(command);
        wait_for(&file, Duration::from_millis(1));
        let program = Pid::from_raw(traced(command).expect("the traced process"));
        kill(id, Signal::SIGSTOP).expect("SIGSTOP");
        // The rings are full, and the threads wait.
        std::thread::sleep(Duration::from_millis(300));
        kill(program, Signal::SIGSTOP).expect("SIGSTOP");
        std::thread::sleep(Duration::from_millis(2_500));
        kill(program, Signal::SIGCONT).expect("SIGCONT");
        std::thread::sleep(Duration::from_millis(100));
        kill(id, Signal::SIGCONT).expect("SIGCONT");
    });
    own::equal(&own::read(&file), &own::recorded(&recording.success().complete()));
    torture::passed(7, "recorders stopped together with their programs with no lost event", 1);
}

/// Both die: what was written before is read.
#[test]
fn recording_is_readable_after_sigkill_of_program_and_recorder() {
    let folder = test_env::folder();
    let file = folder.path().join("own");
    let program = Program::new(target::c("endless")).arg("2").env("OWN_FILE", &file);
    let recording = program.recorded_while(|command, folder| {
        let has_chunk = || {
            let folders = std::fs::read_dir(folder).into_iter().flatten().flatten();
            let traces =
                folders.flat_map(|folder| ["trace.mtrc", "trace.mtrc.columns"].map(|name| folder.path().join(name)));
            traces.into_iter().any(|trace| trace.metadata().is_ok_and(|file| file.len() > 0))
        };
        until("something is written", has_chunk);
        let pid = traced(command).expect("the traced process");
        kill(survivor(command), Signal::SIGKILL).expect("SIGKILL");
        command.kill().expect("SIGKILL");
        kill(Pid::from_raw(pid), Signal::SIGKILL).expect("SIGKILL");
    });
    let verdict = recording.heaptape(&["verify"]);
    assert_eq!(verdict.code(), 1, "readable and truncated: {verdict}");
    let report = recording.report();
    assert!(report.only("endless").allocs > 10_000, "{report:#?}");
    torture::passed(5, "SIGKILLs of program and recorder", 1);
}

/// The next start removes what a killed recorder left in the folder of sockets, and nothing else.
#[test]
fn socket_of_a_killed_recorder_is_removed_at_the_next_start() {
    let folder = test_env::folder();
    let folders = || {
        let names = std::fs::read_dir(folder.path()).expect("the folder").flatten();
        names.filter(|entry| entry.file_name().to_string_lossy().starts_with("heaptape-")).count()
    };
    let program = |line: &str| Program::shell(line).env("TMPDIR", folder.path()).env("XDG_RUNTIME_DIR", folder.path());
    program("exec sleep 0.3").recorded_while(|command, _| {
        until("the recorder makes its folder", || folders() != 0);
        std::thread::sleep(Duration::from_millis(200));
        // In this order: a command that lives replaces a killed recorder.
        let survivor = survivor(command);
        command.kill().expect("SIGKILL");
        kill(survivor, Signal::SIGKILL).expect("SIGKILL");
    });
    assert_eq!(folders(), 1, "a killed recorder cannot clear up");
    std::fs::create_dir(folder.path().join("heaptape-kept")).expect("a folder of another name");
    // Another recorder that lives keeps its own.
    program("exec sleep 1").recorded_while(|_, _| {
        std::thread::sleep(Duration::from_millis(500));
        let inner = program("exit 9").recorded();
        assert_eq!(inner.outcome.code(), 9);
        assert_eq!(folders(), 2, "that of the running recorder, and the folder of another name");
    });
    assert_eq!(folders(), 1);
    torture::passed(4, "removed sockets of killed recorders", 1);
}

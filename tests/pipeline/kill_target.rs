//! SIGKILL at random moments, of the program and of the recorder.

use heaptape_tests::recording::heaptape;
use heaptape_tests::run::survivor;
use heaptape_tests::{Process, Program, is_full, own, target, test_env, torture};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::ffi::OsStr;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

/// The process that the command started.
fn traced(command: &Child) -> Option<i32> {
    let id = command.id();
    let text = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).ok()?;
    let mut children = text.split_whitespace().filter_map(|word| word.parse::<i32>().ok());
    children.find(|pid| std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.ends_with("writes_on")))
}

/// Waits until the program counts itself, and a moment more.
fn wait_for(file: &Path, moment: Duration) {
    let start = Instant::now();
    while !own::has_begun(file) {
        assert!(start.elapsed() < Duration::from_secs(20), "the program does not start");
        std::thread::sleep(Duration::from_micros(200));
    }
    std::thread::sleep(moment);
}

/// What the program had counted when its calls had returned is in the recording; and at most one
/// call a thread beyond it.
#[track_caller]
fn published(own: &own::Thread, process: &Process, threads: u64) {
    let beyond = |name: &str, recorded: u64, counted: u64, more: u64| {
        assert!(
            (counted..=counted + threads + more).contains(&recorded),
            "{name}: {counted} had returned, {recorded} are recorded\n{own:#?}\n{process:#?}"
        );
    };
    // A thread's birth allocates once or twice besides.
    beyond("allocations", process.allocs, own.allocs, if threads > 1 { 2 * threads } else { 0 });
    beyond("resizes", process.resizes, own.resizes, 0);
    beyond("frees", process.frees, own.frees, 0);
}

#[test]
fn killed_at_a_random_moment() {
    let rounds = if is_full() { 1_000 } else { 25 };
    for round in 0..rounds {
        let threads = [1, 1, 2, 4][round % 4];
        let folder = test_env::folder();
        let file = folder.path().join("own");
        let program = Program::new(target::c("writes_on")).arg(threads.to_string()).env("OWN_FILE", &file);
        let moment = Duration::from_micros((round as u64 * 7919) % 60_000);
        let recording = program.recorded_while(|command, _| {
            wait_for(&file, moment);
            let pid = traced(command).expect("the traced process");
            kill(Pid::from_raw(pid), Signal::SIGKILL).expect("SIGKILL");
        });
        assert_eq!(recording.outcome.code(), 128 + 9, "{}", recording.outcome);
        let report = recording.report();
        let process = report.only("writes_on");
        process.ledger();
        // What a thread was at when it was killed was not yet published.
        assert!(process.lost_events <= threads, "{process:#?}");
        assert_eq!(process.exit.get("signal").and_then(serde_json::Value::as_u64), Some(9), "{process:#?}");
        published(&own::sum(&own::read(&file)), process, threads);
        let leaks = recording.heaptape(&["leaks", "--json"]);
        assert!(leaks.code() < 2, "{leaks}");
        let verdict = recording.heaptape(&["verify"]);
        assert!(verdict.code() < 2, "{verdict}");
    }
    torture::passed(3, "SIGKILLs of the program, everything published recorded", rounds as u64);
}

/// The command is killed under load: the program goes on, its events are recorded to the last, none
/// is lost and none doubled.
#[test]
fn the_command_is_killed() {
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
        let recording = recording.whole();
        own::equal(&own::read(&file), &own::recorded(&recording));
    }
    torture::passed(4, "SIGKILLs of the command under load, nothing lost and nothing doubled", rounds as u64);
}

/// The process that holds the recording is killed: the program goes on unharmed, and what was
/// written is read, and said to be cut.
#[test]
fn the_survivor_is_killed() {
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
        assert_eq!(verdict.code(), 1, "round {round}, after {moment:?}: readable and cut: {verdict}");
        let resumed =
            heaptape([OsStr::new("record"), "--quiet".as_ref(), "--resume".as_ref(), recording.folder.as_ref()]);
        assert_eq!(resumed.code(), 1, "there is nobody to wait for, and that is said: {resumed}");
        if recording.files("events.tape").is_empty() {
            // Killed before it wrote anything.
            let report = recording.heaptape(&["report"]);
            assert!(report.code() == 2 && report.error().contains("nothing was recorded"), "{report}");
            continue;
        }
        let report = recording.report();
        for process in report.all("pairs") {
            assert!(!process.complete && process.allocs <= own.allocs + 10, "{process:#?}");
        }
    }
    torture::passed(4, "SIGKILLs of the recorder, the program unharmed, the rest read", rounds as u64);
}

/// A recorder that is stopped holds a program for a bounded time only.
#[test]
fn the_recorder_is_stopped() {
    let folder = test_env::folder();
    let file = folder.path().join("own");
    let program = Program::new(target::c("pairs")).args(["500000", "1"]).env("OWN_FILE", &file);
    let mut waited = Duration::ZERO;
    let recording = program.recorded_while(|command, _| {
        let id = survivor(command);
        wait_for(&file, Duration::from_millis(3));
        kill(id, Signal::SIGSTOP).expect("SIGSTOP");
        let start = Instant::now();
        // The program ends although nobody takes its events: its descriptors close, its own figures
        // stand still.
        let expected = 500_000;
        while own::sum(&own::read(&file)).allocs < expected {
            assert!(start.elapsed() < Duration::from_secs(40), "the program is held by a stopped recorder");
            std::thread::sleep(Duration::from_millis(10));
        }
        waited = start.elapsed();
        kill(id, Signal::SIGCONT).expect("SIGCONT");
    });
    assert_eq!(recording.outcome.code(), 0, "{}", recording.outcome);
    assert!(waited < Duration::from_secs(10), "{waited:?}");
    let report = recording.report();
    let process = report.only("pairs");
    let own = own::sum(&own::read(&file));
    assert_eq!(process.emitted_events, own.allocs + own.resizes + own.frees, "{process:#?}");
    process.ledger();
    torture::passed(7, "a recorder stopped under load", 1);
}

/// Both die: what was written before is read.
#[test]
fn both_are_killed() {
    let folder = test_env::folder();
    let file = folder.path().join("own");
    let program = Program::new(target::c("writes_on")).arg("2").env("OWN_FILE", &file);
    let recording = program.recorded_while(|command, folder| {
        let start = Instant::now();
        let has_chunk = || {
            let images = std::fs::read_dir(folder).into_iter().flatten().flatten();
            let traces = images.flat_map(|image| ["trace.mtrc", "trace.mtrc.zst"].map(|name| image.path().join(name)));
            traces.into_iter().any(|trace| trace.metadata().is_ok_and(|file| file.len() > 0))
        };
        while !has_chunk() {
            assert!(start.elapsed() < Duration::from_secs(30), "something is written");
            std::thread::sleep(Duration::from_millis(1));
        }
        let pid = traced(command).expect("the traced process");
        kill(survivor(command), Signal::SIGKILL).expect("SIGKILL");
        command.kill().expect("SIGKILL");
        kill(Pid::from_raw(pid), Signal::SIGKILL).expect("SIGKILL");
    });
    let verdict = recording.heaptape(&["verify"]);
    assert_eq!(verdict.code(), 1, "readable and cut: {verdict}");
    let report = recording.report();
    assert!(report.only("writes_on").allocs > 10_000, "{report:#?}");
    torture::passed(5, "SIGKILL of both", 1);
}

/// What a killed recorder leaves behind in the folder of sockets goes away at the next start, and
/// nothing else does.
#[test]
fn a_killed_recorders_socket() {
    let folder = test_env::folder();
    let nests = || {
        let names = std::fs::read_dir(folder.path()).expect("the folder").flatten();
        names.filter(|entry| entry.file_name().to_string_lossy().starts_with("heaptape-")).count()
    };
    let program = |line: &str| Program::shell(line).env("TMPDIR", folder.path()).env("XDG_RUNTIME_DIR", folder.path());
    program("exec sleep 0.3").recorded_while(|command, _| {
        let start = Instant::now();
        while nests() == 0 {
            assert!(start.elapsed() < Duration::from_secs(20), "the recorder makes its folder");
        }
        std::thread::sleep(Duration::from_millis(200));
        kill(survivor(command), Signal::SIGKILL).expect("SIGKILL");
        command.kill().expect("SIGKILL");
    });
    assert_eq!(nests(), 1, "a killed recorder cannot clear up");
    std::fs::create_dir(folder.path().join("heaptape-kept")).expect("a folder of another name");
    // Another recorder that lives keeps its own.
    program("exec sleep 1").recorded_while(|_, _| {
        std::thread::sleep(Duration::from_millis(500));
        let inner = program("exit 9").recorded();
        assert_eq!(inner.outcome.code(), 9);
        assert_eq!(nests(), 2, "the living one's, and the folder of another name");
    });
    assert_eq!(nests(), 1);
    torture::passed(4, "sockets of killed recorders cleared away", 1);
}

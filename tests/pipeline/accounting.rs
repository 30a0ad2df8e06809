//! The accounting of real recordings: with gaps, left open by a killed daemon, continued by the
//! next one, and damaged.

#[path = "../../analyzer/tests/law/mod.rs"]
mod law;

use heaptape_tests::daemon::Running;
use heaptape_tests::recording::heaptape;
use heaptape_tests::wait::until;
use heaptape_tests::{Daemon, Program, own, ring, target, test_env};
use nix::sys::signal::Signal;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Checks the accounting of a recording, and of so many copies with a truncated file or a flipped bit.
/// Returns the number of lost events.
#[track_caller]
fn law_holds(recording: &Path, what: &str, damages: usize) -> u64 {
    let lost = law::holds(recording, what).expect("a recording");
    let directory = test_env::folder();
    let copy = directory.path().join("copy");
    let copied = Command::new("cp").arg("-r").args([recording, &copy]).status().expect("cp");
    assert!(copied.success());
    let folders = fs::read_dir(&copy).expect("the copy").map(|entry| entry.expect("an entry").path());
    let files: Vec<PathBuf> = folders
        .filter(|folder| folder.is_dir())
        .flat_map(|folder| fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()))
        .filter(|file| file.metadata().is_ok_and(|file| file.len() > 0) && !file.ends_with("profile.mptl"))
        .collect();
    assert!(!files.is_empty(), "{what}: nothing to damage");
    for times in 0..damages {
        let file = &files[times % files.len()];
        let bytes = fs::read(file).expect("the file");
        let at = times.wrapping_add(3).wrapping_mul(2_654_435_761) % bytes.len();
        let (is_truncated, mut damaged) = (times % 4 < 2, bytes.clone());
        if is_truncated {
            damaged.truncate(at);
        } else {
            damaged[at] ^= 1 << (times % 8);
        }
        fs::write(file, damaged).expect("the damaged file");
        let how = if is_truncated { "truncated" } else { "flipped" };
        law::holds(&copy, &format!("{what}, {} {how} at {at}", file.display()));
        fs::write(file, bytes).expect("the original file");
    }
    lost
}

#[test]
fn accounting_holds_for_a_recording_with_gaps() {
    let program = Program::new(target::c("pairs")).args(["40000", "2"]);
    let recording = program.option("--overflow=drop").option(ring(1)).recorded();
    assert!(law_holds(&recording.folder, "gaps", 6) > 0, "the smallest ring must overflow here");
    let whole = Program::new(target::c("known_stacks")).recorded().complete();
    assert_eq!(law_holds(&whole.folder, "no gaps", 6), 0);
}

/// Returns the metadata of the first tape below a folder.
fn tape_of(folder: &Path) -> Option<fs::Metadata> {
    let mut entries = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    entries.find_map(|path| if path.ends_with("events.tape") { path.metadata().ok() } else { tape_of(&path) })
}

/// Runs a program that allocates while its daemon is replaced, and kills it once the next one has
/// recorded it. Returns the daemon, its epochs, and the number of events that the program
/// counted itself.
fn replaced(signal: Signal) -> (Daemon, Vec<PathBuf>, u64) {
    let directory = test_env::folder();
    let file = directory.path().join("own");
    let mut daemon = Daemon::start(&["--mode", "trace"]);
    let mut command = daemon.command(&target::c("paces"));
    let child = command.args(["100000000", "1", "100"]).env("OWN_FILE", &file).spawn().expect("the program starts");
    let mut busy = Running(child);
    until("a chunk is written", || tape_of(&daemon.state()).is_some_and(|tape| tape.len() > 4096));
    daemon.replace(signal);
    let recorded = |one: &serde_json::Value| one["recorded"].as_u64() > Some(10_000);
    until("it is recorded again", || daemon.list("paces").iter().any(recorded));
    busy.0.kill().expect("it runs");
    busy.0.wait().expect("its end");
    until("its end is known", || daemon.list("paces").is_empty());
    daemon.stop();
    let own = own::sum(&own::read(&file));
    let epochs = daemon.epochs(&[]);
    assert_eq!(epochs.len(), 2, "{epochs:?}");
    (daemon, epochs, own.allocs + own.resizes + own.frees)
}

#[test]
fn accounting_holds_across_a_killed_daemon() {
    let (daemon, epochs, own) = replaced(Signal::SIGKILL);
    let mut emitted = 0;
    for epoch in &epochs {
        for process in &daemon.report(std::slice::from_ref(epoch)).processes {
            emitted += process.emitted_events;
        }
        law::holds(epoch, &epoch.display().to_string());
    }
    law_holds(&epochs[0], "left open", 4);
    // Events that the killed daemon had read and not written are in neither, and none is in both.
    assert!(emitted <= own + 100, "{emitted} of {own} events");
    let next = std::slice::from_ref(&epochs[1]);
    let verdict = daemon.heaptape(&["verify"], next);
    assert!(!verdict.text().contains("the events say"), "nothing is wrong with it: {verdict}");
    let report = daemon.heaptape(&["report"], next);
    assert!(report.text().contains(", of which the last "), "it ran before: {report}");
}

/// Between two daemons no event is counted twice or lost.
#[test]
fn events_are_counted_once_across_an_orderly_restart() {
    let (daemon, epochs, own) = replaced(Signal::SIGTERM);
    let mut emitted = 0;
    for epoch in &epochs {
        law::holds(epoch, "left in good order");
        let verdict = daemon.heaptape(&["verify"], std::slice::from_ref(epoch));
        assert!(!verdict.text().contains("the events say"), "{verdict}");
        let report = daemon.report(std::slice::from_ref(epoch));
        emitted += report.processes.iter().map(|process| process.emitted_events).sum::<u64>();
    }
    assert!((own..own + 100).contains(&emitted), "{emitted} events are accounted for, {own} happened");
}

/// A program removes its own recording. What could not be stored counts as lost, and each command
/// reports it.
#[test]
fn events_of_a_removed_folder_count_as_lost() {
    let folder = test_env::folder();
    let destination = folder.path().join("recording");
    let line = format!("rm -rf {}/*.sh; exec true", destination.display());
    let mut command = Command::new(test_env::command());
    command.arg("record").arg("-o").arg(&destination).args(["--", "sh", "-c", &line]);
    let output = command.output().expect("the command");
    let output = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.contains("none lost") && !output.contains(" 0 events are lost"), "{output}");
    assert!(law::holds(&destination, "a folder that went away").is_some_and(|lost| lost > 0), "{output}");
    assert_eq!(heaptape(["verify".as_ref(), destination.as_os_str()]).code(), 1);
}

/// The daemon's counters never fall: not by a change of mode, and not while a process ends.
#[test]
fn counters_of_events_never_fall() {
    let mut daemon = Daemon::start(&["--mode", "profile", "--snapshot", "200ms"]);
    let names = ["recorded_events_total", "lost_events_total"];
    let last = std::cell::Cell::new([0.0; 2]);
    let look = |what: &str| {
        let now = names.map(|name| daemon.query(&["status"])["own"][name].as_f64().expect("a figure"));
        let before = last.replace(now);
        assert!(now[0] >= before[0] && now[1] >= before[1], "{what}: {before:?}, then {now:?}");
        now[0]
    };
    let mut running =
        Running(daemon.command(&target::c("leaks_slowly")).args(["1000000", "1"]).spawn().expect("it starts"));
    until("it is counted", || look("at first") > 50.0);
    let pid = running.0.id().to_string();
    for mode in ["trace", "flight", "profile", "trace"] {
        daemon.query(&["mode", &pid, mode]);
        (0..8).for_each(|_| assert!(look(mode) > 0.0));
    }
    running.0.kill().expect("it is there");
    running.0.wait().expect("it ends");
    until("it is over", || {
        look("while it ends");
        daemon.query(&["status"])["processes"] == 0 && daemon.query(&["status"])["own"]["parts_ending"] == 0.0
    });
    assert!(look("at the end") > 50.0);
    daemon.stop();
}

//! The accounting of real recordings: with gaps, left open by a daemon that was killed, taken over
//! by the next one, and all of them damaged.

#[path = "../../analyzer/tests/law/mod.rs"]
mod law;

use heaptape_tests::daemon::{Running, until};
use heaptape_tests::recording::heaptape;
use heaptape_tests::{Daemon, Program, own, target, test_env};
use nix::sys::signal::Signal;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// How long one recording is damaged again and again, and how often at least.
const TIME: Duration = Duration::from_secs(3);
const LEAST: usize = 3;

/// The law on a recording, and on what is left of it when its files are cut and flipped.
#[track_caller]
fn law_holds(recording: &Path, what: &str) -> u64 {
    let lost = law::holds(recording, what).expect("a recording");
    let place = test_env::folder();
    let copy = place.path().join("copy");
    let copied = Command::new("cp").arg("-r").args([recording, &copy]).status().expect("cp");
    assert!(copied.success());
    let folders = fs::read_dir(&copy).expect("the copy").map(|entry| entry.expect("an entry").path());
    let files: Vec<PathBuf> = folders
        .filter(|folder| folder.is_dir())
        .flat_map(|folder| fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()))
        .filter(|file| file.metadata().is_ok_and(|file| file.len() > 0) && !file.ends_with("profile.mptl"))
        .collect();
    assert!(!files.is_empty(), "{what}: nothing to damage");
    let (begun, mut times) = (Instant::now(), 0);
    while times < LEAST || begun.elapsed() < TIME && times < 100 {
        let file = &files[times % files.len()];
        let bytes = fs::read(file).expect("the file");
        let at = times.wrapping_add(3).wrapping_mul(2_654_435_761) % bytes.len();
        let (is_cut, mut damaged) = (times % 4 < 2, bytes.clone());
        if is_cut {
            damaged.truncate(at);
        } else {
            damaged[at] ^= 1 << (times % 8);
        }
        fs::write(file, damaged).expect("the damaged file");
        let how = if is_cut { "cut" } else { "flipped" };
        law::holds(&copy, &format!("{what}, {} {how} at {at}", file.display()));
        fs::write(file, bytes).expect("the whole file");
        times += 1;
    }
    lost
}

#[test]
fn a_recording_with_gaps() {
    let program = Program::new(target::c("pairs")).args(["40000", "2"]);
    let recording = program.option("--overflow=drop").option("--ring=4KiB").recorded();
    assert!(law_holds(&recording.folder, "gaps") > 0, "a ring of 256 records must overflow here");
    let whole = Program::new(target::c("known_stacks")).recorded().whole();
    assert_eq!(law_holds(&whole.folder, "no gaps"), 0);
}

/// The first tape below a folder.
fn tape_of(folder: &Path) -> Option<fs::Metadata> {
    let mut entries = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    entries.find_map(|path| if path.ends_with("events.tape") { path.metadata().ok() } else { tape_of(&path) })
}

/// A program that allocates without pause while its daemon is replaced; gives its epochs, and what
/// it counted itself.
fn replaced(signal: Signal) -> (Daemon, Vec<PathBuf>, u64) {
    let place = test_env::folder();
    let file = place.path().join("own");
    let mut daemon = Daemon::start(&["--mode", "trace"]);
    let mut command = daemon.command(&target::c("pairs"));
    let child = command.args(["8000000", "1"]).env("OWN_FILE", &file).spawn().expect("the program starts");
    let mut busy = Running(child);
    until("a chunk is written", || tape_of(&daemon.state()).is_some_and(|tape| tape.len() > 4096));
    daemon.replace(signal);
    assert!(busy.0.wait().expect("it ends").success());
    daemon.stop();
    let own = own::sum(&own::read(&file));
    let epochs = daemon.epochs(&[]);
    assert_eq!(epochs.len(), 2, "{epochs:?}");
    (daemon, epochs, own.allocs + own.resizes + own.frees)
}

#[test]
fn the_epochs_of_a_killed_daemon_and_of_the_next() {
    let (daemon, epochs, own) = replaced(Signal::SIGKILL);
    let mut emitted = 0;
    for epoch in &epochs {
        for process in &daemon.report(std::slice::from_ref(epoch)).processes {
            emitted += process.emitted_events;
        }
        law::holds(epoch, &epoch.display().to_string());
    }
    law_holds(&epochs[0], "left open");
    // Events that the killed daemon had read and not written are in neither, and none is in both.
    assert!(emitted <= own + 100, "{emitted} of {own} events");
    let next = std::slice::from_ref(&epochs[1]);
    let verdict = daemon.word(&["verify"], next);
    assert!(!verdict.text().contains("the events say"), "nothing is wrong with it: {verdict}");
    let report = daemon.word(&["report"], next);
    assert!(report.text().contains(", of which the last "), "it ran before: {report}");
}

/// Between two daemons nothing is counted twice, and nothing is forgotten.
#[test]
fn the_epochs_of_a_daemon_that_left_in_good_order() {
    let (daemon, epochs, own) = replaced(Signal::SIGTERM);
    let mut emitted = 0;
    for epoch in &epochs {
        law::holds(epoch, "left in good order");
        let verdict = daemon.word(&["verify"], std::slice::from_ref(epoch));
        assert!(!verdict.text().contains("the events say"), "{verdict}");
        let report = daemon.report(std::slice::from_ref(epoch));
        emitted += report.processes.iter().map(|process| process.emitted_events).sum::<u64>();
    }
    assert!((own..own + 100).contains(&emitted), "{emitted} events are accounted for, {own} happened");
}

/// A program that takes its own recording away: what could not be kept of it is lost, and everybody
/// says so.
#[test]
fn a_folder_that_goes_away_while_it_is_written() {
    let folder = test_env::folder();
    let place = folder.path().join("recording");
    let line = format!("rm -rf {}/*.sh; exec true", place.display());
    let mut command = Command::new(test_env::command());
    command.arg("record").arg("-o").arg(&place).args(["--", "sh", "-c", &line]);
    let said = command.output().expect("the command");
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(!said.contains("none lost") && !said.contains(" 0 events are lost"), "{said}");
    assert!(law::holds(&place, "a folder that went away").is_some_and(|lost| lost > 0), "{said}");
    assert_eq!(heaptape(["verify".as_ref(), place.as_os_str()]).code(), 1);
}

/// The daemon's counters never fall: not by a change of mode, and not while a process ends.
#[test]
fn counters_of_events_never_fall() {
    let mut daemon = Daemon::start(&["--mode", "profile", "--snapshot", "200ms"]);
    let names = ["recorded_events_total", "lost_events_total"];
    let last = std::cell::Cell::new([0.0; 2]);
    let look = |what: &str| {
        let now = names.map(|name| daemon.ask(&["status"])["own"][name].as_f64().expect("a figure"));
        let before = last.replace(now);
        assert!(now[0] >= before[0] && now[1] >= before[1], "{what}: {before:?}, then {now:?}");
        now[0]
    };
    let mut running =
        Running(daemon.command(&target::c("leaks_slowly")).args(["1000000", "1"]).spawn().expect("it starts"));
    until("it is counted", || look("at first") > 50.0);
    let pid = running.0.id().to_string();
    for mode in ["trace", "flight", "profile", "trace"] {
        daemon.ask(&["mode", &pid, mode]);
        (0..8).for_each(|_| assert!(look(mode) > 0.0));
    }
    running.0.kill().expect("it is there");
    running.0.wait().expect("it ends");
    until("it is over", || {
        look("while it ends");
        daemon.ask(&["status"])["processes"] == 0 && daemon.ask(&["status"])["own"]["parts_ending"] == 0.0
    });
    assert!(look("at the end") > 50.0);
    daemon.stop();
}

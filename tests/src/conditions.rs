//! Conditions in which real programs are run: bare, recorded, preloaded without a recorder, with a
//! killed recorder, and on a full disk.

use crate::disk::SmallDisk;
use crate::run::{started, survivor};
use crate::{Outcome, Program, same, test_env};
use nix::sys::signal::{Signal, kill};
use std::time::Duration;

/// Creates a shell line with an environment that makes its output reproducible.
fn program(line: &str) -> Program {
    let program = Program::new("bash").arg("-c").arg(line).env("LC_ALL", "C");
    program.env("PYTHONHASHSEED", "0").env("PERL_HASH_SEED", "0")
}

/// Asserts the same output and status bare, with the library and no recorder, and recorded, with a
/// balanced accounting. Returns false if the program is not installed.
#[track_caller]
pub fn recorded_and_preloaded(line: &str) -> bool {
    let program = program(line);
    // In an empty working folder, as the recorded run.
    let directory = test_env::folder();
    let bare = program.clone().folder(directory.path());
    let plain = bare.plain();
    if plain.code() == 127 {
        return false;
    }
    same(&plain, &bare.preloaded());
    let recording = program.recorded();
    same(&plain, &recording.outcome);
    let verdict = recording.heaptape(&["verify"]);
    assert!(verdict.code() < 2, "{line}: {verdict}");
    for process in recording.report().processes {
        process.assert_accounting();
        assert_eq!(process.lost_events, 0, "{line}: {process:#?}");
    }
    true
}

/// Returns a program that prints its own status, since a killed command has none of it.
fn with_status(line: &str) -> (Program, Option<Outcome>) {
    let program = program(&format!("{{\n{line}\n}}\necho status $?"));
    let plain = program.plain();
    let is_installed = !plain.text().contains("status 127");
    (program, is_installed.then_some(plain))
}

/// Returns the output of the program, without the lines of the command.
fn own(outcome: &Outcome) -> (String, Vec<String>) {
    let lines = outcome.error();
    let lines = lines.lines().filter(|line| !line.contains("heaptape") && !line.contains("WARN"));
    (outcome.text(), lines.map(str::to_owned).collect())
}

/// Asserts the same output when command and recorder are killed `moment` after the program has
/// started. Returns false if the program is not installed.
#[track_caller]
pub fn recorder_killed(line: &str, moment: Duration) -> bool {
    let (program, Some(plain)) = with_status(line) else { return false };
    let recording = program.recorded_while(|command, _| {
        let survivor = survivor(command);
        let id = command.id();
        let has_started = || started(id).is_some();
        while !has_started() && command.try_wait().expect("waits").is_none() {
            std::thread::sleep(Duration::from_micros(100));
        }
        std::thread::sleep(moment);
        kill(survivor, Signal::SIGKILL).ok();
        command.kill().ok();
    });
    assert_eq!(own(&plain), own(&recording.outcome), "{}", recording.outcome);
    true
}

/// Asserts the same output and status when the recording goes to a full disk. Returns false if the
/// program is not installed.
#[track_caller]
pub fn disk_full(line: &str, disk: &SmallDisk) -> bool {
    let (program, Some(plain)) = with_status(line) else { return false };
    let destination = disk.at().join("r");
    let recorder = Program::new(test_env::command()).args(["record", "-q", "-o"]).arg(&destination).arg("--");
    let outcome = program.as_arguments_of(recorder).plain();
    assert_eq!((plain.code(), own(&plain)), (outcome.code(), own(&outcome)), "{outcome}");
    std::fs::remove_dir_all(&destination).expect("room for the next one's beginning");
    true
}

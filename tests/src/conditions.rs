//! What a real program is tried in: bare, recorded, preloaded without a recorder, its recorder
//! killed in the middle, the disk full.

use crate::disk::SmallDisk;
use crate::run::{started, survivor};
use crate::{Outcome, Program, same, test_env};
use nix::sys::signal::{Signal, kill};
use std::time::Duration;

/// A line of a shell, with nothing in its environment that makes its output differ from run to run.
fn program(line: &str) -> Program {
    let program = Program::new("bash").arg("-c").arg(line).env("LC_ALL", "C");
    program.env("PYTHONHASHSEED", "0").env("PERL_HASH_SEED", "0")
}

/// The same output and status bare, with the library and no recorder, and recorded, where every
/// event is accounted for. `false`: it is not installed.
#[track_caller]
pub fn recorded_and_preloaded(line: &str) -> bool {
    let program = program(line);
    // In an empty working folder, as the recorded run.
    let place = test_env::folder();
    let bare = program.clone().folder(place.path());
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
        process.ledger();
        assert_eq!(process.lost_events, 0, "{line}: {process:#?}");
    }
    true
}

/// The command's own status is gone with it: the shell says the program's.
fn with_status(line: &str) -> (Program, Option<Outcome>) {
    let program = program(&format!("{{\n{line}\n}}\necho status $?"));
    let plain = program.plain();
    let is_installed = !plain.text().contains("status 127");
    (program, is_installed.then_some(plain))
}

/// What the program said, the command's own lines apart.
fn own(outcome: &Outcome) -> (String, Vec<String>) {
    let lines = outcome.error();
    let lines = lines.lines().filter(|line| !line.contains("heaptape") && !line.contains("WARN"));
    (outcome.text(), lines.map(str::to_owned).collect())
}

/// The same output when command and recorder are killed `moment` after the program has started.
/// `false`: it is not installed.
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

/// The same output and status when the recording goes to a disk that has no room. `false`: it is
/// not installed.
#[track_caller]
pub fn disk_full(line: &str, disk: &SmallDisk) -> bool {
    let (program, Some(plain)) = with_status(line) else { return false };
    let place = disk.at().join("r");
    let recorder = Program::new(test_env::command()).args(["record", "-q", "-o"]).arg(&place).arg("--");
    let outcome = program.behind_command(recorder).plain();
    assert_eq!((plain.code(), own(&plain)), (outcome.code(), own(&outcome)), "{outcome}");
    std::fs::remove_dir_all(&place).expect("room for the next one's beginning");
    true
}

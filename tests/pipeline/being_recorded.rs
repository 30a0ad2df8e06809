//! A recording that is being written is known for one at each moment, and nothing replaces it.

use heaptape_tests::recording::heaptape;
use heaptape_tests::wait::until;
use heaptape_tests::{target, test_env};
use std::ffi::OsStr;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

/// Whether another process holds the recording's lock.
fn has_recorder(folder: &Path) -> bool {
    File::open(folder.join(".reserve"))
        .is_ok_and(|file| matches!(file.try_lock_shared(), Err(std::fs::TryLockError::WouldBlock)))
}

/// Its readers, `record -o -` among them, look as soon as there is a `recording.json`.
#[test]
fn recording_has_its_recorder_from_the_beginning() {
    let folder = test_env::folder();
    for round in 0..20 {
        let recording = folder.path().join(round.to_string());
        let mut command = Command::new(test_env::command());
        command.args(["record", "-q", "-o"]).arg(&recording).args(["--", "sleep", "0.05"]);
        let mut command = command.spawn().expect("it starts");
        while !recording.join("recording.json").exists() {
            std::hint::spin_loop();
        }
        assert!(has_recorder(&recording), "start {round}");
        assert!(command.wait().expect("its end").success());
        assert!(!has_recorder(&recording), "end {round}");
    }
}

#[test]
fn recording_of_an_attached_process_is_not_replaced() {
    let folder = test_env::folder();
    let recording = folder.path().join("r");
    let mut program = Command::new(target::c("leaks_slowly"));
    let mut program = program.args(["100000", "2"]).stdout(Stdio::null()).spawn().expect("it starts");
    let mut attach = Command::new(test_env::command());
    attach.args(["attach", "-q", "-o"]).arg(&recording).arg(program.id().to_string());
    let mut attach = attach.spawn().expect("it starts");
    let verified = || heaptape([OsStr::new("verify"), recording.as_os_str()]);
    until("it is recorded, and only its end is to come", || recording.exists() && verified().code() == 0);
    let new = ["record", "-q", "-f", "-o"].map(OsStr::new).into_iter();
    let replaced = heaptape(new.chain([recording.as_os_str(), "--".as_ref(), "true".as_ref()])).exits(2);
    assert!(replaced.error().contains("still being recorded"), "{replaced}");
    program.kill().expect("it is there");
    program.wait().expect("its end");
    assert!(attach.wait().expect("its end").success());
    verified().success();
    assert!(!recording.join(".reserve").exists());
}

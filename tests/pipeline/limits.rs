//! Limits of the system on the program.

use heaptape_formats::recording::Recording;
use heaptape_tests::disk::SmallDisk;
use heaptape_tests::recording::heaptape;
use heaptape_tests::{Outcome, Process, Program, Report, is_full, own, same, target, test_env, torture};
use std::ffi::OsStr;
use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

#[test]
fn programs_under_limits_are_unharmed() {
    let limits = [
        "ulimit -v 300000",
        "ulimit -v 100000",
        "ulimit -v 60000",
        "ulimit -v 40000",
        "ulimit -v 30000",
        "ulimit -d 60000",
        "ulimit -d 10000",
        "ulimit -f 1",
        "ulimit -f 0",
        "ulimit -n 4",
        "ulimit -n 16",
        "ulimit -s 64",
        "ulimit -l 0",
        "ulimit -c 0",
        "ulimit -u 100000",
    ];
    for limit in limits {
        let program = Program::new(target::c("limits")).after(limit);
        let plain = program.plain();
        assert_eq!(plain.code(), 0, "{limit}: {plain}");
        same(&plain, &program.preloaded());
        let recording = program.recorded();
        assert_eq!(
            (plain.code(), &plain.stdout, &plain.stderr),
            (recording.outcome.code(), &recording.outcome.stdout, &recording.outcome.stderr),
            "{limit}: {}",
            recording.outcome
        );
        recording.report().processes.iter().for_each(Process::assert_accounting);
    }
    torture::passed(24, "resource limits", limits.len() as u64);
}

/// What a mask forbids the owner holds for the program, not for the folders of the recording.
#[test]
fn mask_that_forbids_everything_is_the_programs() {
    let folder = test_env::folder();
    let [command, destination] = ["heaptape", "r"].map(|name| folder.path().join(name));
    test_env::copy(test_env::command(), &command);
    for (path, mode) in [(folder.path(), 0o777), (&command, 0o755)] {
        set_permissions(path, Permissions::from_mode(mode)).expect("its mode");
    }
    let program = Program::new(&command).args(["record", "-q", "-o"]).arg(&destination);
    let program = program.args(["--", "sh", "-c", "umask; exit 5"]).after("umask 0777").env("HOME", folder.path());
    let other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let program = if heaptape_tests::is_root() { program.launched_by(&other) } else { program };
    let outcome = program.plain();
    assert_eq!((outcome.code(), outcome.text().as_str(), outcome.error().as_str()), (5, "0777\n", ""), "{outcome}");
    let mode = destination.metadata().expect("the recording").permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    heaptape([OsStr::new("verify"), destination.as_os_str()]).success();
}

/// The recorder needs more descriptors than the program has, and says so where it may not have them.
#[test]
fn limit_on_descriptors_is_the_programs() {
    let run = |user: &[&str], limit: &str| {
        let folder = test_env::folder();
        let path = |name: &str| folder.path().join(name);
        test_env::copy(test_env::command(), path("heaptape"));
        test_env::copy(target::c("exits"), path("exits"));
        set_permissions(folder.path(), Permissions::from_mode(0o777)).expect("its mode");
        for name in ["heaptape", "exits"] {
            set_permissions(path(name), Permissions::from_mode(0o755)).expect("its mode");
        }
        let program =
            Program::new(path("heaptape")).args(["record", "-q", "-o"]).arg(path("r")).arg("--").arg(path("exits"));
        let program = program.arg("5").after(limit).env("HOME", folder.path());
        let outcome = if user.is_empty() { program.plain() } else { program.launched_by(user).plain() };
        assert_eq!(outcome.code(), 5, "{user:?}: {outcome}");
        let verify = heaptape([OsStr::new("verify"), path("r").as_os_str()]);
        (outcome.error(), verify.code())
    };
    // The hard limit stays where it was.
    assert_eq!(run(&[], "ulimit -S -n 16"), (String::new(), 0));
    let other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let (error, code) = run(if heaptape_tests::is_root() { &other } else { &[] }, "ulimit -n 16");
    assert!(
        error.contains("its recorder had no descriptor left; raise the limit on open files") && code == 1,
        "{error}"
    );
}

/// Under a limit without space for the area the program runs unrecorded, and is named.
#[test]
fn program_without_address_space_for_the_area_is_named() {
    let program = Program::new(target::c("limits")).after("ulimit -v 40000");
    let plain = program.plain().success();
    let recording = program.recorded();
    same(&plain, &recording.outcome);
    let why = recording.not_traced("limits");
    assert!(why.len() == 1 && why[0].contains("address space"), "{:#?}", recording.about());
    let recording = Program::new(target::c("limits")).after("ulimit -v 80000").recorded().success().complete();
    assert_eq!(recording.report().only("limits").allocs, 1_001, "with little more space it is recorded");
}

/// With space for a smaller area the recording is complete.
#[test]
fn program_with_room_for_a_smaller_area_is_recorded() {
    let program = Program::new(target::c("limits")).after("ulimit -v 2000000");
    let recording = program.recorded().success().complete();
    let report = recording.report();
    assert_eq!(report.only("limits").allocs, 1_001);
}

/// Asserts that the recording is readable after its disk was full, with a gap and a balanced
/// accounting. Returns its process.
#[track_caller]
fn full_disk_report(recording: &Path, outcome: &Outcome) -> Process {
    assert!(outcome.error().contains("heaptape:"), "the command reports that the disk was full: {outcome}");
    let say = |arguments: &[&str]| heaptape(arguments.iter().map(OsStr::new).chain([recording.as_os_str()]));
    let verdict = say(&["verify"]);
    assert_eq!(verdict.code(), 1, "readable, with a gap: {verdict}\n{outcome}");
    assert!(verdict.text().contains("lost"), "{verdict}");
    let report: Report = serde_json::from_slice(&say(&["report", "--json"]).stdout).expect("a report");
    let process = report.processes[0].clone();
    assert_eq!(process.emitted_events, process.recorded_events + process.lost_events, "{process:#?}");
    assert!(process.lost_events > 0 && !process.complete, "{process:#?}");
    let about = std::fs::read(recording.join("recording.json")).expect("recording.json");
    let about: Recording = serde_json::from_slice(&about).expect("recording.json as it should be");
    let stated = about.processes[0].accounting.expect("an accounting");
    let counts = (process.emitted_events, process.recorded_events, process.lost_events);
    assert_eq!((stated.emitted, stated.recorded, stated.lost), counts, "dropped chunks count as lost: {process:#?}");
    process
}

/// The disk is full to the end: the program goes on, the recording is readable, the rest is
/// counted, and the exit status is recorded.
#[test]
fn full_disk_leaves_a_readable_recording_with_exact_counts() {
    let Some(disk) = SmallDisk::mount("2m") else { return };
    let own = test_env::folder();
    let figures = own.path().join("own");
    let program = |recording: &Path| {
        let recorder = Program::new(test_env::command()).args(["record", "-q", "-o"]).arg(recording).arg("--");
        recorder.arg(target::c("pairs")).args(["3000000", "1"]).env("OWN_FILE", &figures)
    };
    let plain = Program::new(target::c("pairs")).args(["3000000", "1"]).plain().success();
    let destination = disk.at().join("r");
    let outcome = program(&destination).plain();
    assert_eq!((outcome.code(), &outcome.stdout), (plain.code(), &plain.stdout), "{outcome}");
    let process = full_disk_report(&destination, &outcome);
    let own = own::sum(&own::read(&figures));
    assert_eq!(process.emitted_events, own.allocs + own.resizes + own.frees, "the count is exact: {process:#?}");
    // The sums do not depend on the disk.
    assert_eq!((process.allocs, process.resizes, process.frees), (own.allocs, own.resizes, own.frees), "{process:#?}");
    assert_eq!(process.exit.get("code").and_then(serde_json::Value::as_u64), Some(0), "{process:#?}");
    torture::passed(33, "full disks with an unharmed program and exact counts", 1);
}

/// The disk is full for a while: writing goes on when there is room again.
#[test]
fn recording_continues_after_the_disk_was_full() {
    let Some(disk) = SmallDisk::mount("8m") else { return };
    let (destination, filler, go) = (disk.at().join("r"), disk.at().join("filler"), disk.folder.path().join("go"));
    std::fs::write(&filler, vec![0; 7 << 20]).expect("what fills the disk");
    let line = format!(
        "{0} 1500000 1; touch {1}.full; while [ ! -e {1} ]; do sleep 0.02; done; exec {0} 60000 1",
        target::c("pairs").display(),
        go.display()
    );
    let both = Program::new(test_env::command())
        .args(["record", "-q", "-o"])
        .arg(&destination)
        .args(["--", "sh", "-c", &line]);
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !go.with_extension("full").exists() {
                std::thread::sleep(Duration::from_millis(10));
            }
            std::fs::remove_file(&filler).expect("room again");
            std::fs::write(&go, "").expect("the word to go on");
        });
        both.plain().success()
    });
    assert!(outcome.error().contains("heaptape:"), "{outcome}");
    let say = |arguments: &[&str]| heaptape(arguments.iter().map(OsStr::new).chain([destination.as_os_str()]));
    let report: Report = serde_json::from_slice(&say(&["report", "--json"]).stdout).expect("a report");
    for process in &report.processes {
        assert_eq!(process.emitted_events, process.recorded_events + process.lost_events, "{process:#?}");
    }
    let (during, after): (Vec<&Process>, Vec<&Process>) =
        report.all("pairs").partition(|process| process.emitted_events > 1_000_000);
    assert!(during[0].lost_events > 0, "{report:#?}");
    assert!(during[0].recorded_events > 0, "{report:#?}");
    assert!(after[0].lost_events == 0 && after[0].allocs >= 60_000, "written when there was room again: {report:#?}");
    torture::passed(33, "recordings that continued after the disk was full", 1);
}

/// Errors of the disk at any write, once or from then on: the program is unharmed, the recorder
/// ends, what it wrote can be read.
#[test]
fn disk_errors_at_each_write_harm_no_program() {
    let program = Program::new(target::c("pairs")).args(["30000", "1"]);
    let plain = program.plain().success();
    if Program::new("strace").args(["-o", "/dev/null", "true"]).plain().code() != 0 {
        return; // strace may not trace here
    }
    let (mut tried, step) = (0, if is_full() { 1 } else { 7 });
    for error in ["ENOSPC", "EIO", "EDQUOT"] {
        for when in ["", "+"] {
            for number in (1..=if is_full() { 40 } else { 15 }).step_by(step) {
                let folder = test_env::folder();
                let destination = folder.path().join("r");
                let inject =
                    format!("inject=pwrite64,fdatasync,fsync,ftruncate,fallocate:error={error}:when={number}{when}");
                let recorder = Program::new("strace").args(["-f", "-o", "/dev/null", "-e", &inject]);
                let recorder =
                    recorder.arg(test_env::command()).args(["record", "-q", "-o"]).arg(&destination).arg("--");
                let outcome = recorder.arg(target::c("pairs")).args(["30000", "1"]).plain();
                assert_eq!((outcome.code(), &outcome.stdout), (plain.code(), &plain.stdout), "{inject}: {outcome}");
                assert!(!outcome.error().contains("panicked"), "{inject}: {outcome}");
                for command in ["verify", "report"] {
                    let output = heaptape([OsStr::new(command), destination.as_os_str()]);
                    assert!(
                        output.code() <= 2 && !output.error().contains("panicked"),
                        "{inject}: {output}\n{outcome}"
                    );
                }
                tried += 1;
            }
        }
    }
    torture::passed(34, "disk errors at a write, or from a write on", tried);
}

//! Limits of the system on the program.

use heaptape_tests::{Program, same, target, torture};

#[test]
fn limits_of_memory_files_and_stack() {
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
        recording.report().processes.iter().for_each(heaptape_tests::Process::ledger);
    }
    torture::passed(24, "limits", limits.len() as u64);
}

/// With a limit that leaves no room the program runs unrecorded, and that is said.
#[test]
fn a_limit_that_leaves_none() {
    let program = Program::new(target::c("limits")).after("ulimit -v 40000");
    let plain = program.plain().success();
    let recording = program.recorded();
    same(&plain, &recording.outcome);
    let why = recording.not_traced("limits");
    assert!(why.len() == 1 && why[0].contains("address space"), "{:#?}", recording.about());
    let recording = Program::new(target::c("limits")).after("ulimit -v 80000").recorded().success().whole();
    assert_eq!(recording.report().only("limits").allocs, 1_001, "and with a little room it is recorded");
}

/// With room enough for a smaller area the recording is whole.
#[test]
fn a_limit_that_leaves_room() {
    let program = Program::new(target::c("limits")).after("ulimit -v 2000000");
    let recording = program.recorded().success().whole();
    let report = recording.report();
    assert_eq!(report.only("limits").allocs, 1_001);
}

/// The disk is full: the program goes on, the command says it, what was written is read.
#[test]
fn a_full_disk() {
    if !heaptape_tests::is_root() {
        return;
    }
    let folder = heaptape_tests::workshop::folder();
    let at = folder.path().join("small-disk");
    std::fs::create_dir(&at).expect("a folder");
    let mounted = Program::new("mount").args(["-t", "tmpfs", "-o", "size=2m", "tmpfs"]).arg(&at).plain();
    if mounted.code() != 0 {
        return; // mounting is not permitted here
    }
    let program = Program::new(target::c("pairs")).args(["3000000", "1"]);
    let plain = program.plain().success();
    let place = at.join("r");
    let recorder = Program::new(heaptape_tests::workshop::command()).args(["record", "-q", "-o"]).arg(&place).arg("--");
    let outcome = recorder.arg(target::c("pairs")).args(["3000000", "1"]).plain();
    let verdict = heaptape_tests::recording::heaptape([std::ffi::OsStr::new("verify"), place.as_ref()]);
    let report =
        heaptape_tests::recording::heaptape([std::ffi::OsStr::new("report"), "--json".as_ref(), place.as_ref()]);
    Program::new("umount").arg(&at).plain();
    assert_eq!(outcome.stdout, plain.stdout, "{outcome}");
    assert_eq!(outcome.code(), plain.code(), "{outcome}");
    assert!(outcome.error().contains("heaptape:"), "the command says that the disk was full: {outcome}");
    assert_eq!(verdict.code(), 1, "readable, with a gap: {verdict}");
    assert!(report.code() < 2, "{report}");
    torture::passed(33, "a full disk, the program unharmed, the rest read", 1);
}

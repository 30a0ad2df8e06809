//! After a loss of power, every possible content of the disk is readable, and no synced event is
//! missing.

use heaptape_tests::crash::{Log, only_committed};
use heaptape_tests::random::Random;
use heaptape_tests::recording::heaptape;
use heaptape_tests::{Program, Report, Target, is_full, target, test_env, torture};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;

/// Returns the number of readable events of each process.
fn events(folder: &Path, what: &str) -> BTreeMap<u32, u64> {
    let arguments = ["report", "--json"].map(OsStr::new);
    let output = heaptape(arguments.into_iter().chain([folder.as_os_str()]));
    assert!(output.code() <= 2 && !output.error().contains("panicked"), "{what}: {output}");
    if output.code() == 2 {
        assert!(output.error().starts_with("heaptape:"), "{what}: {output}");
        return BTreeMap::new();
    }
    let report: Report =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{what}: {error}: {output}"));
    let mut events = BTreeMap::new();
    // A pid that executed another program has two processes.
    report.processes.iter().for_each(|process| *events.entry(process.pid).or_default() += process.events());
    events
}

/// A recording is synced several times while it runs, and outgrows its plain trace.
#[test]
fn every_possible_disk_after_power_loss_holds_the_synced_events() {
    let directory = test_env::folder();
    let (folder, log) = (directory.path().join("r"), directory.path().join("log"));
    let recorder = Program::new(test_env::command()).args(["record", "-q", "-o"]).arg(&folder).arg("--");
    let recorder = recorder.env("LD_PRELOAD", Target::library("logs_writes.c").build());
    let recorder = recorder.env("LOGGED_FOLDER", &folder).env("LOGGED_TO", &log);
    let (slow, short) = (target::c("leaks_slowly"), target::c("small"));
    let line = format!("{1}; {0} 12000 1 & {0} 900 10; {1}; wait", slow.display(), short.display());
    recorder.args(["sh", "-c", &line]).plain().success();
    let complete = events(&folder, "the recording");
    let log = Log::read(&log, &folder);

    // At the end everything is certain.
    let at_end = directory.path().join("end");
    log.certain(log.moments(), &at_end);
    let end = events(&at_end, "what is certain at the end");
    assert_eq!(end, complete, "the end of a recording is synced");

    let syncs = log.syncs();
    let least: Vec<(usize, BTreeMap<u32, u64>)> = syncs
        .iter()
        .map(|&moment| {
            let directory = test_env::folder();
            log.certain(moment, &directory.path().join("r"));
            only_committed(&directory.path().join("r"));
            (moment, events(&directory.path().join("r"), &format!("what is certain after {moment}")))
        })
        .collect();
    let most: u64 = complete.values().copied().max().unwrap_or(0);
    let some =
        |(_, certain): &&(usize, BTreeMap<u32, u64>)| certain.values().any(|&events| events > 0 && events < most);
    assert!(least.iter().filter(some).count() >= 3, "it is synced while it runs: {least:#?}");

    let disks: u64 = if is_full() { 10_000 } else { 60 };
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    for number in 0..disks {
        let state = random.0;
        let moment = random.below(log.moments() as u64) as usize + 1;
        let what = format!("disk {number} ({state:#x}), {moment} of {} acts", log.moments());
        let directory = test_env::folder();
        let disk = directory.path().join("r");
        log.possible(moment, &mut random, &disk);
        let found = events(&disk, &what);
        let certain = least.iter().rfind(|(sync, _)| *sync <= moment).map(|(_, certain)| certain.clone());
        for (pid, events) in certain.unwrap_or_default() {
            let there = found.get(&pid).copied().unwrap_or(0);
            if there < events {
                let kept = directory.keep();
                panic!("{what}: process {pid}: {events} events were on the disk, {there} are read; {}", kept.display());
            }
        }
        if number % 10 == 0 {
            let output = heaptape([OsStr::new("verify"), disk.as_os_str()]);
            assert!(output.code() <= 2 && !output.error().contains("panicked"), "{what}: {output}");
        }
    }
    torture::passed(36, "disks after power loss with all synced events", disks);
}

//! The power fails: whatever a disk may hold then is read, and nothing that was brought to it is
//! missing.

use heaptape_tests::crash::{Log, Random, only_committed};
use heaptape_tests::recording::heaptape;
use heaptape_tests::{Program, Report, Target, is_full, target, test_env, torture};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;

/// Events that can be read of each process.
fn events(folder: &Path, what: &str) -> BTreeMap<u32, u64> {
    let words = ["report", "--json"].map(OsStr::new);
    let said = heaptape(words.into_iter().chain([folder.as_os_str()]));
    assert!(said.code() <= 2 && !said.error().contains("panicked"), "{what}: {said}");
    if said.code() == 2 {
        assert!(said.error().starts_with("heaptape:"), "{what}: {said}");
        return BTreeMap::new();
    }
    let report: Report = serde_json::from_slice(&said.stdout).unwrap_or_else(|error| panic!("{what}: {error}: {said}"));
    let mut events = BTreeMap::new();
    // A process that went on with another program has two images.
    report.processes.iter().for_each(|process| *events.entry(process.pid).or_default() += process.events());
    events
}

/// A recording that is brought to the disk several times while it goes on, and outgrows its plain
/// trace meanwhile.
#[test]
fn every_possible_disk() {
    let place = test_env::folder();
    let (folder, log) = (place.path().join("r"), place.path().join("log"));
    let recorder = Program::new(test_env::command()).args(["record", "-q", "-o"]).arg(&folder).arg("--");
    let recorder = recorder.env("LD_PRELOAD", Target::library("logs_writes.c").build());
    let recorder = recorder.env("LOGGED_FOLDER", &folder).env("LOGGED_TO", &log);
    let (slow, short) = (target::c("leaks_slowly"), target::c("small"));
    let line = format!("{1}; {0} 12000 1 & {0} 900 10; {1}; wait", slow.display(), short.display());
    recorder.args(["sh", "-c", &line]).plain().success();
    let whole = events(&folder, "the recording");
    let log = Log::read(&log, &folder);

    // At the end everything is certain.
    let at_end = place.path().join("end");
    log.certain(log.moments(), &at_end);
    let end = events(&at_end, "what is certain at the end");
    assert_eq!(end, whole, "the end of a recording is brought to the disk");

    let syncs = log.syncs();
    let least: Vec<(usize, BTreeMap<u32, u64>)> = syncs
        .iter()
        .map(|&moment| {
            let place = test_env::folder();
            log.certain(moment, &place.path().join("r"));
            only_committed(&place.path().join("r"));
            (moment, events(&place.path().join("r"), &format!("what is certain after {moment}")))
        })
        .collect();
    let most: u64 = whole.values().copied().max().unwrap_or(0);
    let some =
        |(_, certain): &&(usize, BTreeMap<u32, u64>)| certain.values().any(|&events| events > 0 && events < most);
    assert!(least.iter().filter(some).count() >= 3, "it is brought to the disk while it goes on: {least:#?}");

    let images: u64 = if is_full() { 10_000 } else { 150 };
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    for number in 0..images {
        let state = random.0;
        let moment = random.below(log.moments() as u64) as usize + 1;
        let what = format!("image {number} ({state:#x}), {moment} of {} acts", log.moments());
        let place = test_env::folder();
        let disk = place.path().join("r");
        log.possible(moment, &mut random, &disk);
        let found = events(&disk, &what);
        let certain = least.iter().rfind(|(sync, _)| *sync <= moment).map(|(_, certain)| certain.clone());
        for (pid, events) in certain.unwrap_or_default() {
            let there = found.get(&pid).copied().unwrap_or(0);
            if there < events {
                let kept = place.keep();
                panic!("{what}: process {pid}: {events} events were on the disk, {there} are read; {}", kept.display());
            }
        }
        if number % 10 == 0 {
            let said = heaptape([OsStr::new("verify"), disk.as_os_str()]);
            assert!(said.code() <= 2 && !said.error().contains("panicked"), "{what}: {said}");
        }
    }
    torture::passed(36, "disks after a loss of power, all that was brought to them read", images);
}

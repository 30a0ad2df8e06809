//! Losses are counted to the event: a ring that is too small, in the mode that drops.

use heaptape_tests::{Program, own, same, target, workshop};

#[test]
fn drop_mode_counts_every_loss() {
    let folder = workshop::folder();
    let file = folder.path().join("own");
    let program = Program::new(target::c("pairs"))
        .args(["400000", "1"])
        .env("OWN_FILE", &file)
        .option("--overflow=drop")
        .option("--ring=4KiB");
    let plain = program.plain().success();
    std::fs::remove_file(&file).expect("own figures");
    let recording = program.recorded();
    same(&plain, &recording.outcome);
    let own = own::sum(&own::read(&file));
    let report = recording.report();
    let process = report.only("pairs");
    process.ledger();
    assert_eq!(process.emitted_events, own.allocs + own.resizes + own.frees, "what happened: {process:#?}");
    assert!(process.lost_events > 0, "a ring of 256 records must overflow here: {process:#?}");
    assert!(!process.complete, "a recording with a gap is not complete: {process:#?}");
    let verdict = recording.heaptape(&["verify"]);
    assert_eq!(verdict.code(), 1, "readable, with gaps: {verdict}");
    assert!(
        verdict.text().replace(',', "").contains(&process.lost_events.to_string()),
        "verify tells the ledger: {verdict}"
    );
}

#[test]
fn a_small_ring_loses_nothing_by_default() {
    let folder = workshop::folder();
    let file = folder.path().join("own");
    let program = Program::new(target::c("pairs")).args(["200000", "4"]).env("OWN_FILE", &file).option("--ring=4KiB");
    let plain = program.plain().success();
    std::fs::remove_file(&file).expect("own figures");
    let recording = program.recorded();
    same(&plain, &recording.outcome);
    let recording = recording.whole();
    own::equal(&own::read(&file), &own::recorded(&recording));
}

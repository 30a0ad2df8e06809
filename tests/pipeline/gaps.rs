//! Losses are counted to the event: a ring that is too small, in the mode that drops.

use heaptape_tests::random::Random;
use heaptape_tests::{Program, is_full, own, ring, run, target, test_env, torture};
use std::time::Duration;

#[test]
fn drop_mode_counts_every_loss() {
    let folder = test_env::folder();
    let file = folder.path().join("own");
    let program = Program::new(target::c("pairs"))
        .args(["400000", "1"])
        .env("OWN_FILE", &file)
        .option("--overflow=drop")
        .option(ring(1));
    let recording = program.recorded_counting(&file);
    let own = own::sum(&own::read(&file));
    let report = recording.report();
    let process = report.only("pairs");
    process.assert_accounting();
    assert_eq!(process.emitted_events, own.allocs + own.resizes + own.frees, "{process:#?}");
    assert!(process.lost_events > 0, "the smallest ring must overflow here: {process:#?}");
    assert!(!process.complete, "a recording with a gap is not complete: {process:#?}");
    let verdict = recording.heaptape(&["verify"]);
    assert_eq!(verdict.code(), 1, "readable, with gaps: {verdict}");
    assert!(
        verdict.text().replace(',', "").contains(&process.lost_events.to_string()),
        "verify prints the accounting: {verdict}"
    );
}

#[test]
fn small_ring_loses_nothing_by_default() {
    let folder = test_env::folder();
    let file = folder.path().join("own");
    let program = Program::new(target::c("pairs")).args(["200000", "4"]).env("OWN_FILE", &file).option(ring(1));
    let recording = program.recorded_counting(&file);
    let recording = recording.complete();
    own::equal(&own::read(&file), &own::recorded(&recording));
}

/// For random stops of the recorder, recorded and lost events add up to the events of the program.
#[test]
fn losses_are_exact_in_random_schedules() {
    use nix::sys::signal::{Signal, kill};
    let rounds = if is_full() { 200 } else { 6 };
    let mut lossy = 0;
    for round in 0..rounds {
        let folder = test_env::folder();
        let file = folder.path().join("own");
        let ring = ring([1, 4, 16][round % 3]);
        let program = Program::new(target::c("pairs")).args(["60000", "1"]).env("OWN_FILE", &file);
        let mut random = Random(0x9e37_79b9 + round as u64);
        let recording = program.option("--overflow=drop").option(ring).recorded_while(|command, _| {
            let survivor = run::survivor(command);
            while command.try_wait().expect("waits").is_none() {
                let mut nap = || std::thread::sleep(Duration::from_micros(random.below(4_000)));
                kill(survivor, Signal::SIGSTOP).ok();
                nap();
                kill(survivor, Signal::SIGCONT).ok();
                nap();
            }
        });
        let own = own::sum(&own::read(&file));
        let report = recording.report();
        let process = report.only("pairs");
        process.assert_accounting();
        assert_eq!(process.emitted_events, own.allocs + own.resizes + own.frees, "round {round}: {process:#?}");
        lossy += u64::from(process.lost_events > 0);
    }
    assert!(lossy > 0, "no round lost anything: the schedules do not force it");
    torture::passed(48, "random schedules with exactly counted losses", lossy);
}

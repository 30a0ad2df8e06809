//! A traced program that attacks the recorder does not disturb others.

use heaptape_tests::{Program, is_full, own, run, target, test_env, torture};
use std::time::Duration;

/// Returns the resident memory of a process in KiB.
fn resident(pid: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0 kB");
    line.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// It rewrites its area at full speed; the recorder lives, its memory stays flat, and another
/// program's recording is perfect.
#[test]
fn program_that_rewrites_its_area_disturbs_no_other() {
    let seconds: u64 = if is_full() { 60 } else { 3 };
    let folder = test_env::folder();
    let file = folder.path().join("own");
    let (hostile, honest) = (target::c("rewrites_area"), target::c("pairs"));
    // The honest one starts and ends while the other is at it.
    let line = format!(
        "{} {} & sleep 0.5; OWN_FILE={} {} {} 2; wait",
        hostile.display(),
        seconds * 1000,
        file.display(),
        honest.display(),
        if is_full() { 20_000_000 } else { 200_000 }
    );
    let mut most = 0;
    let recording = Program::new("bash").args(["-c", &line]).recorded_while(|command, _| {
        let survivor = run::survivor(command).as_raw();
        while command.try_wait().expect("waits").is_none() && resident(survivor) > 0 {
            most = most.max(resident(survivor));
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    assert!(recording.outcome.text().contains("pairs on 2 threads"), "{}", recording.outcome);
    let report = recording.report();
    let honest = report.only("pairs");
    honest.assert_accounting();
    assert!(honest.complete && honest.lost_events == 0, "{honest:#?}");
    let own = own::sum(&own::read(&file));
    assert_eq!(honest.resizes, own.resizes);
    // A start of a thread allocates a little besides.
    assert!((own.allocs..own.allocs + 8).contains(&honest.allocs), "{own:#?} {honest:#?}");
    assert!(most < 1 << 20, "{most} KiB in the recorder");
    assert!(recording.heaptape(&["verify"]).code() <= 1);
    torture::passed(39, "seconds of a program that rewrites its area beside a complete recording of another", seconds);
}

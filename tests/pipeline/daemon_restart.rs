//! Daemons that are killed, restarted and replaced under load: programs go on, what is written is readable, and accounts balance.

use heaptape_tests::daemon::until;
use heaptape_tests::{Daemon, is_full, target};
use nix::sys::signal::Signal;
use std::time::Duration;

#[test]
fn killed_again_and_again_under_load() {
    let mut daemon = Daemon::start(&["--snapshot", "200ms", "--keep-bytes", "1GiB"]);
    let slow = target::c("leaks_slowly");
    let traced = daemon.spawn(&slow, &["1000000", "1"], Some("trace"));
    let counted = daemon.spawn(&slow, &["1000000", "1"], Some("profile"));
    let sampled = daemon.spawn(&slow, &["1000000", "0"], Some("profile:4KiB"));
    let mut busy = daemon.spawn(&target::c("pairs"), &["2000000", "2"], Some("trace"));
    for turn in 0..if is_full() { 100 } else { 6 } {
        std::thread::sleep(Duration::from_millis(300 + 37 * (turn % 7)));
        daemon.restart();
        until("they are served again", || daemon.list("leaks_slowly").len() == 3);
        // Short ones that come meanwhile find the new one.
        daemon.run(&slow, &["2", "0"]).success();
    }
    // What it found out about itself is right: it insists on its own figures.
    assert!(busy.0.wait().expect("it ends").success());
    let live = |pid: u32| {
        let found = daemon.list("leaks_slowly").into_iter().find(|one| one["pid"] == pid);
        found.map_or(0, |one| one["live_blocks"].as_u64().unwrap_or(0))
    };
    for one in [&traced, &counted, &sampled] {
        until("it is counted again", || live(one.0.id()) > 20);
    }
    drop((traced, counted, sampled));
    until("all are over", || daemon.ask(&["status"])["processes"] == 0);
    daemon.stop();
    balanced(&daemon);
}

/// A daemon that is ended in good order leaves its processes to the next one, whole.
#[test]
fn replaced_in_good_order() {
    let mut daemon = Daemon::start(&["--mode", "trace"]);
    let running = daemon.spawn(&target::c("leaks_slowly"), &["1000000", "1"], None);
    until("it is served", || daemon.list("leaks_slowly").len() == 1);
    std::thread::sleep(Duration::from_millis(300));
    daemon.replace(Signal::SIGTERM);
    until("it is served again", || daemon.list("leaks_slowly").len() == 1);
    std::thread::sleep(Duration::from_millis(300));
    drop(running);
    until("it is over", || daemon.list("leaks_slowly").is_empty());
    daemon.stop();
    daemon.whole();
    let report = daemon.report(&daemon.epochs(&[]));
    assert_eq!(report.processes.len(), 2);
    let lost: u64 = report.processes.iter().map(|process| process.lost_events).sum();
    assert_eq!(lost, 0, "{report:#?}");
}

/// Every epoch is readable, and wherever a ledger is written it balances.
fn balanced(daemon: &Daemon) {
    let epochs = daemon.epochs(&[]);
    for epoch in &epochs {
        let said = daemon.word(&["verify"], std::slice::from_ref(epoch));
        assert!(said.code() < 2, "{}: {said}", epoch.display());
        for process in daemon.report(std::slice::from_ref(epoch)).processes {
            let accounted = process.recorded_events + process.lost_events + process.sampled_out_events;
            assert_eq!(process.emitted_events, accounted, "{}: {process:#?}", epoch.display());
        }
    }
    assert!(epochs.len() > 1, "{epochs:?}");
}

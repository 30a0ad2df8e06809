//! What the daemon does not record, or not as requested, is named.

use heaptape_tests::{Daemon, is_root, target, test_env};

/// Returns the tapes of the last epoch, as text.
fn notes(daemon: &Daemon) -> String {
    let epochs = daemon.epochs(&[]);
    let folders = epochs.iter().flat_map(|epoch| std::fs::read_dir(epoch).expect("an epoch").flatten());
    let tapes = folders.map(|folder| folder.path().join("events.tape")).filter(|tape| tape.exists());
    tapes.map(|tape| daemon.heaptape(&["dump"], &[tape]).text()).collect()
}

/// A forked child in another root cannot reach the daemon.
#[test]
fn child_that_cannot_reach_the_daemon_is_named() {
    if !is_root() {
        return;
    }
    let mut daemon = Daemon::start(&["--mode", "trace"]);
    let root = test_env::folder();
    daemon.run(&target::c("changes_root"), &[&root.path().to_string_lossy()]).success();
    daemon.stop();
    let why = "it cannot reach the recorder from its root or mount namespace";
    let log = daemon.log();
    assert!(log.contains(&format!("runs unrecorded: {why}")), "{log}");
    let notes = notes(&daemon);
    assert!(notes.contains(&format!("was not recorded: {why}")), "{notes}");
}

#[test]
fn unreadable_mode_is_named() {
    let mut daemon = Daemon::start(&["--mode", "trace"]);
    let mut running = daemon.spawn(&target::c("small"), &[], Some("tarce"));
    running.0.wait().expect("the program ends");
    daemon.stop();
    assert!(daemon.log().contains("HEAPTAPE_MODE is ignored: 'tarce' is no mode"), "{}", daemon.log());
    let notes = notes(&daemon);
    assert!(notes.contains("HEAPTAPE_MODE is ignored: 'tarce' is no mode; its mode is trace"), "{notes}");
}

//! What the daemon does not record, or not as requested, is named.

use heaptape_tests::daemon::until;
use heaptape_tests::{Daemon, is_root, target, test_env};
use nix::sys::signal::Signal;
use std::path::PathBuf;

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

/// Returns the files of the names that the daemon keeps by build-id.
fn stored_names(daemon: &Daemon) -> Vec<PathBuf> {
    let users = std::fs::read_dir(daemon.state()).expect("the state folder").flatten();
    let stores = users.filter_map(|user| std::fs::read_dir(user.path().join("names")).ok());
    let tapes = stores.flatten().flatten().map(|one| one.path().join("symbols.tape"));
    tapes.filter(|tape| tape.exists()).collect()
}

/// The names of a program stay known when its file is gone and the daemon was killed before it
/// could look up those of the process.
#[test]
fn names_of_a_container_that_is_gone_are_kept() {
    let mut daemon = Daemon::start(&["--snapshot", "200ms"]);
    let container = test_env::folder();
    let program = container.path().join("leaks_slowly");
    std::fs::copy(target::c("leaks_slowly"), &program).expect("a copy");
    let running = daemon.spawn(&program, &["100000", "2"], None);
    until("it is counted", || daemon.list("leaks_slowly").iter().any(|one| one["live_blocks"].as_u64() > Some(50)));
    daemon.query(&["flush"]);
    // Those of the program and of its C library.
    until("the names are stored", || stored_names(&daemon).len() >= 2);
    daemon.signal(Signal::SIGKILL);
    drop(running);
    std::fs::remove_dir_all(container.path()).expect("the container goes");
    daemon.restart();
    daemon.stop();
    let has_name = |daemon: &Daemon| {
        let leaks = daemon.leaks(&daemon.epochs(&[]));
        assert!(!leaks.is_empty(), "{}", daemon.log());
        leaks.iter().any(|leak| leak.functions().contains(&"keeps"))
    };
    assert!(has_name(&daemon), "{:#?}", daemon.leaks(&daemon.epochs(&[])));
    stored_names(&daemon).iter().for_each(|tape| std::fs::remove_file(tape).expect("it is there"));
    assert!(!has_name(&daemon), "the names came from elsewhere");
}

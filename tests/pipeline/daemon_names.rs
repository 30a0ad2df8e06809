//! What the daemon does not record, or not as requested, is named.

use heaptape_tests::recording::heaptape;
use heaptape_tests::wait::until;
use heaptape_tests::{Daemon, is_root, target, test_env};
use nix::sys::signal::Signal;
use std::path::{Path, PathBuf};

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
    let why =
        "it cannot reach the recorder, which is down, outside of its root and mount namespace, or forbidden to it";
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
    test_env::copy(target::c("leaks_slowly"), &program);
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

/// A program that is started by a link has the name of the link everywhere, and is found by both
/// names.
#[test]
fn program_that_is_started_by_a_link_has_its_name() {
    let daemon = Daemon::start(&["--mode", "profile"]);
    let folder = test_env::folder();
    let (file, link) = (folder.path().join("checks-all"), folder.path().join("serves-all"));
    test_env::copy(target::c("leaks_slowly"), &file);
    std::os::unix::fs::symlink(&file, &link).expect("a link");
    let _running = daemon.spawn(&link, &["100000", "5"], None);
    until("it is served", || daemon.list("serves-all").iter().any(|one| one["allocs_a_second"] != 0));
    daemon.query(&["snapshot"]);
    daemon.query(&["flush"]);
    let by_link = daemon.epochs(&["--program", "serves-all"]);
    assert_eq!((by_link.len(), &by_link), (1, &daemon.epochs(&["--program", "checks-all"])));
    for name in ["serves-all", "checks-all"] {
        let (state, control) = (daemon.state(), daemon.control());
        let options = ["why", name, "--control"].map(Path::new);
        let why = heaptape(options.into_iter().chain([&*control, Path::new("--state"), &*state]));
        assert!(why.success().text().starts_with("serves-all (pid "), "{name}");
    }
    let report = daemon.heaptape(&["report"], &by_link).success().text();
    // A slow machine has not searched the file by then, and says so.
    let is_of_the_file = |line: &&str| line.starts_with("! checks-all: its allocators, ");
    let others: Vec<&str> = report.lines().filter(|line| !is_of_the_file(line)).collect();
    let says = |name: &str| others.iter().any(|line| line.contains(name));
    assert!(says("serves-all") && !says("checks-all"), "{report}");
}

/// A trace that is being written is no truncated one.
#[test]
fn trace_of_a_running_program_is_not_called_truncated() {
    let daemon = Daemon::start(&["--mode", "trace"]);
    let running = daemon.spawn(&target::c("leaks_slowly"), &["100000", "5"], None);
    until("its events are there", || {
        daemon.query(&["flush"]);
        daemon.epochs(&["--program", "leaks_slowly"]).len() == 1
    });
    for paths in [daemon.epochs(&[]), daemon.epochs(&["--program", "leaks_slowly"])] {
        for command in ["leaks", "report", "verify"] {
            let output = daemon.heaptape(&[command], &paths).success();
            assert!(!output.to_string().contains("truncated"), "{command} {paths:?}: {output}");
        }
        let leaks = daemon.heaptape(&["leaks"], &paths).text();
        assert!(leaks.contains(" still live") && leaks.contains("still running: "), "{leaks}");
    }
    drop(running);
    until("it is over", || daemon.list("leaks_slowly").is_empty());
    daemon.query(&["flush"]);
    let leaks = daemon.heaptape(&["leaks"], &daemon.epochs(&[])).text();
    assert!(!leaks.contains("still running") && !leaks.contains("truncated"), "{leaks}");
}

//! Daemons that are killed, restarted and replaced under load: programs go on, what is written is
//! readable, and accounts balance.

use heaptape_tests::daemon::Running;
use heaptape_tests::wait::until;
use heaptape_tests::{Daemon, is_full, target, test_env, torture};
use nix::sys::signal::Signal;
use std::path::PathBuf;
use std::time::Duration;

#[test]
fn repeated_kills_under_load_keep_accounts_balanced() {
    let mut daemon = Daemon::start(&["--snapshot", "200ms", "--keep-bytes", "1GiB"]);
    let slow = target::c("leaks_slowly");
    let traced = daemon.spawn(&slow, &["1000000", "1"], Some("trace"));
    let counted = daemon.spawn(&slow, &["1000000", "1"], Some("profile"));
    let sampled = daemon.spawn(&slow, &["1000000", "0"], Some("profile:4KiB"));
    let mut busy = daemon.spawn(&target::c("pairs"), &["2000000", "2"], Some("trace"));
    until("they are served", || daemon.list("leaks_slowly").len() == 3);
    for round in 0..if is_full() { 100 } else { 6 } {
        std::thread::sleep(Duration::from_millis(300 + 37 * (round % 7)));
        daemon.restart();
        until("they are served again", || daemon.list("leaks_slowly").len() == 3);
        // Short ones that come meanwhile find the new one.
        daemon.run(&slow, &["2", "0"]).success();
    }
    // The program checks its own counts.
    assert!(busy.0.wait().expect("it ends").success());
    let live = |pid: u32| {
        let found = daemon.list("leaks_slowly").into_iter().find(|one| one["pid"] == pid);
        found.map_or(0, |one| one["live_blocks"].as_u64().unwrap_or(0))
    };
    for one in [&traced, &counted, &sampled] {
        until("it is counted again", || live(one.0.id()) > 20);
    }
    drop((traced, counted, sampled));
    until("all are over", || daemon.query(&["status"])["processes"] == 0);
    // What a daemon stored before it was killed may be too small for a compressed trace.
    let mut undisturbed = daemon.spawn(&target::c("pairs"), &["200000", "1"], Some("trace,overflow=wait:30s"));
    assert!(undisturbed.0.wait().expect("it ends").success());
    daemon.stop();
    balanced(&daemon);
    let folders = daemon.epochs(&["--program", "pairs"]);
    let is_compressed = |folder: &PathBuf| folder.join("trace.mtrc.columns").is_file();
    assert!(folders.iter().any(is_compressed), "the default of compress: {folders:?}");
}

/// A daemon that ends in good order passes its processes to the next one without a loss.
#[test]
fn orderly_replacement_loses_nothing() {
    let mut daemon = Daemon::start(&["--mode", "trace"]);
    let modes = ["trace", "profile", "profile:4KiB"];
    let running = modes.map(|mode| daemon.spawn(&target::c("leaks_slowly"), &["1000000", "5"], Some(mode)));
    // One that never rests: it goes on while it is left. It waits when its ring is full, so that
    // only the restart could lose events.
    let busy = daemon.spawn(&target::c("churn"), &["0"], Some("profile,overflow=wait:30s"));
    let maps = daemon.spawn(&target::c("mappings"), &["wait"], Some("trace"));
    let serves = |name: &str, number: usize| daemon.list(name).len() == number;
    until("they are served", || serves("leaks_slowly", 3) && serves("churn", 1) && serves("mappings", 1));
    std::thread::sleep(Duration::from_millis(600));
    let live = |daemon: &Daemon| {
        let list = daemon.list("leaks_slowly");
        let of = |running: &Running| {
            let one = list.iter().find(|one| one["pid"] == running.0.id());
            one.and_then(|one| one["live_blocks"].as_u64()).unwrap_or(0)
        };
        running.each_ref().map(of)
    };
    until("they are counted", || live(&daemon).iter().all(|blocks| *blocks > 50));
    let before = live(&daemon);
    daemon.replace(Signal::SIGTERM);
    // Live blocks stay live: no count decreases.
    until("what lived is known", || live(&daemon).iter().zip(before).all(|(now, before)| *now >= before));
    let first = live(&daemon);
    until("they are counted on", || live(&daemon).iter().zip(first).all(|(now, first)| *now > first));
    drop((running, busy, maps));
    until("they are over", || daemon.query(&["status"])["processes"] == 0);
    daemon.stop();
    daemon.assert_complete();
    let report = daemon.report(&daemon.epochs(&[]));
    let all: Vec<_> = report.all("leaks_slowly").collect();
    // Each is one process, with a segment of either daemon.
    assert_eq!(all.len(), 3, "{report:#?}");
    assert!(all.iter().all(|process| process.segments.len() == 2), "{report:#?}");
    let strays: u64 = report.processes.iter().map(|process| process.lost_events + process.unknown_frees).sum();
    assert_eq!(strays, 0, "nothing is lost and no free is of an unknown block: {report:#?}");
    // What was mapped before is known, with its call site.
    let rows = daemon.heaptape(&["leaks", "--mappings", "only", "--json"], &daemon.epochs(&["--last", "1"])).success();
    let rows: serde_json::Value = serde_json::from_slice(&rows.stdout).expect("JSON");
    let row = &rows["mappings"][0];
    let found = (row["bytes"].as_u64(), row["stack"][0]["function"].as_str());
    assert_eq!(found, (Some(21 * 4096), Some("map_pages")), "{rows:#}");
    let leaks = daemon.leaks(&daemon.epochs(&["--last", "1"]));
    let kept = leaks.iter().find(|leak| leak.functions().contains(&"keeps")).expect("the leak");
    assert!(kept.blocks >= before[0], "{kept:#?}");
}

/// A killed daemon loses its knowledge of live blocks. The next one reports since when it counts,
/// and shows its counts as a lower bound, also after a restart in good order. Such a restart alone
/// changes nothing.
#[test]
fn live_bytes_after_a_killed_daemon_are_a_lower_bound() {
    let mut daemon = Daemon::start(&[]);
    let running = daemon.spawn(&target::c("leaks_slowly"), &["1000000", "5"], None);
    let one = |daemon: &Daemon| daemon.list("leaks_slowly").pop().unwrap_or_default();
    let live = |daemon: &Daemon| one(daemon)["live_blocks"].as_u64().unwrap_or(0);
    let line = |daemon: &Daemon| {
        let output = daemon.ctl(&["list"]).success();
        output.text().lines().find(|line| line.contains("leaks_slowly")).expect("its line").to_owned()
    };
    until("it is counted", || live(&daemon) > 20);
    assert!(one(&daemon)["live_since_unix_ns"].is_null() && !line(&daemon).contains('≥'), "{}", line(&daemon));
    let before = live(&daemon);
    daemon.replace(Signal::SIGTERM);
    until("its blocks are known again", || live(&daemon) >= before && one(&daemon)["live_since_unix_ns"].is_null());
    assert!(!line(&daemon).contains('≥'), "{}", line(&daemon));
    let killed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock").as_nanos();
    daemon.restart();
    until("it is counted again", || live(&daemon) > 0);
    let since = one(&daemon)["live_since_unix_ns"].as_u64().expect("a time");
    assert!(u128::from(since) >= killed, "{since} {killed}");
    let minutes = since / 60_000_000_000;
    let time = format!("live since {:02}:{:02} UTC", minutes / 60 % 24, minutes % 60);
    assert!(line(&daemon).contains("≥ ") && line(&daemon).contains(&time), "{}", line(&daemon));
    assert!(daemon.heaptape(&["top", "--once", "--control"], &[daemon.control()]).success().text().contains("≥ "));
    let known = live(&daemon);
    daemon.replace(Signal::SIGTERM);
    until("its blocks are known again", || live(&daemon) >= known);
    assert_eq!(one(&daemon)["live_since_unix_ns"], since, "{}", line(&daemon));
    drop(running);
}

/// A program that starts while no daemon runs stays untraced. What it starts later is served.
#[test]
fn program_started_without_daemon_stays_untraced_and_its_children_attach() {
    let mut daemon = Daemon::start(&[]);
    let directory = test_env::folder();
    let go = directory.path().join("go");
    let line = format!(
        "while [ ! -e {} ]; do sleep 0.05; done; {} 1000000 1; exit 0",
        go.display(),
        target::c("leaks_slowly").display()
    );
    let mut early = None;
    daemon.restart_after(|daemon| {
        daemon.run(&target::c("small"), &[]).success();
        early = Some(daemon.spawn(&test_env::need("bash"), &["-c", &line], None));
        std::thread::sleep(Duration::from_millis(300));
    });
    std::fs::write(&go, "").expect("the word to go on");
    until("what it starts is served", || daemon.list("leaks_slowly").len() == 1);
    assert!(daemon.list("bash").is_empty(), "one attach, at the start, and none later");
    let served = daemon.list("leaks_slowly")[0]["pid"].as_u64().expect("a number");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(served as i32), Signal::SIGTERM).expect("it is there");
    drop(early);
    torture::passed(50, "programs that started without a daemon, and their later children", 2);
}

/// Asserts that every epoch is readable and every accounting balances.
fn balanced(daemon: &Daemon) {
    let epochs = daemon.epochs(&[]);
    for epoch in &epochs {
        let output = daemon.heaptape(&["verify"], std::slice::from_ref(epoch));
        assert!(output.code() < 2, "{}: {output}", epoch.display());
        for process in daemon.report(std::slice::from_ref(epoch)).processes {
            let accounted = process.recorded_events + process.lost_events + process.sampled_out_events;
            assert_eq!(process.emitted_events, accounted, "{}: {process:#?}", epoch.display());
        }
    }
    assert!(epochs.len() > 1, "{epochs:?}");
}

/// What a daemon does not know after the kill of the one before is counted in the segment in which
/// it happened, and in no later one.
#[test]
fn segments_after_a_killed_daemon_agree_with_their_events() {
    let mut daemon = Daemon::start(&["--mode", "trace"]);
    let running = daemon.spawn(&target::c("full_cache"), &["500", "1"], None);
    let one =
        |daemon: &Daemon, key: &str| daemon.list("full_cache").pop().and_then(|one| one[key].as_u64()).unwrap_or(0);
    until("it is full", || one(&daemon, "live_blocks") >= 500);
    daemon.restart();
    // The new daemon knows no block that was live.
    until("unknown blocks are freed", || one(&daemon, "allocs") > 700);
    daemon.query(&["epoch"]);
    until("it goes on", || one(&daemon, "allocs") > 1000);
    daemon.query(&["epoch"]);
    drop(running);
    until("it is over", || daemon.list("full_cache").is_empty());
    daemon.stop();
    let folders = daemon.epochs(&["--program", "full_cache"]);
    assert!(folders.len() >= 4, "{folders:?}");
    for folder in &folders[1..] {
        let output = daemon.heaptape(&["verify"], std::slice::from_ref(folder));
        assert_eq!(output.code(), 0, "{}: {output}", folder.display());
    }
    let unknown = |folder: &PathBuf| daemon.report(std::slice::from_ref(folder)).processes[0].unknown_frees;
    assert!(unknown(&folders[1]) > 100, "{folders:?}");
}

/// A process that ends while no daemon runs keeps its name.
#[test]
fn process_that_ends_without_a_daemon_keeps_its_name() {
    let mut daemon = Daemon::start(&["--mode", "trace"]);
    let running = daemon.spawn(&target::c("leaks_slowly"), &["100000", "2"], None);
    until("it is served", || daemon.list("leaks_slowly").len() == 1);
    daemon.restart_after(|_| drop(running));
    until("it is over", || daemon.query(&["status"])["processes"] == 0);
    assert!(!daemon.log().contains("()"), "{}", daemon.log());
    daemon.stop();
    for process in daemon.report(&daemon.epochs(&[])).processes {
        assert!(process.exe.ends_with("leaks_slowly"), "{process:#?}");
    }
}

/// The files of a process for the next daemon are removed when the process has ended.
#[test]
fn files_for_the_next_daemon_end_with_their_process() {
    let mut daemon = Daemon::start(&[]);
    let running = daemon.spawn(&target::c("leaks_slowly"), &["1000000", "1"], None);
    until("it is served", || daemon.list("leaks_slowly").len() == 1);
    for number in 0..20 {
        // The events of a trace and of a flight are in a journal at first.
        let mode = ["profile", "trace", "flight"][number % 3];
        assert!(daemon.spawn(&target::c("small"), &[], Some(mode)).0.wait().expect("it ends").success());
    }
    let kept = |daemon: &Daemon| {
        let files = std::fs::read_dir(daemon.state().join("carried")).expect("the folder of the files");
        let stems = files.flatten().filter_map(|file| Some(file.path().file_stem()?.to_str()?.to_owned()));
        stems.collect::<std::collections::BTreeSet<String>>()
    };
    let own = [running.0.id().to_string()].into();
    until("only those of the running process are left", || kept(&daemon).is_subset(&own));
    daemon.restart();
    until("it is served again", || daemon.list("leaks_slowly").len() == 1);
    // One that ended right before the restart was taken over, too.
    until("only those of the running process are left", || kept(&daemon).is_subset(&own));
}

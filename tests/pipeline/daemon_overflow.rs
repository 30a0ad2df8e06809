//! What a program does under the daemon when its rings are full: it drops events, or waits for a
//! bounded time.

use heaptape_tests::daemon::Running;
use heaptape_tests::run::{Outcome, finish};
use heaptape_tests::wait::until;
use heaptape_tests::{Daemon, own, ring, same, target, test_env};
use nix::sys::signal::Signal;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Option that disables the CPU budget of the daemon.
const ANY_CPU: &str = "--cpu=100000";

/// Returns the number of events that a target counted itself.
fn own_events(file: &Path) -> u64 {
    let own = own::sum(&own::read(file));
    own.allocs + own.resizes + own.frees
}

fn events(daemon: &Daemon, name: &str, key: &str) -> u64 {
    daemon.list(name).first().map_or(0, |one| one[key].as_u64().unwrap_or(0))
}

/// Waits until a program that never rests loses nothing for a second while it is recorded. What it
/// lost before comes late.
#[track_caller]
fn loses_nothing_more(daemon: &Daemon, name: &str) {
    until("nothing is lost any more", || {
        let look = || (events(daemon, name, "lost"), events(daemon, name, "recorded"));
        let (lost, recorded) = look();
        std::thread::sleep(Duration::from_secs(1));
        let (lost_later, recorded_later) = look();
        lost == lost_later && recorded_later > recorded
    });
}

/// A busy program loses most of its events where it drops, and none where it waits. Its output and
/// status are those of the plain run.
#[test]
fn busy_program_loses_nothing_when_it_waits() {
    let pairs = target::c("pairs");
    let arguments = ["400000", "1"];
    let mut plain = Command::new(&pairs);
    plain.args(arguments);
    let plain = finish(plain, b"").success();
    for (mode, waits) in [("trace", false), ("trace,overflow=wait:2s", true)] {
        let mut daemon = Daemon::start(&[&ring(1), ANY_CPU]);
        let folder = test_env::folder();
        let file = folder.path().join("own");
        let mut command = daemon.command(&pairs);
        command.args(arguments).env("HEAPTAPE_MODE", mode).env("OWN_FILE", &file);
        same(&plain, &finish(command, b""));
        until("it is over", || daemon.list("pairs").is_empty());
        daemon.stop();
        let report = daemon.report(&daemon.epochs(&[]));
        let process = report.only("pairs");
        process.assert_accounting();
        assert_eq!(process.emitted_events, own_events(&file), "{mode}: {process:#?}");
        if waits {
            assert_eq!(process.lost_events, 0, "{mode}: {process:#?}\n{}", daemon.log());
            daemon.assert_complete();
        } else {
            assert!(process.lost_events > process.emitted_events / 2, "{mode}: {process:#?}");
        }
    }
}

/// A stopped daemon delays each thread of a program by at most the bound, once each time it stops.
/// Between the end of that wait and the daemon's return the program drops and counts. Once the
/// daemon is back the program loses nothing.
#[test]
fn stopped_daemon_delays_program_once_by_the_bound() {
    const BOUND_MS: u64 = 3_000;
    /// What a busy machine may add, and what is a stall rather than other work of the machine.
    const SLACK_MS: u64 = BOUND_MS / 2;
    let stalls = target::c("stalls");
    let mut daemon = Daemon::start(&["--mode", &format!("trace,overflow=wait:{BOUND_MS}ms"), "--ring=64KiB", ANY_CPU]);
    let folder = test_env::folder();
    let path = |name: &str| folder.path().join(name);
    let (end, lines, file) = (path("end"), path("lines"), path("own"));
    let command = |mut command: Command| {
        command.args(["2", &SLACK_MS.to_string()]).args([&end, &lines]);
        command
    };
    std::fs::write(&end, "").expect("a file");
    let plain = finish(command(Command::new(&stalls)), b"").exits(7);
    std::fs::remove_file(&end).expect("a file");
    let found = || -> Vec<(u64, u64)> {
        let text = std::fs::read_to_string(&lines).unwrap_or_default();
        let pair = |line: &str| {
            let (thread, time) = line.split_once(' ').expect("two numbers");
            (thread.parse().expect("a thread"), time.parse().expect("a time"))
        };
        text.lines().map(pair).collect()
    };
    let mut recorded = command(daemon.command(&stalls));
    recorded.env("OWN_FILE", &file);
    let running = std::thread::spawn(move || finish(recorded, b""));
    until("it is served", || events(&daemon, "stalls", "recorded") > 100_000);
    assert_eq!(events(&daemon, "stalls", "lost"), 0, "{}", daemon.log());
    for stops in 1..=2 {
        let before = found().len();
        daemon.signal(Signal::SIGSTOP);
        until("a thread has waited", || found().len() > before);
        // As long again: it waits no more while the daemon is stopped.
        std::thread::sleep(Duration::from_millis(BOUND_MS + SLACK_MS));
        daemon.signal(Signal::SIGCONT);
        for thread in 0..2 {
            let times: Vec<u64> = found().iter().filter(|stall| stall.0 == thread).map(|stall| stall.1).collect();
            assert!(times.len() <= stops, "thread {thread} waited again: {:?}", found());
            assert!(times.iter().all(|ms| *ms < BOUND_MS + SLACK_MS), "{:?}", found());
        }
        // It is back: what finds no room waits again.
        until("the losses are known", || events(&daemon, "stalls", "lost") > 0);
        loses_nothing_more(&daemon, "stalls");
    }
    std::fs::write(&end, "").expect("a file");
    same(&plain, &running.join().expect("it ends"));
    until("it is over", || daemon.list("stalls").is_empty());
    daemon.stop();
    let report = daemon.report(&daemon.epochs(&[]));
    let process = report.only("stalls");
    process.assert_accounting();
    assert!(process.lost_events > 0, "{process:#?}");
    // The loader allocates for each thread.
    let own = own_events(&file);
    assert!((own..=own + 4).contains(&process.emitted_events), "{own} {process:#?}");
}

/// The configuration file, its rules, a program's environment and `ctl` choose; `ctl list` shows
/// it, and it survives a restart.
#[test]
fn overflow_is_chosen_by_file_rule_program_and_ctl() {
    let folder = test_env::folder();
    let file = folder.path().join("daemon.toml");
    let text = "mode = \"trace\"\noverflow = \"wait:3s\"\nprogram = [\"leaks_sl*=profile, overflow = drop\"]\n";
    std::fs::write(&file, text).expect("a file");
    let config = format!("--config={}", file.display());
    let mut daemon = Daemon::start(&[&config, &ring(1), ANY_CPU]);
    let overflow = |daemon: &Daemon, one: &Running| {
        let list: Vec<_> = daemon.list("churn").into_iter().chain(daemon.list("leaks_slowly")).collect();
        let found = list.iter().find(|found| found["pid"] == one.0.id()).expect("it is served");
        format!("{} {}", found["mode"].as_str().expect("a mode"), found["overflow"].as_str().expect("an overflow"))
    };
    let start = |name: &str, mode| daemon.spawn(&target::c(name), &["1000000", "5"], mode);
    let usual = daemon.spawn(&target::c("churn"), &["0"], None);
    let ruled = start("leaks_slowly", None);
    let requested = start("leaks_slowly", Some("trace:64KiB,overflow=wait:1500ms"));
    until("they are served", || daemon.list("churn").len() == 1 && daemon.list("leaks_slowly").len() == 2);
    assert_eq!(overflow(&daemon, &usual), "trace wait:3s");
    assert_eq!(overflow(&daemon, &ruled), "profile drop");
    assert_eq!(overflow(&daemon, &requested), "trace:65536 wait:1500ms");
    let output: Outcome = daemon.ctl(&["list"]).success();
    assert!(output.text().contains("OVERFLOW") && output.text().contains("wait:1500ms"), "{output}");

    let mode = |daemon: &Daemon, mode: &str| daemon.ctl(&["mode", &usual.0.id().to_string(), mode]);
    mode(&daemon, "trace,overflow=drop").success();
    assert_eq!(overflow(&daemon, &usual), "trace drop");
    until("it drops", || events(&daemon, "churn", "lost") > 0);
    let output = mode(&daemon, "trace,overflow=wait:20s").success();
    assert!(output.text().contains("mode is now trace,overflow=wait:20s"), "{output}");
    loses_nothing_more(&daemon, "churn");
    daemon.replace(Signal::SIGTERM);
    until("they are served again", || daemon.list("churn").len() == 1 && daemon.list("leaks_slowly").len() == 2);
    assert_eq!(overflow(&daemon, &usual), "trace wait:20s");
    assert_eq!(overflow(&daemon, &ruled), "profile drop");
    mode(&daemon, "profile").success();
    assert_eq!(overflow(&daemon, &usual), "profile wait:3s", "as the file says");
    let output = mode(&daemon, "trace,overflow=wait:31s");
    assert!(output.code() == 2 && output.error().contains("from 1ms to 30s"), "{output}");
}

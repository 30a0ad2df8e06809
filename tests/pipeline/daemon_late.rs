//! Programs that no longer waited for the daemon run unrecorded, and are counted and named.

use heaptape_tests::recording::heaptape;
use heaptape_tests::wait::until;
use heaptape_tests::{Daemon, target};
use nix::sys::signal::Signal;
use serde_json::Value;

/// Number of programs that start while the daemon does not answer.
const PROGRAMS: usize = 40;

#[test]
fn programs_that_the_daemon_is_too_late_for_are_counted_and_named() {
    let daemon = Daemon::start(&[]);
    let status = || daemon.query(&["status"]);
    let late = |text: &str| text.contains("heaptape_unrecorded_total{reason=\"late\"}");
    assert!(late(&daemon.ctl(&["metrics"]).text()), "the series begins with 0, so that its first count is a rise");
    let accepted = status()["own"]["accepted_total"].as_f64();
    daemon.signal(Signal::SIGSTOP);
    let start = || {
        let mut command = daemon.command(&target::c("leaks_slowly"));
        command.env_remove("HEAPTAPE_ATTACH_MS").args(["1000000", "5"]);
        heaptape_tests::daemon::Running(command.spawn().expect("it starts"))
    };
    let running: Vec<_> = (0..PROGRAMS).map(|_| start()).collect();
    // Their connections are closed once they run on.
    until("all have gone on", || {
        running.iter().all(|one| {
            let sleeps = std::fs::read_to_string(format!("/proc/{}/syscall", one.0.id())).unwrap_or_default();
            let name = sleeps.split(' ').next().unwrap_or_default();
            name == nix::libc::SYS_clock_nanosleep.to_string() || name == nix::libc::SYS_nanosleep.to_string()
        })
    });
    daemon.signal(Signal::SIGCONT);
    let unrecorded = || {
        let text = daemon.ctl(&["metrics"]).text();
        let line = text.lines().find(|line| late(line)).map(str::to_owned).unwrap_or_default();
        line.rsplit(' ').next().and_then(|count| count.parse::<usize>().ok())
    };
    until("all are counted", || unrecorded() == Some(PROGRAMS));
    let now = status();
    assert_eq!(now["own"]["accepted_total"].as_f64(), accepted, "{now:#}");
    let named = now["late"].as_array().expect("a list");
    assert!(named.len() == 16 && named.iter().all(|one| one["name"] == "leaks_slowly"), "{now:#}");
    let pids: Vec<u64> = running.iter().map(|one| u64::from(one.0.id())).collect();
    assert!(named.iter().all(|one| one["pid"].as_u64().is_some_and(|pid| pids.contains(&pid))), "{now:#}");
    let text = daemon.ctl(&["status"]).success().text();
    assert!(text.contains("unrecorded leaks_slowly ("), "{text}");
    let lines = daemon.log().lines().filter(|line| line.contains("no longer waited for the daemon")).count();
    assert_eq!(lines, 16, "{}", daemon.log());
    drop(running);
    until("those that have ended are not named", || status()["late"] == Value::Null);
    assert_eq!(status()["own"]["late_processes"], 0.0);
    assert_eq!(unrecorded(), Some(PROGRAMS));
}

/// A service waits longer than a program that somebody starts: at the start of a machine all
/// services come at once.
#[test]
fn environment_of_a_service_has_a_longer_wait() {
    let service = heaptape(["env"]).success().text();
    assert!(service.contains("Environment=\"HEAPTAPE_ATTACH_MS=2000\"\n"), "{service}");
    assert!(!heaptape(["env", "--shell"]).success().text().contains("HEAPTAPE_ATTACH_MS"));
}

//! Programs that no longer waited for the daemon run unrecorded, and are counted and named.

use heaptape_tests::recording::heaptape;
use heaptape_tests::wait::until;
use heaptape_tests::{Daemon, target};
use heaptape_wire::hello::{ACCEPTED, Hello, REPLY_BYTES, Reply};
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

/// The reply of a busy daemon may reach a program that has just gone on. It is not listed as recorded.
#[test]
fn program_that_does_not_use_its_area_is_named() {
    use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, send, socket};
    use std::os::fd::AsRawFd;
    let mut daemon = Daemon::start(&[]);
    let ask = |daemon: &Daemon| {
        let client = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
        connect(client.as_raw_fd(), &UnixAddr::new(&daemon.socket()).expect("a path")).expect("connects");
        let hello =
            Hello { pid: std::process::id(), page_size: 4096, address_space: u64::MAX, ..Hello::default() }.encode();
        send(client.as_raw_fd(), &hello, MsgFlags::empty()).expect("sends");
        let mut reply = [0; REPLY_BYTES];
        assert_eq!(recv(client.as_raw_fd(), &mut reply, MsgFlags::empty()), Ok(reply.len()));
        assert_eq!(Reply::decode(&reply).map(|reply| reply.status), Some(ACCEPTED));
        client
    };
    let late = |daemon: &Daemon| {
        let late = daemon.query(&["status"])["late"].clone();
        late.as_array().map(|late| late.iter().map(|one| one["reason"].clone()).collect::<Vec<_>>())
    };
    let client = ask(&daemon);
    assert_eq!((daemon.query(&["status"])["processes"].as_u64(), late(&daemon)), (Some(0), None));
    drop(client);
    until("it is counted", || late(&daemon).is_some_and(|late| late == ["late"]));
    // A daemon that is killed meanwhile leaves the process to the next one, which names it.
    let client = ask(&daemon);
    daemon.restart();
    until("it is named", || late(&daemon).is_some_and(|late| late == ["orphaned"]));
    drop(client);
}

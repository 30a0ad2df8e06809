//! The daemon records programs that were started without the library: `ctl attach`, `ctl detach`,
//! and rules with `attach=true`.

use heaptape_tests::daemon::Running;
use heaptape_tests::recording::heaptape;
use heaptape_tests::wait::until;
use heaptape_tests::{Daemon, Target, target, test_env};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Starts a program without the library.
fn plain(program: impl AsRef<Path>, arguments: &[&str]) -> Running {
    let mut command = Command::new(program.as_ref());
    command.args(arguments).env_remove("LD_PRELOAD").env_remove("HEAPTAPE_SOCKET");
    let running = Running(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("it starts"));
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{}/{file}", running.0.id())).unwrap_or_default();
    until("its loader is done", || read("stat").contains(") S ") && read("maps").contains("libc.so"));
    running
}

/// Returns the code that a process has mapped, and its shared memory.
fn mappings(pid: u32) -> Vec<String> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs");
    let code_and_areas = maps.lines().filter(|line| line.contains("-xp ") || line.contains("memfd:"));
    code_and_areas.map(str::to_owned).collect()
}

/// Returns whether a function of a process is still hooked.
fn is_hooked(pid: u32) -> bool {
    let restored = heaptape(["detach", &pid.to_string()]);
    assert_eq!(restored.code(), 0, "{restored}");
    !restored.text().contains("has no function that heaptape has hooked")
}

fn number(one: &Value, key: &str) -> u64 {
    one[key].as_u64().unwrap_or(0)
}

/// A program is attached, recorded like one that was started with the library, and left, twice.
#[test]
fn program_is_attached_and_left_on_request() {
    let mut daemon = Daemon::start(&["--mode", "profile"]);
    let running = plain(target::c("leaks_slowly"), &["1000000", "5"]);
    let pid = running.0.id();
    let (name, before) = (pid.to_string(), mappings(pid));
    for mode in ["trace", "profile", "flight"] {
        let attached = daemon.query(&["attach", &name, "--mode", mode]);
        assert_eq!((number(&attached, "pid"), &attached["mode"]), (pid.into(), &mode.into()), "{attached}");
        assert!(number(&attached, "functions") >= 6 && number(&attached, "stop_us") > 0, "{attached}");
        let again = daemon.ctl(&["attach", &name]);
        assert!(again.code() != 0 && again.error().contains("is recorded already"), "{again}");
        let one = || daemon.list("leaks_slowly").pop().unwrap_or_default();
        until("its events are recorded", || number(&one(), "allocs") > 400);
        assert_eq!(one()["attached"], true);
        assert!(daemon.ctl(&["list"]).text().contains("attached"));
        if mode != "flight" {
            let live = ["--live", &name, "--control", daemon.control().to_str().expect("a path")].map(str::to_owned);
            let leaks = heaptape(["leaks".to_owned(), "--json".to_owned()].into_iter().chain(live));
            let leaks: Value = serde_json::from_slice(&leaks.stdout).unwrap_or_else(|error| panic!("{error}: {leaks}"));
            assert!(leaks["leaks"].to_string().contains("\"keeps\""), "{leaks:#}");
        }
        if mode == "trace" {
            // Its malloc is hooked in the libc itself, whose size classes are known.
            daemon.query(&["snapshot", &name]);
            let live = ["--live", &name, "--control", daemon.control().to_str().expect("a path")].map(str::to_owned);
            let rss = heaptape(["rss".to_owned(), "--json".to_owned()].into_iter().chain(live)).success();
            let rss: Value = serde_json::from_slice(&rss.stdout).expect("JSON");
            let report = &rss["processes"][0]["rss"];
            assert_eq!(report["allocator"], "glibc", "{report:#}");
            assert!(report["parts"].as_array().is_some_and(|parts| number(&parts[1], "bytes") > 0), "{report:#}");
        }
        let left = daemon.query(&["detach", "leaks_*"]);
        assert_eq!((&left["processes"], &left["remains"]), (&1.into(), &Value::Array(Vec::new())), "{left}");
        assert_eq!(daemon.list("leaks_slowly"), Vec::<Value>::new());
        assert_eq!((mappings(pid), is_hooked(pid)), (before.clone(), false));
    }
    let own = daemon.pid().to_string();
    let refusals = [
        ("2147483647", "there is no process 2147483647"),
        ("no-such-program", "no process has the name no-such-program"),
        (&own, "it is this process itself"),
    ];
    for (process, why) in refusals {
        let refused = daemon.ctl(&["attach", process]);
        assert!(refused.code() != 0 && refused.error().contains(why), "{refused}");
    }
    let preloaded = daemon.spawn(&target::c("full_cache"), &["100", "20"], None);
    until("it is recorded", || daemon.list("full_cache").len() == 1);
    let refused = daemon.ctl(&["detach", "all"]);
    assert!(refused.error().contains("the others were started with the library"), "{refused}");
    drop(preloaded);
    daemon.query(&["flush"]);
    daemon.stop();
    daemon.assert_complete();
    let report = daemon.report(&daemon.epochs(&[]));
    let traced = report.processes.iter().filter(|process| process.pid == pid);
    let events: Vec<(u64, u64)> = traced.map(|one| (one.recorded_events, one.lost_events)).collect();
    assert!(events.len() == 2 && events.iter().all(|(recorded, lost)| *recorded > 400 && *lost == 0), "{events:?}");
    drop(running);
}

/// The end of the daemon leaves a process as it was. A daemon that is killed leaves it to the next
/// one, which records it, and restores it at the end.
#[test]
fn attached_program_is_left_at_the_end_of_the_daemon() {
    let running = plain(target::c("leaks_slowly"), &["1000000", "5"]);
    let pid = running.0.id();
    let before = mappings(pid);
    let mut daemon = Daemon::start(&["--mode", "trace"]);
    daemon.query(&["attach", &pid.to_string()]);
    assert_ne!(mappings(pid), before);
    daemon.stop();
    assert_eq!((mappings(pid), is_hooked(pid)), (before, false));
    daemon.assert_complete();
    let mut daemon = Daemon::start(&["--mode", "trace"]);
    daemon.query(&["attach", &pid.to_string()]);
    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        daemon.replace(signal);
        let one = || daemon.list("leaks_slowly").pop().unwrap_or_default();
        until("the next daemon records it", || number(&one(), "allocs") > 400);
        assert_eq!(one()["attached"], true, "{signal}");
    }
    daemon.stop();
    assert!(!is_hooked(pid), "its functions are restored");
    let report = daemon.report(&daemon.epochs(&[]));
    let lost: u64 = report.processes.iter().map(|process| process.lost_events).sum();
    assert_eq!((report.processes.is_empty(), lost), (false, 0), "{:#?}", report.processes);
    drop(running);
}

/// A rule attaches programs that were started without the library, and no other ones. A process
/// that is refused is tried and logged once.
#[test]
fn rule_attaches_programs_that_run_without_the_library() {
    // Other tests run `leaks_slowly` meanwhile.
    let [ruled, unruled] = ["ruled", "unruled"].map(|name| Target::program("leaks_slowly.c").named(name).build());
    let preloaded = Command::new(&ruled)
        .args(["1000000", "20"])
        .env("LD_PRELOAD", test_env::library())
        .env_remove("HEAPTAPE_SOCKET")
        .spawn();
    let preloaded = Running(preloaded.expect("it starts"));
    let (wanted, other) = (plain(&ruled, &["1000000", "20"]), plain(&unruled, &["1000000", "20"]));
    let daemon = Daemon::start(&["--program", "ruled=profile:2%,attach=true", "--program", "*=trace"]);
    let pids = |name: &str| -> Vec<u64> { daemon.list(name).iter().map(|one| number(one, "pid")).collect() };
    until("it is attached", || !pids("ruled").is_empty());
    assert_eq!(daemon.list("ruled")[0]["mode"], "profile:2%");
    let refusal = format!("process {} (ruled) is not attached: it has heaptape's library", preloaded.0.id());
    until("the other one is refused", || daemon.log().contains(&refusal));
    // What was left on request is not attached again by the rule. Meanwhile there are two searches.
    daemon.query(&["detach", &wanted.0.id().to_string()]);
    std::thread::sleep(Duration::from_secs(11));
    assert_eq!((pids("ruled"), pids("unruled")), (vec![], vec![]), "{}", daemon.log());
    assert_eq!(daemon.log().matches(&refusal).count(), 1, "{}", daemon.log());
    assert_eq!(daemon.log().matches("is attached: ").count(), 1, "{}", daemon.log());
    let later = plain(&ruled, &["1000000", "20"]);
    until("a later one is attached", || pids("ruled") == [u64::from(later.0.id())]);
    drop((preloaded, wanted, other, later));
}

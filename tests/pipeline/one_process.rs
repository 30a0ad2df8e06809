//! A process that the daemon wrote to several folders is one process for every command: no block
//! counts twice, verdicts do not depend on where an epoch was cut, and its end is known.

use heaptape_tests::cgroup::Cgroup;
use heaptape_tests::daemon::Running;
use heaptape_tests::recording::{Process, heaptape};
use heaptape_tests::wait::until;
use heaptape_tests::{Daemon, target, test_env};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::time::Duration;

fn live(daemon: &Daemon, name: &str) -> u64 {
    daemon.list(name).pop().and_then(|one| one["live_blocks"].as_u64()).unwrap_or(0)
}

/// Waits until the process holds more than a number of blocks that this daemon knows.
fn until_more(daemon: &Daemon, blocks: u64) {
    until("it is counted", || live(daemon, "leaks_slowly") > blocks);
}

/// Returns the answer of `heaptape why --json`.
#[track_caller]
fn why(daemon: &Daemon, which: &str) -> Value {
    let (state, control) = (daemon.state(), daemon.control());
    let arguments = ["why".as_ref(), "--json".as_ref(), "--state".as_ref(), state.as_os_str(), "--control".as_ref()];
    let output = heaptape(arguments.into_iter().chain([control.as_os_str(), which.as_ref()]));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output}"))
}

/// Returns the only process of some folders.
#[track_caller]
fn only(daemon: &Daemon, paths: &[PathBuf]) -> Process {
    let mut report = daemon.report(paths);
    assert_eq!(report.processes.len(), 1, "{report:#?}");
    report.processes.remove(0)
}

/// Asserts that nothing of `leaks_slowly` is missing and nothing counts twice: it keeps one block
/// of eight, and may be killed between two of them.
#[track_caller]
fn assert_one_in_eight(process: &Process) {
    assert!(process.live_blocks * 8 - process.allocs <= 8, "{process:#?}");
    let live_by_counts = process.allocs - process.frees;
    assert_eq!((live_by_counts, process.lost_events, process.unknown_frees), (process.live_blocks, 0, 0));
    assert_eq!(process.emitted_events, process.allocs + process.frees, "{process:#?}");
}

#[test]
fn trace_in_several_folders_is_one_process() {
    let mut daemon = Daemon::start(&["--mode", "trace"]);
    let running = daemon.spawn(&target::c("leaks_slowly"), &["100000", "2"], None);
    until_more(&daemon, 50);
    daemon.query(&["epoch"]);
    until_more(&daemon, 100);
    daemon.replace(Signal::SIGTERM);
    // A verdict of growth needs a run of a second.
    until_more(&daemon, 700);
    // The next daemon does not know what was live before.
    daemon.restart();
    until_more(&daemon, 50);
    // Nor does it carry that over.
    daemon.query(&["epoch"]);
    until_more(&daemon, 100);
    drop(running);
    until("it is over", || daemon.list("leaks_slowly").is_empty());
    daemon.stop();
    let folders = daemon.epochs(&["--program", "leaks_slowly"]);
    assert_eq!(folders.len(), 5, "each has events of its own: {folders:?}");
    for paths in [folders.clone(), daemon.epochs(&[])] {
        let process = only(&daemon, &paths);
        assert_eq!((process.segments.len(), process.exit["signal"].as_u64()), (5, Some(9)), "{process:#?}");
        assert_one_in_eight(&process);
        let leaks = daemon.leaks(&paths);
        let kept: Vec<_> = leaks.iter().filter(|leak| leak.functions().contains(&"keeps")).collect();
        assert_eq!(kept.len(), 1, "{leaks:#?}");
        assert_eq!((kept[0].blocks, kept[0].verdict.as_str()), (process.live_blocks, "growing"));
    }
    // The same folder twice is one, too.
    let twice = [&folders[..1], &folders[..1]].concat();
    assert_eq!(only(&daemon, &twice).allocs, only(&daemon, &folders[..1]).allocs);
    // The peak and a time range are those of the whole run.
    let whole = only(&daemon, &folders);
    assert!(whole.peak_blocks >= whole.live_blocks && whole.peak_blocks <= whole.live_blocks + 1, "{whole:#?}");
}

#[test]
fn profile_over_a_restart_is_one_process_and_its_end_is_known() {
    let mut daemon = Daemon::start(&["--snapshot", "200ms"]);
    let program = target::c("leaks_slowly");
    let running = daemon.spawn(&program, &["100000", "2"], None);
    until_more(&daemon, 50);
    daemon.query(&["epoch"]);
    until_more(&daemon, 100);
    daemon.replace(Signal::SIGTERM);
    until_more(&daemon, 150);
    let pid = running.0.id();
    drop(running);
    until("it is over", || daemon.list("leaks_slowly").is_empty());
    // A short process that ends well is only added to the sums of its program.
    daemon.run(&program, &["20", "1"]).success();
    daemon.run(&program, &["20", "1", "1000", "abort"]);
    until("they are over", || daemon.query(&["status"])["processes"] == 0);
    daemon.stop();
    let report = daemon.report(&daemon.epochs(&[]));
    let long = report.all("leaks_slowly").find(|process| process.pid == pid).expect("it has its own folder");
    assert_eq!((long.segments.len(), long.exit["signal"].as_u64()), (3, Some(9)), "{long:#?}");
    assert_one_in_eight(long);
    let ends: Vec<_> = report.all("leaks_slowly").map(|process| process.exit["signal"].as_u64()).collect();
    assert_eq!(ends.iter().filter(|end| **end == Some(6)).count(), 1, "{report:#?}");
    let sums: Vec<_> = report.all("leaks_slowly").filter(|process| process.pid == 0).collect();
    assert_eq!(sums.len(), 1, "{report:#?}");
    assert_eq!((sums[0].allocs, sums[0].live_blocks), (20 * 8 + sums[0].allocs % 8, 20 + sums[0].allocs % 8));
    assert_eq!(report.processes.len(), 3, "{report:#?}");
    let kept: u64 = daemon.leaks(&daemon.epochs(&[])).iter().map(|leak| leak.blocks).sum();
    let live: u64 = report.processes.iter().map(|process| process.live_blocks).sum();
    assert_eq!(kept, live, "each block is reported once");
}

#[test]
fn kept_flight_is_one_process_with_its_cause() {
    let daemon = Daemon::start(&["--mode", "flight", "--flight-time", "800ms"]);
    let running = daemon.spawn(&target::c("leaks_slowly"), &["100000", "2"], None);
    until_more(&daemon, 300);
    daemon.query(&["snapshot"]);
    let folders = daemon.epochs(&["--program", "leaks_slowly"]);
    assert!(folders.len() > 1, "all segments: {folders:?}");
    for paths in [folders.clone(), daemon.epochs(&[])] {
        let process = only(&daemon, &paths);
        assert_eq!((process.segments.len(), &process.kept["why"]), (folders.len(), &"requested".into()));
        assert!(process.live_blocks >= 300 && process.unknown_frees == 0, "{process:#?}");
        assert_eq!(process.allocs - process.frees, process.live_blocks, "{process:#?}");
        let leaks = daemon.leaks(&paths);
        assert_eq!(leaks.iter().filter(|leak| leak.functions().contains(&"keeps")).count(), 1, "{leaks:#?}");
    }
    let text = daemon.heaptape(&["report"], &folders).text().to_owned();
    assert!(text.contains("the last events were kept at 20") && text.contains("UTC: requested"), "{text}");
    drop(running);
}

/// A push writes what profiles and traces hold, and leaves flight recordings as they are: they
/// would be kept again at every interval.
#[test]
fn push_keeps_no_flight() {
    let daemon = Daemon::start(&[]);
    let running = daemon.spawn(&target::c("leaks_slowly"), &["100000", "2"], Some("flight"));
    until_more(&daemon, 100);
    // The program that pushes is not built for each test: where there is none, this one is found.
    let folder = test_env::folder();
    let helper = folder.path().join("heaptape-parquet");
    test_env::script(&helper, "#!/bin/sh\ncat > /dev/null\necho '{}'\n");
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap_or_default());
    let mut push = std::process::Command::new(test_env::command());
    push.args(["push", "--to", "http://127.0.0.1:9"]).arg("--control").arg(daemon.control()).env("PATH", path);
    let output = push.output().expect("a push");
    assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
    // Nor does a question about the process as it is now.
    let control = daemon.control().display().to_string();
    let live = ["leaks", "--json", "--live", "leaks_slowly", "--control", &control];
    let output = daemon.heaptape(&live, &[]).success();
    let leaks: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(leaks["leaks"][0]["stack"][0]["function"], "keeps", "{leaks:#}");
    assert_eq!(leaks["processes"][0]["missing"], serde_json::json!([]), "{leaks:#}");
    assert!(daemon.epochs(&["--program", "leaks_slowly"]).is_empty(), "no flight is kept");
    let metrics = daemon.ctl(&["metrics"]).text().to_owned();
    assert!(metrics.contains("heaptape_flights_kept_total 0"), "{metrics}");
    drop(running);
}

/// The minutes before a restart or a kill of the daemon are part of the flight that is kept
/// afterwards.
#[test]
fn flight_continues_over_restarts_of_the_daemon() {
    let mut daemon = Daemon::start(&["--mode", "flight", "--flight-time", "10m"]);
    let running = daemon.spawn(&target::c("leaks_slowly"), &["100000", "2"], None);
    until_more(&daemon, 100);
    daemon.replace(Signal::SIGTERM);
    until_more(&daemon, 200);
    daemon.restart();
    until_more(&daemon, 50);
    daemon.query(&["snapshot"]);
    let folders = daemon.epochs(&["--program", "leaks_slowly"]);
    let process = only(&daemon, &folders);
    assert_eq!(process.segments.len(), 3, "of three daemons: {folders:?}");
    assert!(process.live_blocks > 250 && process.unknown_frees == 0, "{process:#?}");
    assert_eq!(process.allocs - process.frees, process.live_blocks, "{process:#?}");
    drop(running);
    until("it is over", || daemon.list("leaks_slowly").is_empty());
    let flights = daemon.state().join("0/flight");
    daemon.stop();
    assert!(!flights.exists() || flights.read_dir().is_ok_and(|mut left| left.next().is_none()), "nothing is left");
}

/// The screen about a process: how it ended, what grew and since when, and the one that runs now.
#[test]
fn why_shows_how_a_process_ended_and_what_grew() {
    let mut daemon = Daemon::start(&["--mode", "trace"]);
    let program = target::c("leaks_slowly");
    let mut labeled = daemon.command(&program);
    labeled.env("HEAPTAPE_LABEL", "shop");
    let first = Running(labeled.args(["100000", "2"]).spawn().expect("the program starts"));
    let pid = first.0.id();
    until_more(&daemon, 500);
    daemon.query(&["epoch"]);
    until_more(&daemon, 1000);
    drop(first);
    until("it is over", || daemon.list("leaks_slowly").is_empty());
    let second = daemon.spawn(&program, &["100000", "20"], None);
    until_more(&daemon, 10);
    let why = |which: &str| why(&daemon, which);
    let both = why("leaks_slowly");
    let [alive, dead] = &both["processes"].as_array().expect("processes")[..] else { panic!("two: {both:#}") };
    assert_eq!((alive["pid"].as_u64(), alive["alive"].as_bool()), (Some(second.0.id().into()), Some(true)));
    assert!(alive["resident_bytes"].as_u64().is_some_and(|bytes| bytes > 100_000), "{alive:#}");
    assert!(alive["live_blocks"].as_u64().is_some_and(|blocks| blocks > 10), "the daemon has written: {alive:#}");
    for (which, answer) in [("leaks_slowly", dead), ("shop", &why("shop")["processes"][0])] {
        assert_eq!((answer["pid"].as_u64(), &answer["label"]), (Some(pid.into()), &"shop".into()), "{which}");
        assert_eq!((answer["alive"].as_bool(), answer["exit"]["signal"].as_u64()), (Some(false), Some(9)));
        let grew = &answer["grew"][0];
        assert_eq!((&grew["verdict"], &grew["functions"][0]), (&"growing".into(), &"keeps".into()), "{answer:#}");
        assert_eq!(grew["blocks"], answer["live_blocks"]);
        let since =
            grew["since_unix_ns"].as_u64().expect("a time") - answer["started_unix_ns"].as_u64().expect("a time");
        assert!(since < 1_000_000_000, "since its start, not since the cut: {answer:#}");
    }
    let pid = pid.to_string();
    daemon.stop();
    let output = heaptape(["why".as_ref(), "--state".as_ref(), daemon.state().as_os_str(), pid.as_ref()]);
    let text = output.success().text().to_owned();
    assert!(text.contains(", shop): ended by signal 9 at 20") && text.contains("growing"), "{text}");
    drop(second);
}

/// A kill by the kernel because memory ran out is distinguished from a kill by another process, in
/// the same control group, too.
#[test]
fn why_knows_kills_because_memory_ran_out() {
    let Some(group) = Cgroup::limited(48 << 20) else { return };
    let daemon = Daemon::start(&["--program", "sh=off", "--mode", "flight"]);
    let spawn = |arguments: &str| {
        let program = target::c("leaks_slowly");
        let script = format!("echo $$ > {}; exec {} {arguments}", group.processes().display(), program.display());
        Running(daemon.command("/bin/sh".as_ref()).args(["-c", &script]).spawn().expect("the program starts"))
    };
    let answer = |running: &Running| {
        until("it is over", || daemon.list("leaks_slowly").is_empty() && daemon.list("sh").is_empty());
        why(&daemon, &running.0.id().to_string())["processes"][0].clone()
    };
    let mut greedy = spawn("1000000 1 20000");
    assert_eq!(greedy.0.wait().expect("it is ours").signal(), Some(9), "the kernel killed it");
    let dead = answer(&greedy);
    assert_eq!((&dead["exit"]["signal"], &dead["out_of_memory"]), (&9.into(), &true.into()), "{dead:#}");
    let (resident, limit) = (dead["resident_bytes"].as_u64(), dead["memory_limit_bytes"].as_u64());
    assert_eq!(limit, Some(48 << 20), "{dead:#}");
    assert!(resident.is_some_and(|bytes| bytes > 1 << 20 && bytes < 60 << 20), "{dead:#}");
    let cause = dead["flights"][0]["why"].as_str().expect("its flight is kept");
    assert_eq!(cause, "memory ran out, and the kernel killed the process (signal 9)");
    // What grew in the last second, and what the memory consisted of.
    let folders = daemon.epochs(&[]);
    let grew = |range: &[&str]| {
        let arguments = [&["leaks", "--json", "--program", "leaks_slowly"], range].concat();
        let output = daemon.heaptape(&arguments, &folders).success();
        let leaks: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(leaks["leaks"][0]["stack"][0]["function"], "keeps", "{leaks:#}");
        leaks["leaks"][0]["blocks"].as_u64().expect("blocks")
    };
    let (last, all) = (grew(&["--from", "-1s"]), grew(&[]));
    assert!(last > 0 && last <= 1000 && last < all, "a block a millisecond at most: {last} of {all}");
    let output = daemon.heaptape(&["rss", "--json", "--program", "leaks_slowly"], &folders).success();
    let bill: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let report = &bill["processes"][0]["rss"];
    let live = report["parts"].as_array().expect("parts").iter().find(|part| part["name"] == "live");
    let live = live.and_then(|live| live["bytes"].as_u64());
    assert!(live > report["resident_bytes"].as_u64().map(|bytes| bytes / 2), "{bill:#}");
    let mut modest = spawn("1000000 1");
    until_more(&daemon, 50);
    modest.0.kill().expect("it runs");
    modest.0.wait().expect("it is ours");
    let dead = answer(&modest);
    assert_eq!((&dead["exit"]["signal"], &dead["out_of_memory"]), (&9.into(), &false.into()), "{dead:#}");
    let [greedy, modest] = [greedy, modest].map(|running| {
        let (state, pid) = (daemon.state(), running.0.id().to_string());
        let output = heaptape(["why".as_ref(), "--state".as_ref(), state.as_os_str(), pid.as_ref()]);
        output.success().text().to_owned()
    });
    assert!(greedy.contains(": killed by the kernel because memory ran out (signal 9) at 20"), "{greedy}");
    assert!(greedy.contains(" when last seen, limit 48.0 MiB"), "{greedy}");
    assert!(modest.contains(": ended by signal 9 at 20"), "{modest}");
}

/// The question about a process that has just ended waits until the daemon has written it: there is
/// no time at which it is neither in the daemon's list nor in the state folder.
#[test]
fn why_knows_processes_that_have_just_ended() {
    let daemon = Daemon::start(&["--mode", "flight"]);
    let program = target::c("leaks_slowly");
    let mut running: Vec<Running> = (0..6).map(|_| daemon.spawn(&program, &["100000", "1"], None)).collect();
    until("all are served", || daemon.list("leaks_slowly").len() == running.len());
    for one in &mut running {
        one.0.kill().expect("it runs");
        one.0.wait().expect("it is ours");
        let dead = why(&daemon, &one.0.id().to_string())["processes"][0].clone();
        assert_eq!((&dead["alive"], &dead["exit"]["signal"]), (&false.into(), &9.into()), "{dead:#}");
        assert_eq!(dead["flights"][0]["why"], "signal 9 ended the process", "{dead:#}");
    }
}

/// After a daemon was killed, a profile has two recordings that are not joined: still one process.
#[test]
fn why_counts_a_process_once_after_its_daemon_was_killed() {
    let mut daemon = Daemon::start(&["--mode", "profile"]);
    let running = daemon.spawn(&target::c("leaks_slowly"), &["100000", "5"], None);
    until_more(&daemon, 50);
    daemon.query(&["snapshot"]);
    daemon.restart();
    until_more(&daemon, 50);
    let answer = why(&daemon, "leaks_slowly");
    assert_eq!(answer["processes"][0]["pid"], running.0.id(), "{answer:#}");
    assert_eq!((&answer["processes"][1], &answer["others"]), (&Value::Null, &serde_json::json!([])), "{answer:#}");
    // What it held before is not known, also after a daemon that ended well, and in the next epoch.
    let since = daemon.list("leaks_slowly")[0]["live_since_unix_ns"].clone();
    assert!(since.is_u64(), "{since}");
    daemon.replace(Signal::SIGTERM);
    until_more(&daemon, 50);
    daemon.query(&["epoch"]);
    daemon.query(&["snapshot"]);
    assert_eq!(why(&daemon, "leaks_slowly")["processes"][0]["live_since_unix_ns"], since);
    let (state, pid) = (daemon.state(), running.0.id().to_string());
    let screen = heaptape(["why".as_ref(), "--state".as_ref(), state.as_os_str(), pid.as_ref()]).success();
    assert!(screen.text().contains("live  ≥ ") && screen.text().contains("are known since 20"), "{screen}");
    let folders = daemon.epochs(&["--program", "leaks_slowly"]);
    let newest = std::slice::from_ref(folders.last().expect("its folder"));
    let sites = daemon.heaptape(&["sites", "--json"], newest).success();
    let sites: Value = serde_json::from_slice(&sites.stdout).expect("JSON");
    assert_eq!(sites["processes"][0]["live_since_unix_ns"], since, "{sites:#}");
    assert!(daemon.heaptape(&["sites"], newest).success().text().contains("≥ "));
}

/// A label is that of the start of a process: also if it overwrites its environment, for its
/// forked children, and after a restart of the daemon.
#[test]
fn labels_survive_changed_environments_forks_and_restarts() {
    let mut daemon = Daemon::start(&[]);
    let mut command = daemon.command(&target::c("forgets_environment"));
    let running = Running(command.env("HEAPTAPE_LABEL", "shop").spawn().expect("the program starts"));
    let labels = |daemon: &Daemon| -> Vec<String> {
        let all = daemon.list("forgets_environ");
        all.iter().map(|one| one["label"].as_str().unwrap_or_default().to_owned()).collect()
    };
    until("parent and child are served", || labels(&daemon).len() == 2);
    assert_eq!(labels(&daemon), ["shop", "shop"]);
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        daemon.replace(signal);
        until("both are served again", || labels(&daemon).len() == 2);
        assert_eq!(labels(&daemon), ["shop", "shop"], "after {signal}");
    }
    drop(running);
}

/// A full cache is a full cache, however short the segment after the cut is.
#[test]
fn verdicts_do_not_depend_on_the_cut_of_an_epoch() {
    let daemon = Daemon::start(&["--mode", "trace"]);
    let running = daemon.spawn(&target::c("full_cache"), &["2000", "1"], None);
    until("it is full", || live(&daemon, "full_cache") > 2000);
    let events = || daemon.list("full_cache").first().map_or(0, |one| one["recorded"].as_u64().unwrap_or(0));
    until("all of its blocks were replaced twice", || events() > 3 * 4000);
    let before = events();
    daemon.query(&["epoch"]);
    // The new epoch may count from its own beginning.
    until("half of them are replaced in the next one", || {
        let now = events();
        now > if now < before { 2000 } else { before + 2000 }
    });
    daemon.query(&["flush"]);
    let folders = daemon.epochs(&["--program", "full_cache"]);
    assert_eq!(folders.len(), 2, "{folders:?}");
    for paths in [&folders[..], &folders[1..]] {
        let leaks = daemon.leaks(paths);
        let cache = leaks.iter().find(|leak| leak.functions().contains(&"entry")).expect("the cache");
        assert_eq!(cache.verdict, "bounded-cache", "{paths:?}: {cache:#?}");
    }
    drop(running);
}

/// A short process that ends becomes part of the sums of its program. Until the list of the epoch
/// is written again it has a process more, and that is not missing.
#[test]
fn epoch_is_complete_while_short_processes_end() {
    let daemon = Daemon::start(&[]);
    let long = daemon.spawn(&target::c("full_cache"), &["100", "20"], None);
    let mut short = daemon.spawn(&target::c("leaks_slowly"), &["400", "5"], None);
    until("both are served", || daemon.list("full_cache").len() == 1 && live(&daemon, "leaks_slowly") > 0);
    daemon.query(&["flush"]);
    let of_short = || daemon.epochs(&["--program", "leaks_slowly"]);
    assert!(!of_short()[0].ends_with("all.leaks_slowly"), "{:?}", of_short());
    short.0.wait().expect("it ends");
    until("it is over", || daemon.list("leaks_slowly").is_empty());
    for _ in 0..10 {
        let report = daemon.heaptape(&["report", "--strict"], &daemon.epochs(&[]));
        assert_eq!(report.code(), 0, "{report}");
        std::thread::sleep(Duration::from_millis(100));
    }
    daemon.query(&["flush"]);
    assert!(of_short()[0].ends_with("all.leaks_slowly"), "{:?}", of_short());
    drop(long);
}

/// Of a flight whose process ends well after a minute the last segment is kept: what it held, and
/// how it ended.
#[test]
fn end_of_a_long_flight_is_kept() {
    if !heaptape_tests::is_full() {
        return;
    }
    let daemon = Daemon::start(&["--mode", "flight", "--flight-time", "20s"]);
    let mut running = daemon.spawn(&target::c("leaks_slowly"), &["7000", "9"], None);
    running.0.wait().expect("it ends");
    let screen = why(&daemon, "leaks_slowly");
    let process = &screen["processes"][0];
    assert_eq!((&process["exit"]["code"], process["live_blocks"].as_u64()), (&0.into(), Some(7000)), "{screen:#}");
    assert_eq!(daemon.epochs(&["--program", "leaks_slowly"]).len(), 1, "the last segment");
    let lived = process["ended_unix_ns"].as_u64().zip(process["started_unix_ns"].as_u64());
    assert!(lived.is_some_and(|(ended, started)| ended - started > 60_000_000_000), "{screen:#}");
    assert!(daemon.ctl(&["metrics"]).text().contains("heaptape_flights_kept_total 0"));
}

//! `heaptape rss` of services: the daemon keeps no events of them in its default mode, so the
//! recorder itself divides the memory at each snapshot of the pages.

use super::rss::{assert_adds_up, part};
use heaptape_tests::daemon::{Daemon, Running};
use heaptape_tests::wait::until;
use heaptape_tests::{target, test_env};
use serde_json::Value;
use std::fs::File;
use std::path::Path;

const MIB: u64 = 1 << 20;

/// Returns what a command answers with `--json` about the last epoch.
#[track_caller]
fn query(daemon: &Daemon, arguments: &[&str]) -> Value {
    let output = daemon.heaptape(&[arguments, &["--json"]].concat(), &daemon.epochs(&["--last", "1"])).success();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output}"))
}

/// Returns the report on the only process.
#[track_caller]
fn rss(daemon: &Daemon) -> Value {
    let answer = query(daemon, &["rss"]);
    let report = answer["processes"][0]["rss"].clone();
    assert!(!report.is_null(), "{answer:#}\n{}", daemon.log());
    report
}

/// Starts a program whose output goes to a file.
fn spawn(daemon: &Daemon, program: &Path, arguments: &[&str], output: &Path) -> Running {
    let mut command = daemon.command(program);
    command.args(arguments).stdout(File::create(output).expect("the output"));
    Running(command.spawn().expect("the program starts"))
}

/// Waits until a process has a snapshot after which its memory did not change, and which is
/// divided.
fn until_settled(daemon: &Daemon, name: &str, most_live: u64) {
    until("its memory is divided and settled", || {
        let all = daemon.list(name);
        let parts = &all[0]["resident_parts"];
        let sum: u64 = parts.as_object().into_iter().flatten().filter_map(|(_, bytes)| bytes.as_u64()).sum();
        let resident = all[0]["resident_bytes"].as_u64().unwrap_or(0);
        let live = parts["live"].as_u64().unwrap_or(u64::MAX);
        sum > 0 && sum.abs_diff(resident) * 100 <= resident && live < most_live
    });
}

/// Waits until a process has one thread, which sleeps.
fn until_it_sleeps(pid: u32) {
    until("it sleeps", || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.contains("\nState:\tS") && status.contains("\nThreads:\t1\n")
    });
}

fn number(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name}: {text}"));
    line.trim().parse().expect("a number")
}

#[track_caller]
fn assert_within_a_hundredth(found: u64, expected: u64, report: &Value) {
    assert!(found.abs_diff(expected) * 100 <= expected, "{found}, expected {expected}: {report:#}");
}

/// The program counts its own memory: the recorder's division has the same numbers.
#[test]
fn pinning_stack_of_a_service_is_what_the_program_counts() {
    let daemon = Daemon::start(&["--mode", "profile", "--snapshot", "1h"]);
    let folder = test_env::folder();
    let output = folder.path().join("output");
    let mut running = spawn(&daemon, &target::c("keeps_pages"), &["6"], &output);
    until("it is served", || daemon.list("keeps_pages").len() == 1);
    until_settled(&daemon, "keeps_pages", 20 * MIB);
    daemon.query(&["snapshot", "keeps_pages"]);
    let report = rss(&daemon);
    assert_eq!((&report["cause"], &report["allocator"]), (&"request".into(), &"glibc".into()), "{report:#}");
    assert_adds_up(&report);
    assert_eq!((part(&report, "undivided"), report.get("not_divided")), (0, None), "{report:#}");
    assert!(part(&report, "free_pages") > 10 * MIB, "{report:#}");
    assert!(running.0.wait().expect("its status").success());
    let text = std::fs::read_to_string(&output).expect("the output");
    assert_within_a_hundredth(report["resident_bytes"].as_u64().unwrap_or(0), number(&text, "resident"), &report);
    let rows = report["pinned"].as_array().expect("rows");
    assert_eq!(rows[0]["stack"][0]["function"], "make_session", "{report:#}");
    assert_within_a_hundredth(rows[0]["pinned_bytes"].as_u64().unwrap_or(0), number(&text, "pinned"), &report);
    assert_eq!(rows[0]["live_bytes"].as_u64(), Some(number(&text, "sessions")), "{report:#}");
    let untouched = &report["untouched"][0];
    assert_eq!(untouched["stack"][0]["function"], "reserve_buffer", "{report:#}");
    assert_eq!(untouched["untouched_bytes"].as_u64(), Some(number(&text, "untouched")), "{report:#}");
}

/// What the recorder divides has the parts that the analyzer finds from the events.
#[test]
fn division_of_the_recorder_is_that_of_the_events() {
    let divided = |mode: &str| {
        // No event may be lost, also on a busy machine.
        let daemon = Daemon::start(&["--mode", &format!("{mode},overflow=wait:30s"), "--snapshot", "1h"]);
        let folder = test_env::folder();
        let arguments = ["60", "threads"];
        let running = spawn(&daemon, &target::c("keeps_pages"), &arguments, &folder.path().join("output"));
        until("it is served", || daemon.list("keeps_pages").len() == 1);
        until("all requests are freed", || daemon.list("keeps_pages")[0]["frees"].as_u64() >= Some(240_000));
        daemon.query(&["snapshot", "keeps_pages"]);
        drop(running);
        rss(&daemon)
    };
    let [profile, trace] = ["profile", "trace"].map(divided);
    for report in [&profile, &trace] {
        assert_adds_up(report);
    }
    for name in ["live", "slack", "held_free", "free_pages"] {
        let (found, expected) = (part(&profile, name), part(&trace, name));
        assert!(found.abs_diff(expected) <= expected / 100 + 16384, "{name}: {profile:#}{trace:#}");
    }
    let kinds = |report: &Value| -> Vec<String> {
        let heaps = report["heaps"].as_array().into_iter().flatten();
        let mut kinds: Vec<String> = heaps.map(|heap| heap["kind"].to_string()).collect();
        kinds.sort();
        kinds
    };
    assert_eq!(kinds(&profile), kinds(&trace), "{profile:#}{trace:#}");
}

/// A service that is killed has its last division in `rss`, in `why` and in the timeline.
#[test]
fn killed_service_is_divided_at_its_last_snapshot() {
    let daemon = Daemon::start(&["--mode", "profile"]);
    let code = "
import ctypes, time
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
blocks = [libc.malloc(1000) for _ in range(40000)]
for block in blocks:
    ctypes.memset(block, 1, 1000)
for index, block in enumerate(blocks):
    if index % 8:
        libc.free(block)
time.sleep(600)
";
    let python = test_env::find("python3").expect("python3");
    let mut command = daemon.command(&python);
    let mut running = Running(command.args(["-c", code]).spawn().expect("it starts"));
    let pid = running.0.id();
    let of_it = || {
        let all = daemon.query(&["list"]);
        all.as_array().into_iter().flatten().find(|one| one["pid"].as_u64() == Some(pid.into())).cloned()
    };
    until("its snapshot has the freed blocks", || {
        of_it().is_some_and(|one| one["resident_parts"]["held_free"].as_u64().unwrap_or(0) > 10 * MIB)
    });
    let metrics = daemon.ctl(&["metrics"]).success().text();
    let line =
        metrics.lines().find(|line| line.contains("resident_part_bytes{") && line.contains("part=\"held_free\""));
    let value = line.and_then(|line| line.rsplit(' ').next()).and_then(|value| value.parse::<u64>().ok());
    assert!(value.is_some_and(|bytes| bytes > 10 * MIB), "{metrics}");
    let resident = || -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
    };
    let resident = resident();
    running.0.kill().expect("it is killed");
    running.0.wait().expect("its status");
    until("it is over", || of_it().is_none());
    daemon.query(&["flush"]);
    let report = rss(&daemon);
    assert_adds_up(&report);
    assert_within_a_hundredth(report["sum_bytes"].as_u64().unwrap_or(0), resident, &report);
    assert!(part(&report, "live") > 4 * MIB && part(&report, "held_free") > 10 * MIB, "{report:#}");
    assert_eq!(part(&report, "undivided"), 0, "{report:#}");
    assert!(report["ended_later_ns"].as_u64().is_some(), "{report:#}");
    let epochs = daemon.epochs(&["--last", "1"]);
    let text = daemon.heaptape(&["rss"], &epochs).success().text();
    assert!(text.contains("free, on pages that live blocks are on") && text.contains("pinned"), "{text}");
    let why = daemon.heaptape(&["why", &pid.to_string(), "--state"], &[daemon.state()]).success().text();
    assert!(why.contains("resident at its last snapshot: ") && why.contains("free beside live blocks"), "{why}");
    let timeline = query(&daemon, &["timeline", "--rss"]);
    let residents = timeline["processes"][0]["residents"].as_array().expect("snapshots");
    assert!(residents.iter().any(|one| !one["parts"].as_array().expect("parts").is_empty()), "{timeline:#}");
}

/// Of sampled blocks it is stated that they are, and how much is live.
#[test]
fn sampled_service_states_why_it_is_not_divided() {
    let daemon = Daemon::start(&["--mode", "profile:64KiB", "--snapshot", "1h"]);
    let folder = test_env::folder();
    let running = spawn(&daemon, &target::c("keeps_pages"), &["60"], &folder.path().join("output"));
    until("it is served", || daemon.list("keeps_pages").len() == 1);
    daemon.query(&["snapshot", "keeps_pages"]);
    let report = rss(&daemon);
    assert_adds_up(&report);
    assert!(part(&report, "undivided") > 0 && part(&report, "live") == 0, "{report:#}");
    let why = report["not_divided"].as_str().unwrap_or_default();
    assert!(why.contains("blocks are sampled") && why.contains("MiB are live"), "{report:#}");
    assert_eq!(daemon.list("keeps_pages")[0].get("resident_parts"), None);
    drop(running);
}

/// The blocks that a forked child inherited keep its pages.
#[test]
fn forked_child_has_the_blocks_of_its_parent() {
    let daemon = Daemon::start(&["--mode", "profile", "--snapshot", "1h"]);
    let code = "
import ctypes, os, time
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
block = libc.malloc(30 << 20)
ctypes.memset(block, 1, 30 << 20)
if os.fork() == 0:
    own = libc.malloc(5 << 20)
    ctypes.memset(own, 1, 5 << 20)
time.sleep(600)
";
    let python = test_env::find("python3").expect("python3");
    let mut command = daemon.command(&python);
    let running = Running(command.args(["-c", code]).spawn().expect("it starts"));
    let all = || daemon.query(&["list"]).as_array().cloned().unwrap_or_default();
    let live = |one: &Value| one["resident_parts"]["live"].as_u64().unwrap_or(0);
    until("both are divided", || all().len() == 2 && all().iter().all(|one| live(one) > 30 * MIB));
    let child = all().into_iter().find(|one| one["pid"].as_u64() != Some(running.0.id().into())).expect("the child");
    until("the child has its own block", || all().iter().any(|one| live(one) > 35 * MIB && one["pid"] == child["pid"]));
    let child = child["pid"].to_string();
    daemon.query(&["snapshot"]);
    let answer = query(&daemon, &["rss", "--process", &child]);
    let report = &answer["processes"][0]["rss"];
    assert_adds_up(report);
    assert!(part(report, "live") > 35 * MIB && part(report, "undivided") == 0, "{report:#}");
    assert!(report["inherited_bytes"].as_u64() >= Some(30 * MIB), "{report:#}");
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(child.parse().expect("a pid")),
        nix::sys::signal::Signal::SIGKILL,
    )
    .expect("the child is there");
    drop(running);
}

/// Blocks from before an attach look like other memory, which the report states.
#[test]
fn report_states_that_blocks_from_before_an_attach_are_not_known() {
    let program = target::c("keeps_pages");
    let folder = test_env::folder();
    let mut command = std::process::Command::new(program);
    command.arg("60").env_remove("LD_PRELOAD").stdout(File::create(folder.path().join("output")).expect("the output"));
    let running = Running(command.spawn().expect("the program starts"));
    let pid = running.0.id();
    until_it_sleeps(pid);
    let daemon = Daemon::start(&["--mode", "profile", "--snapshot", "1h"]);
    daemon.query(&["attach", &pid.to_string()]);
    daemon.query(&["snapshot", "keeps_pages"]);
    let report = rss(&daemon);
    assert!(report["blocks_since_unix_ns"].as_u64() > Some(0), "{report:#}");
    assert_adds_up(&report);
    let text = daemon.heaptape(&["rss"], &daemon.epochs(&["--last", "1"])).success().text();
    assert!(
        text.contains("blocks from before ") && text.contains("they look like memory that never was a block"),
        "{text}"
    );
    let rows = || text.lines().filter(|line| line.contains("memory of the process that"));
    assert!(rows().all(|row| row.contains("was no block since ")) && rows().count() == 1, "{text}");
    drop(running);
}

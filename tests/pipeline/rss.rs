//! `heaptape rss`: the parts add up to what the kernel counts, and the blocks that keep pages are
//! those that a program with its own count of pages planted.

use heaptape_tests::daemon::Daemon;
use heaptape_tests::wait::until;
use heaptape_tests::{Program, Recording, target, test_env};
use serde_json::Value;

/// Returns the reports on all processes that have one.
#[track_caller]
pub(super) fn all_rss(recording: &Recording, arguments: &[&str]) -> Vec<Value> {
    let output = recording.heaptape(&[&["rss", "--json"], arguments].concat()).success();
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let processes = answer["processes"].as_array().expect("processes").iter();
    processes.map(|process| process["rss"].clone()).filter(|report| !report.is_null()).collect()
}

/// Returns the report on the process with the most resident memory.
#[track_caller]
pub(super) fn rss(recording: &Recording, arguments: &[&str]) -> Value {
    let reports = all_rss(recording, arguments).into_iter();
    reports.max_by_key(|report| report["resident_bytes"].as_u64()).expect("a process")
}

pub(super) fn part(report: &Value, name: &str) -> u64 {
    let parts = report["parts"].as_array().expect("parts");
    let found = parts.iter().find(|part| part["name"] == name).expect("the part");
    found["bytes"].as_u64().expect("bytes")
}

/// Asserts that the parts add up to what the kernel counts, within a hundredth.
#[track_caller]
pub(super) fn assert_adds_up(report: &Value) {
    let number = |key: &str| report[key].as_u64().unwrap_or_else(|| panic!("{key}: {report:#}"));
    let (sum, resident) = (number("sum_bytes"), number("resident_bytes"));
    assert!(sum.abs_diff(resident) * 100 <= resident, "{sum} and {resident}: {report:#}");
    let parts = report["parts"].as_array().expect("parts");
    assert_eq!(parts.iter().filter_map(|part| part["bytes"].as_u64()).sum::<u64>(), sum, "{report:#}");
}

/// Returns a count that a program prints as `NAME BYTES`.
pub(super) fn oracle(recording: &Recording, name: &str) -> u64 {
    let text = recording.outcome.text();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name}: {text}"));
    line.trim().parse().expect("a number")
}

#[track_caller]
fn assert_within_a_hundredth(found: u64, expected: u64, report: &Value) {
    assert!(found.abs_diff(expected) * 100 <= expected, "{found}, the program counts {expected}: {report:#}");
}

/// Asserts that the sessions are the blocks that pin most, and that they pin what the program
/// counts. They have one stack for each function that starts a thread.
#[track_caller]
fn assert_sessions_pin(recording: &Recording, report: &Value) {
    let rows = report["pinned"].as_array().expect("rows");
    assert_eq!(rows[0]["stack"][0]["function"], "make_session", "{report:#}");
    let of_sessions = || rows.iter().filter(|row| row["stack"][0]["function"] == "make_session");
    let sum = |key: &str| of_sessions().filter_map(|row| row[key].as_u64()).sum::<u64>();
    assert_within_a_hundredth(sum("pinned_bytes"), oracle(recording, "pinned"), report);
    assert_eq!(sum("live_bytes"), oracle(recording, "sessions"), "{report:#}");
}

#[test]
fn pinned_and_untouched_memory_is_what_the_program_counts() {
    let recording = Program::new(target::c("keeps_pages")).arg("4").recorded().success();
    let report = rss(&recording, &[]);
    assert_adds_up(&report);
    assert_within_a_hundredth(report["resident_bytes"].as_u64().unwrap_or(0), oracle(&recording, "resident"), &report);
    assert_eq!(report["allocator"], "glibc");
    assert_sessions_pin(&recording, &report);
    // The requests that were between the sessions are freed. Of each chunk 8 bytes are no block's.
    let pinned = &report["pinned"][0];
    let freed = &pinned["freed_neighbors"][0];
    assert_eq!(freed["stack"][0]["function"], "make_request", "{pinned:#}");
    let [bytes, all] = [&freed["bytes"], &pinned["pinned_bytes"]].map(|bytes| bytes.as_u64().expect("bytes"));
    assert!(bytes <= all && bytes * 100 >= all * 95, "{pinned:#}");
    assert!(freed["mean_lifetime_ns"].as_u64() < pinned["youngest_age_ns"].as_u64(), "{pinned:#}");
    let first = &report["untouched"][0];
    assert_eq!(first["stack"][0]["function"], "reserve_buffer", "{report:#}");
    assert_eq!(first["untouched_bytes"].as_u64(), Some(oracle(&recording, "untouched")), "{report:#}");
    let text = recording.heaptape(&["rss"]).success().text();
    assert!(text.contains("make_session") && text.contains("VmRSS"), "{text}");
    assert!(text.contains("a pool would return") && text.contains("make_request"), "{text}");
    // At the peak the requests were live.
    let peak = rss(&recording, &["--at", "peak"]);
    assert!(peak["resident_bytes"].as_u64() >= report["resident_bytes"].as_u64(), "{peak:#}");
    assert_adds_up(&peak);
}

#[test]
fn pages_in_the_arenas_of_threads_are_found() {
    let recording = Program::new(target::c("keeps_pages")).arg("4").arg("threads").recorded().success();
    let report = rss(&recording, &[]);
    assert_adds_up(&report);
    assert_sessions_pin(&recording, &report);
    // The first thread has the main heap, each of the others an arena. A quarter of the sessions is
    // in each of them.
    let heaps = report["heaps"].as_array().expect("heaps");
    let of_kind = |kind: &'static str| heaps.iter().filter(move |heap| heap["kind"] == kind);
    assert_eq!((of_kind("main").count(), of_kind("arena").count()), (1, 3), "{heaps:#?}");
    for arena in of_kind("arena") {
        let sessions = oracle(&recording, "sessions") / 4;
        let live = arena["live_bytes"].as_u64().expect("bytes");
        assert!((sessions..sessions + 4096).contains(&live), "{sessions}: {arena:#}");
    }
    for name in ["live", "held_free", "free_pages"] {
        let key = if name == "free_pages" { "free_page_bytes".into() } else { format!("{name}_bytes") };
        let sum: u64 = heaps.iter().filter_map(|heap| heap[&key].as_u64()).sum();
        assert_eq!(sum, part(&report, name), "{name}: {heaps:#?}");
    }
    let text = recording.heaptape(&["rss"]).success().text();
    assert!(text.contains("by heap of glibc") && text.contains("  arena at 0x"), "{text}");
}

#[test]
fn sampled_blocks_divide_no_memory() {
    let recording = Program::new(target::c("keeps_pages")).arg("2").option("--sample=4KiB").recorded().success();
    let report = rss(&recording, &[]);
    assert_adds_up(&report);
    assert!(part(&report, "undivided") > 0 && part(&report, "live") == 0, "{report:#}");
}

#[test]
fn memory_outside_of_the_heap_is_named() {
    let code = "
import mmap, os, time
anonymous = mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
shared = mmap.mmap(-1, 16 << 20)
for memory, size in ((anonymous, 32 << 20), (shared, 16 << 20)):
    for page in range(0, size, 4096):
        memory[page] = 1
time.sleep(3)
os._exit(0)
";
    let recording = Program::new("python3").args(["-c", code]).recorded().success();
    let report = rss(&recording, &[]);
    assert_adds_up(&report);
    // The interpreter did not end in good order, so it has not waited for a last snapshot.
    assert!(report["ended_later_ns"].as_u64() > Some(0) && report["cause"] != "exit", "{report:#}");
    assert!(recording.heaptape(&["rss"]).success().text().contains("without waiting for a last snapshot"));
    assert!(part(&report, "never_block") >= 32 << 20, "{report:#}");
    assert_eq!(part(&report, "shared"), 16 << 20, "{report:#}");
    assert!(part(&report, "files") > 0 && part(&report, "heaptape") > 0 && part(&report, "stacks") > 0, "{report:#}");
}

/// What the program does right before its end is in the last snapshot.
#[test]
fn last_snapshot_is_that_of_the_end() {
    for threads in [0, 3] {
        let code = format!(
            "
import ctypes, threading, time
libc = ctypes.CDLL(None)
for _ in range({threads}):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
time.sleep(0.3)
libc.malloc.restype = ctypes.c_void_p
block = libc.malloc(30 << 20)
ctypes.memset(block, 1, 30 << 20)
libc.exit(0)
"
        );
        let recording = Program::new("python3").args(["-c", &code]).recorded().success();
        let report = rss(&recording, &[]);
        assert_eq!(report["cause"], "exit", "{report:#}");
        assert!(part(&report, "live") > 30 << 20 && report.get("ended_later_ns").is_none(), "{report:#}");
        assert_adds_up(&report);
    }
}

#[test]
fn processes_without_a_snapshot_are_one_line() {
    let line = "for i in 1 2 3; do env true; done; sleep 0.3";
    let recording = Program::new("sh").args(["-c", line]).recorded().success();
    let text = recording.heaptape(&["rss", "--all-processes"]).success().text();
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("without a snapshot")).collect();
    assert!(lines.len() == 1 && lines[0].contains(" true"), "{text}");
}

#[test]
fn snapshots_of_the_pages_are_taken_on_request() {
    for mode in ["trace", "profile"] {
        let daemon = Daemon::start(&["--mode", mode, "--snapshot", "1h"]);
        let running = daemon.spawn(&target::c("leaks_slowly"), &["100000", "2", "5000"], None);
        until("it is served", || daemon.list("leaks_slowly").len() == 1);
        daemon.query(&["snapshot", "leaks_slowly"]);
        let output = daemon.heaptape(&["rss", "--json"], &daemon.epochs(&["--last", "1"])).success();
        let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let report = &answer["processes"][0]["rss"];
        assert_eq!(report["cause"], "request", "{mode}: {report:#}");
        assert_adds_up(report);
        drop(running);
    }
}

/// The resident memory over the run, in the timeline, the report and the page. The program frees the
/// block once a snapshot has it, and ends once a later one does not.
#[test]
fn resident_memory_is_shown_over_the_run() {
    let code = "
import ctypes, os, sys, time
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
block = libc.malloc(40 << 20)
ctypes.memset(block, 1, 40 << 20)
def wait(name):
    while not os.path.exists(name):
        time.sleep(0.01)
wait(sys.argv[1])
libc.free(block)
wait(sys.argv[2])
";
    // The command may be a script that starts the interpreter.
    let most = |process: &Value| {
        let residents = process["residents"].as_array().into_iter().flatten().chain([&process["resident"]]);
        residents.filter_map(|one| one["resident_bytes"].as_u64().or(one["most_bytes"].as_u64())).max()
    };
    let note = test_env::folder();
    let [is_seen, is_freed] = ["seen", "freed"].map(|name| note.path().join(name));
    let program = Program::new("python3").args(["-c", code]).args([&is_seen, &is_freed]);
    let recording = program.recorded_while(|_, folder| {
        let snapshots = || -> Vec<u64> {
            let words = ["timeline", "--json", "--rss"].map(std::ffi::OsStr::new);
            let output = heaptape_tests::recording::heaptape(words.into_iter().chain([folder.as_os_str()]));
            let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            let processes = answer["processes"].as_array().into_iter().flatten();
            let residents = processes.max_by_key(|one| most(one)).and_then(|one| one["residents"].as_array().cloned());
            // A snapshot of the whole block, not one that was taken while it was filled.
            residents.iter().flatten().filter(|one| one["parts"].is_array()).map(|one| part(one, "live")).collect()
        };
        until("a snapshot has the block", || snapshots().last() > Some(&(40 << 20)));
        std::fs::write(&is_seen, "").expect("the word to go on");
        until("a snapshot has it no more", || snapshots().last().is_some_and(|last| *last < 20 << 20));
        std::fs::write(&is_freed, "").expect("the word to end");
    });
    let recording = recording.success();
    let json = |arguments: &[&str]| -> Value {
        let output = recording.heaptape(arguments).success();
        let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        answer["processes"]
            .as_array()
            .expect("processes")
            .iter()
            .max_by_key(|one| most(one))
            .expect("a process")
            .clone()
    };
    let timeline = json(&["timeline", "--json", "--rss", "--slices", "30"]);
    let rss_of = |row: &Value| row["resident_bytes"].as_u64();
    let slices = timeline["slices"].as_array().expect("slices");
    let most = slices.iter().filter_map(rss_of).max().expect("resident memory");
    assert!(most > 40 << 20 && rss_of(&slices[29]).is_some_and(|last| last < most - (30 << 20)), "{slices:#?}");
    let residents = timeline["residents"].as_array().expect("snapshots");
    let large = residents.iter().find(|one| rss_of(one) == Some(most)).expect("the largest");
    let sum: u64 = large["parts"].as_array().expect("parts").iter().filter_map(|part| part["bytes"].as_u64()).sum();
    assert!(sum.abs_diff(most) * 100 <= most && part(large, "live") > 40 << 20, "{large:#}");
    for one in residents {
        let at = format!("{}ns", one["at"]["time_ns"].as_u64().expect("a time") + 10_000);
        let output = recording.heaptape(&["rss", "--json", "--at", &at]).success();
        let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let mut processes = answer["processes"].as_array().expect("processes").iter();
        let whole = processes.find(|process| process["folder"] == timeline["folder"]).expect("the process");
        assert_eq!(whole["rss"]["parts"], one["parts"], "{one:#}");
    }
    let text = recording.heaptape(&["timeline", "--rss"]).success().text();
    assert!(text.contains("free pages") && text.contains("rss"), "{text}");
    let resident = json(&["report", "--json"])["resident"].clone();
    assert_eq!(resident["most_bytes"].as_u64(), Some(most), "{resident:#}");
    assert!(recording.heaptape(&["report"]).success().text().contains("resident   "));
    let page = recording.directory.path().join("page.html");
    recording.heaptape(&["export", "--to", "html", "-o", page.to_str().expect("a path")]).success();
    let page = std::fs::read_to_string(page).expect("the page");
    assert!(page.contains(&format!("[\"live\",{}]", part(large, "live"))), "{large:#}");
}

/// The snapshots of a frozen recording are divided as on the day when it was written.
#[test]
fn frozen_snapshot_is_divided_as_before() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/tape/v1/resident");
    let output = heaptape_tests::recording::heaptape(["rss", "--json", folder]).success();
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let report = &answer["processes"][0]["rss"];
    assert_eq!((report["cause"].as_str(), report["snapshots"].as_u64()), (Some("exit"), Some(2)), "{report:#}");
    for (name, bytes) in [
        ("live", 8_552),
        ("slack", 168),
        ("held_free", 15_856),
        ("free_pages", 24_576),
        ("never_block", 327_680),
        ("files", 1_703_936),
        ("stacks", 36_864),
        ("heaptape", 237_568),
    ] {
        assert_eq!(part(report, name), bytes, "{name}: {report:#}");
    }
    assert_eq!(report["resident_bytes"].as_u64(), report["sum_bytes"].as_u64(), "{report:#}");
}

/// A process that is not dumpable may be read with `CAP_SYS_PTRACE`, `CAP_PERFMON` or
/// `CAP_SYS_ADMIN` only, which the recorder lacks here.
#[test]
fn missing_right_to_read_the_pages_is_stated() {
    let code = "
import ctypes, time
PR_SET_DUMPABLE = 4
ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0)
memory = [bytes(1000) for _ in range(20000)]
time.sleep(1)
";
    let folder = test_env::folder();
    let recording = folder.path().join("recording");
    let command = test_env::command();
    let mut record = match heaptape_tests::is_root() {
        true => Program::new("setpriv").arg("--bounding-set=-sys_ptrace,-perfmon,-sys_admin").arg(command),
        false => Program::new(command),
    };
    record = record.args(["record", "-q", "-o"]).arg(&recording).args(["--", "python3", "-c", code]);
    record.plain().success();
    let path = recording.to_str().expect("a path");
    let output = heaptape_tests::recording::heaptape(["rss", "--json", path]).success();
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let reports = answer["processes"].as_array().expect("processes").iter().map(|process| &process["rss"]);
    let report = reports.max_by_key(|report| report["resident_bytes"].as_u64()).expect("a process");
    assert!(report["method"].is_null() && report["resident_bytes"].as_u64() > Some(5 << 20), "{report:#}");
    assert!(report["lacks"].as_str().is_some_and(|why| why.contains("may not read /proc/")), "{report:#}");
    let text = heaptape_tests::recording::heaptape(["rss", path]).success().text();
    assert!(text.contains("its pages are not known: the recorder may not read /proc/"), "{text}");
}

#[test]
fn recordings_without_a_snapshot_are_no_answer() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/tape/v1/trace");
    let output = heaptape_tests::recording::heaptape(["rss", folder]).exits(2);
    assert!(output.error().contains("no snapshot of the pages"), "{output}");
}

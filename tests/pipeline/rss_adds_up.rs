//! The parts of `heaptape rss` add up to the kernel's VmRSS for programs of many kinds, and memory
//! that does not count as resident is distinguished.

use super::rss::{all_rss, assert_adds_up, oracle, part, rss};
use heaptape_tests::daemon::{Daemon, Running};
use heaptape_tests::target::Target;
use heaptape_tests::wait::until;
use heaptape_tests::{Program, Recording, run, target, test_env};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

const MIB: u64 = 1 << 20;

/// Returns the report on the largest process at its end, and asserts that it adds up. A process
/// that waits at its end for the snapshot does not change its memory meanwhile.
#[track_caller]
fn at_the_end(recording: &Recording) -> Value {
    let report = rss(recording, &[]);
    assert_eq!(report["cause"], "exit", "{report:#}");
    assert_adds_up(&report);
    report
}

fn kinds_of_memory(kind: &str) -> (Recording, Value) {
    let recording = Program::new(target::c("kinds_of_memory")).arg(kind).recorded().success();
    let report = at_the_end(&recording);
    (recording, report)
}

/// Half of the keys are deleted, so the other half pins the pages of all.
#[test]
fn redis_that_was_filled_and_half_deleted() {
    if test_env::find("redis-server").is_none() {
        eprintln!("skipped: redis-server is not installed, run scripts/install-tools");
        return;
    }
    let directory = test_env::folder();
    let socket = directory.path().join("s");
    let client = |arguments: &[&str]| {
        let mut command = Command::new("redis-cli");
        command.arg("-s").arg(&socket).args(arguments);
        run::finish(command, b"")
    };
    let daemon = Daemon::start(&["--mode", "trace,overflow=wait:30s", "--snapshot", "1h"]);
    let mut server = daemon.command(&test_env::find("redis-server").expect("redis"));
    server.args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"]).arg(&socket);
    // A server that is left would be adopted by the daemons of other tests.
    let mut server = Running(server.arg("--dir").arg(directory.path()).spawn().expect("redis starts"));
    until("it serves", || client(&["ping"]).text().contains("PONG"));
    let steps = [
        ("for i = 1, 60000 do redis.call('set', 'key' .. i, string.rep('x', 300)) end", 18 * MIB, 0),
        // Each deleted value leaves some 300 free bytes, most of them beside a value that is live.
        ("for i = 1, 60000, 2 do redis.call('del', 'key' .. i) end", 9 * MIB, 6 * MIB),
    ];
    for (script, live, held) in steps {
        client(&["eval", script, "0"]).success();
        daemon.query(&["snapshot", "redis-server"]);
        let output = daemon.heaptape(&["rss", "--json"], &daemon.epochs(&["--program", "redis-server"])).success();
        let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let report = &answer["processes"][0]["rss"];
        assert_adds_up(report);
        assert_eq!(report["allocator"], "jemalloc", "{report:#}");
        let verdict = || daemon.heaptape(&["report"], &daemon.epochs(&[])).text();
        let is_told = part(report, "live") > live && part(report, "held_free") >= held;
        assert!(is_told, "{report:#}\n{}", verdict());
    }
    client(&["shutdown", "nosave"]);
    assert!(server.0.wait().expect("its status").success());
}

/// A preloaded allocator is called, and not the one that the program was linked with.
#[test]
fn allocator_is_the_one_that_is_called() {
    let library = |name: &str| Path::new(target::LIBRARIES).join(name);
    let (linked, preloaded) = (library("libjemalloc.so.2"), library("libtcmalloc_minimal.so.4"));
    if !linked.exists() || !preloaded.exists() {
        eprintln!("skipped: libjemalloc2 or libtcmalloc-minimal4 is not installed, run scripts/install-tools");
        return;
    }
    let program = Target::program("pins_pages.c").with(&linked).named("pins-pages-linked").build();
    let program = Program::new(program).args(["4", "300"]);
    for (program, name) in [(program.clone(), "jemalloc"), (program.env("LD_PRELOAD", &preloaded), "tcmalloc")] {
        assert_eq!(rss(&program.recorded().success(), &[])["allocator"], name);
    }
}

#[test]
fn python_after_a_large_list_was_freed() {
    let code = "
import ctypes, time
time.sleep(0.3)
values = [str(number) * 9 for number in range(300000)]
kept = values[::500]
del values
ctypes.CDLL(None).exit(0)
";
    for allocator in ["malloc", "pymalloc"] {
        let program = Program::new("python3").args(["-c", code]).env("PYTHONMALLOC", allocator);
        let report = at_the_end(&program.recorded().success());
        // The interpreter's own allocator takes mappings, which are no blocks.
        let name = if allocator == "malloc" { "held_free" } else { "never_block" };
        assert!(part(&report, name) > 2 * MIB, "{allocator}: {report:#}");
        if allocator == "pymalloc" {
            // These mappings have the call sites of the interpreter.
            let rows = report["mapped"].as_array().unwrap_or_else(|| panic!("{report:#}"));
            let has_stack = |row: &&Value| row["stack"].as_array().is_some_and(|stack| !stack.is_empty());
            let bytes: u64 = rows.iter().filter(has_stack).filter_map(|row| row["bytes"].as_u64()).sum();
            assert!(bytes > 2 * MIB, "{report:#}");
        }
    }
}

#[test]
fn cpp_with_64_threads_and_arenas() {
    let program = Target::program("many_arenas.cpp").flag("-pthread").build();
    let recording = Program::new(program).arg("64").recorded().success();
    let report = at_the_end(&recording);
    assert!(part(&report, "held_free") + part(&report, "free_pages") > 20 * MIB, "{report:#}");
}

/// Where the kernel has no huge pages for programs, the program counts none, and neither does the
/// report.
#[test]
fn huge_pages_are_counted_as_such() {
    let (recording, report) = kinds_of_memory("huge");
    let number = |key: &str| report[key].as_u64().expect("bytes");
    assert_eq!(number("huge_page_bytes"), oracle(&recording, "huge"), "{report:#}");
    assert!(part(&report, "live") >= 24 * MIB, "{report:#}");
    assert!(number("zero_page_bytes") >= oracle(&recording, "zero"), "{report:#}");
}

#[test]
fn mapped_files_and_shared_memory_are_counted_as_such() {
    let (recording, report) = kinds_of_memory("files");
    assert!(part(&report, "files") >= oracle(&recording, "files"), "{report:#}");
    assert_eq!(part(&report, "shared"), oracle(&recording, "shared"), "{report:#}");
}

#[test]
fn memory_that_was_only_read_is_not_resident() {
    let (recording, report) = kinds_of_memory("zero");
    let zero = report["zero_page_bytes"].as_u64().expect("bytes");
    let expected = oracle(&recording, "zero");
    assert!(expected >= 13 * MIB && (expected..expected + MIB).contains(&zero), "{report:#}");
    assert!(recording.heaptape(&["rss"]).success().text().contains("were read and never written"));
}

/// glibc unmaps large blocks when they are freed, and the program's own mapping gets their
/// addresses.
#[test]
fn mapping_at_the_address_of_a_freed_block_is_no_free_page() {
    let (_, report) = kinds_of_memory("remapped");
    assert!(part(&report, "never_block") >= 40 * MIB && part(&report, "free_pages") < MIB, "{report:#}");
    let mapped = &report["mapped"][0];
    assert!(mapped["bytes"].as_u64() >= Some(39 * MIB), "{report:#}");
    assert_eq!(mapped["stack"][0]["function"], "map", "{report:#}");
}

/// A file to which the kernel swaps, until the value is dropped.
struct Swap(std::path::PathBuf);

impl Swap {
    /// Adds a device of 64 MiB, if there is none and the caller demands it by
    /// `HEAPTAPE_TEST_SWAP=1`: that concerns the whole machine.
    fn add(folder: &Path) -> Option<Swap> {
        let devices = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
        if devices.lines().count() > 1 {
            return None;
        }
        if std::env::var_os("HEAPTAPE_TEST_SWAP").is_none() {
            eprintln!(
                "there is no swap device, and nothing is swapped out: HEAPTAPE_TEST_SWAP=1 adds one for the test"
            );
            return None;
        }
        let file = folder.join("swap");
        std::fs::write(&file, vec![0; 64 << 20]).expect("a file");
        std::os::unix::fs::chown(&file, Some(0), Some(0)).expect("only root can add a swap device");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&file, mode).expect("a file of root's");
        for command in ["mkswap", "swapon"] {
            let mut command = Command::new(command);
            command.arg(&file);
            run::finish(command, b"").success();
        }
        Some(Swap(file))
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        let _ = Command::new("swapoff").arg(&self.0).status();
    }
}

/// Without a swap device the kernel swaps nothing out, and the report has none.
#[test]
fn memory_that_is_swapped_out_is_counted_as_such() {
    let folder = test_env::folder();
    let swap = Swap::add(folder.path());
    let (recording, report) = kinds_of_memory("swapped");
    let (swapped, expected) = (report["swapped_bytes"].as_u64().expect("bytes"), oracle(&recording, "swapped"));
    assert!(swap.is_none() || expected > MIB, "{report:#}");
    assert!((expected..expected + 4 * MIB).contains(&swapped), "{expected}: {report:#}");
}

/// The pages that a fork left in both processes are resident in both.
#[test]
fn processes_that_share_pages_after_a_fork() {
    let (recording, _) = kinds_of_memory("fork");
    let reports = all_rss(&recording, &["--all-processes"]);
    assert_eq!(reports.len(), 2, "{reports:#?}");
    for report in &reports {
        assert_adds_up(report);
        assert!(report["resident_bytes"].as_u64() > Some(20 * MIB), "{report:#}");
    }
    // The parent has all blocks. The child has freed every second one.
    let is_child = |report: &&Value| report["inherited_blocks"].as_u64() > Some(0);
    let (child, parent): (Vec<&Value>, Vec<&Value>) = reports.iter().partition(is_child);
    assert!((24_000_000..25 * MIB).contains(&part(parent[0], "live")), "{parent:#?}");
    let child = child[0];
    let (live, held) = (part(child, "live"), part(child, "held_free") + part(child, "free_pages"));
    assert!((12_000_000..13 * MIB).contains(&live) && (11 * MIB..13 * MIB).contains(&held), "{child:#}");
    assert!((2000..2100).contains(&child["inherited_blocks"].as_u64().expect("blocks")), "{child:#}");
    let pinned = &child["pinned"][0];
    assert_eq!(pinned["stack"][0]["function"], "forks", "{child:#}");
    assert!(pinned["inherited_from"].as_str().is_some_and(|folder| folder.ends_with(".kinds_of_memory")), "{child:#}");
    let text = recording.heaptape(&["rss", "--all-processes"]).success().text();
    assert!(text.contains("were allocated before the fork") && text.contains("(parent "), "{text}");
    // The timeline has the same parts.
    let output = recording.heaptape(&["timeline", "--json", "--rss", "--all-processes"]).success();
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let mut residents = answer["processes"].as_array().expect("processes").iter().map(|process| &process["residents"]);
    let has_it = |all: &Value| all.as_array().is_some_and(|all| all.iter().any(|one| one["parts"] == child["parts"]));
    assert!(residents.any(has_it), "{answer:#}");
}

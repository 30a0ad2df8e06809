//! Memory and address space: how much the library needs, and limits that are set while it runs.

use heaptape_tests::cgroup::Cgroup;
use heaptape_tests::recording::heaptape;
use heaptape_tests::wait::until;
use heaptape_tests::{Program, Recording, run, same, target, test_env, torture};
use nix::sys::signal::{Signal, kill};
use std::ffi::OsStr;

fn memory(arguments: &[&str]) -> Program {
    Program::new(target::c("memory")).args(arguments)
}

/// Runs a program bare and recorded, which must not differ, and nothing may be lost.
#[track_caller]
fn alike(program: &Program) -> Recording {
    let recording = program.undisturbed().success();
    recording.complete()
}

/// Returns the memory that the program measured itself, bare and recorded, in KiB.
#[track_caller]
fn figures(arguments: &[&str]) -> (u64, u64, Recording) {
    let folder = test_env::folder();
    let file = folder.path().join("figure");
    let program = memory(arguments).env("MEMORY_FILE", &file);
    let figure = || std::fs::read_to_string(&file).expect("a figure").parse().expect("a number");
    let plain = program.plain().success();
    let own: u64 = figure();
    let recording = program.recorded();
    same(&plain, &recording.outcome);
    (own, figure(), recording.complete())
}

#[test]
fn one_thread_needs_little_address_space() {
    let (bare, recorded, _) = figures(&["size"]);
    let more = recorded.saturating_sub(bare);
    assert!(more <= 4 << 10, "{bare} KiB bare, {recorded} KiB recorded");
    torture::passed(24, "KiB of additional address space for a program with one thread", more);
}

/// Limits that the program sets for itself once it runs leave it the memory that it has without the
/// library.
#[test]
fn program_that_limits_its_address_space_is_unharmed() {
    for mib in ["4000", "192"] {
        alike(&memory(&["limits", mib]));
    }
    alike(&Program::new("bash").args(["-c", "ulimit -v 1000000; x=$(printf %1000000s); echo ${#x}; ls / | wc -l"]));
    let python = "import resource\n\
        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))\n\
        print(len(bytearray(1 << 30)), len([bytes(100) for _ in range(100000)]))";
    alike(&Program::new("python3").args(["-c", python]));
    torture::passed(24, "programs that limited their address space while they were recorded", 4);
}

/// A program that limits itself to little more than it uses keeps what it allowed itself: stacks that
/// the library has no memory for are counted as missing.
#[test]
fn program_near_its_own_limit_keeps_what_it_allows_itself() {
    for (kib, is_short) in [("400", true), ("2000", true), ("200000", false)] {
        let program = memory(&["near", kib]);
        let plain = program.plain().success();
        assert_eq!(plain.text(), "7\n", "{kib}");
        let folder = test_env::folder();
        let calls = folder.path().join("calls");
        let traced = Program::new("strace").args(["-f", "-c", "-U", "calls,name", "-o"]).arg(&calls);
        let recording = traced.arg(target::c("memory")).args(["near", kib]).recorded();
        same(&plain, &recording.outcome);
        let verdict = recording.heaptape(&["verify"]);
        assert_eq!(verdict.text().contains("had no room in the stack table"), is_short, "{kib}: {verdict}");
        assert_eq!(!recording.report().only("memory").complete, is_short, "{kib}: {verdict}");
        // What was refused is not asked for again by each of 120,000 events.
        let text = std::fs::read_to_string(&calls).expect("strace's output");
        let total: u64 =
            text.lines().last().and_then(|line| line.split_whitespace().next()?.parse().ok()).expect("a sum");
        assert!(total < 120_000 / 8, "{text}");
    }
}

/// Where the stack table has no room, new threads are recorded nevertheless: a thread's own memory is
/// a smaller request.
#[test]
fn threads_are_recorded_where_stacks_have_no_room() {
    for mib in ["20", "40"] {
        let recording = memory(&["crowded", mib]).undisturbed().success();
        assert_eq!(recording.outcome.text(), "20 threads\n", "{mib}");
        let verdict = recording.heaptape(&["verify"]);
        assert!(verdict.text().contains("had no room in the stack table"), "{mib}: {verdict}");
        let program = recording.report().only("memory").clone();
        assert_eq!(program.lost_events, 0, "{mib}: {verdict}");
    }
}

#[test]
fn external_limit_on_address_space_harms_no_program() {
    let folder = test_env::folder();
    let file = folder.path().join("wait");
    let limited = |pid: u32| {
        let line = format!("--as={0}:{0}", 192 << 20);
        Program::new("prlimit").args([&line, "--pid", &pid.to_string()]).plain().success();
        std::fs::remove_file(&file).expect("the program goes on");
    };
    let recording = memory(&["limited"]).arg(&file).recorded_while(|command, _| {
        while !file.exists() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        limited(run::started(command.id()).expect("the program").as_raw() as u32);
    });
    let recording = recording.complete();
    assert_eq!((recording.outcome.code(), recording.outcome.text().as_str()), (0, "100 blocks\n"));
}

/// An ordinary user with a limit locks all memory, and that to come.
#[test]
fn program_that_locks_its_memory_is_unharmed() {
    let most = Program::shell("ulimit -H -l").plain().success().text();
    let most: u64 = most.trim().parse().unwrap_or(u64::MAX);
    for kib in [65_536, 8_192].map(|kib: u64| kib.min(most).to_string()) {
        let kib = kib.as_str();
        let recording = alike(&memory(&["locks", kib]));
        let text = recording.outcome.text();
        assert!(text.starts_with("now: 0 \n"), "{text}");
        assert!(recording.report().only("memory").allocs >= 1_000 + 4 * 1_000);
    }
    torture::passed(24, "limits on locked memory under which a program locked all its memory", 2);
}

/// 200 threads that fill their rings cost little resident memory.
#[test]
fn two_hundred_threads_need_little_resident_memory() {
    let (bare, recorded, recording) = figures(&["threads", "200", "20000"]);
    let more = recorded.saturating_sub(bare);
    assert!(more <= 24 << 10, "{bare} KiB bare, {recorded} KiB recorded");
    let report = recording.report();
    assert!(report.only("memory").allocs >= 200 * 20_000);
    torture::passed(24, "KiB of additional resident memory for 200 threads with 40,000 events each", more);
}

/// Threads that come and go faster than the recorder reads their rings share a few of them.
#[test]
fn memory_of_threads_that_have_ended_is_used_again() {
    let [few, many] = [2_000, 8_000].map(|threads: u64| {
        let (_, recorded, recording) = figures(&["churn", &threads.to_string()]);
        assert!(recording.report().only("memory").allocs >= threads);
        recorded
    });
    assert!(many <= few + (8 << 10) && many <= 48 << 10, "{few} KiB, {many} KiB with four times the threads");
    // Those that find no ring, as the recorder is stopped, are counted.
    let folder = test_env::folder();
    let file = folder.path().join("figure");
    let recording = memory(&["churn", "8000"]).env("MEMORY_FILE", &file).recorded_while(|command, folder| {
        let survivor = run::survivor(command);
        until("the program is recorded", || run::has_events(folder));
        std::thread::sleep(std::time::Duration::from_millis(100));
        kill(survivor, Signal::SIGSTOP).expect("it is there");
        while !std::fs::read_to_string(&file).is_ok_and(|text| !text.is_empty()) {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        kill(survivor, Signal::SIGCONT).expect("it is there");
    });
    let recorded: u64 = std::fs::read_to_string(&file).expect("a figure").parse().expect("a number");
    assert!(recorded <= 48 << 10, "{recorded} KiB with a stopped recorder");
    let report = recording.report();
    let process = report.only("memory");
    process.assert_accounting();
    assert!(process.emitted_events >= 2 * 8_000, "{process:#?}");
    torture::passed(10, "threads one after the other in less than 48 MiB", 18_000);
}

/// A small program with many threads in a control group of 100 MB is recorded completely.
#[test]
fn two_hundred_threads_fit_a_small_control_group() {
    for threads in ["200", "60"] {
        let Some(group) = Cgroup::limited(100_000_000) else { return };
        alike(&group.holds(memory(&["threads", threads, "20000"])));
    }
    torture::passed(24, "programs with many threads in a control group of 100 MB", 2);
}

/// A group has enough memory for the program and its recorder, which reads the limit of its group.
#[test]
fn two_hundred_threads_are_recorded_beside_their_recorder_in_a_small_control_group() {
    let Some(group) = Cgroup::limited(100_000_000) else { return };
    let folder = test_env::folder();
    let recording = folder.path().join("r");
    let command = Program::new(test_env::command()).args(["record", "-q", "-o"]).arg(&recording);
    let program = command.arg("--").arg(target::c("memory")).args(["threads", "200", "20000"]);
    let outcome = group.holds(program).plain().success();
    assert_eq!(outcome.text(), "200 threads\n");
    heaptape([OsStr::new("verify"), recording.as_os_str()]).success();
}

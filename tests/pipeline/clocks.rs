//! Clock steps and stopped programs: the recording is complete and its times are sane.

use heaptape_tests::run::survivor;
use heaptape_tests::{Program, Recording, same, target, torture};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// Asserts that times increase and do not exceed the duration of the run.
fn times_are_sane(recording: &Recording) {
    let output = recording.heaptape(&["timeline", "--json"]);
    assert!(output.code() < 2, "{output}");
    let value: Value = serde_json::from_slice(&output.stdout).expect("a time line");
    for process in value["processes"].as_array().expect("processes") {
        let slices = process["slices"].as_array().expect("slices").iter();
        let times: Vec<u64> = slices.filter_map(|slice| slice["at"]["time_ns"].as_u64()).collect();
        assert!(times.is_sorted(), "{times:?}");
        let longest = recording.outcome.wall.as_nanos() as u64;
        assert!(times.iter().all(|time| *time <= longest), "{longest}: {times:?}");
    }
}

/// The wall clock, and then every clock that a library can step, moves back ten years and forward
/// twenty, for recorder and program.
#[test]
fn clock_steps_leave_times_sane() {
    let faketime = Path::new(target::LIBRARIES).join("faketime/libfaketimeMT.so.1");
    if !faketime.exists() {
        eprintln!("libfaketime is not installed: run scripts/install-tools");
        return;
    }
    let mut steps = 0;
    for (wall_alone, moments) in [("1", ["-10y", "+10y"]), ("0", ["-10y", "+10y"]), ("1", ["+10y", "-10y"])] {
        let directory = heaptape_tests::test_env::folder();
        let clock = directory.path().join("clock");
        std::fs::write(&clock, "+0").expect("the clock");
        let program = Program::new(target::c("leaks_slowly")).args(["700", "1"]);
        let plain = program.plain();
        let program = program.env("LD_PRELOAD", &faketime).env("FAKETIME_TIMESTAMP_FILE", &clock);
        let program = program.env("FAKETIME_NO_CACHE", "1").env("DONT_FAKE_MONOTONIC", wall_alone);
        let recording = program.recorded_while(|_, _| {
            for moment in moments {
                std::thread::sleep(Duration::from_millis(250));
                std::fs::write(&clock, moment).expect("the clock");
                steps += 1;
            }
        });
        same(&plain, &recording.outcome);
        let verdict = recording.heaptape(&["verify"]);
        assert!(verdict.code() < 2, "{verdict}");
        let report = recording.report();
        let process = report.only("leaks_slowly");
        process.assert_accounting();
        // libfaketime allocates inside the clock that the attach reads: those calls found no
        // session yet.
        assert!(process.lost_events < 100 && process.allocs >= 5_600, "{process:#?}");
        times_are_sane(&recording);
    }
    torture::passed(45, "clock steps by ten years, backward and forward", steps);
}

/// All processes are stopped for a while, as on a suspended machine.
#[test]
fn stopped_process_tree_is_recorded_completely() {
    let program = Program::new(target::c("leaks_slowly")).args(["700", "1"]);
    let recording = program.recorded_while(|command, _| {
        std::thread::sleep(Duration::from_millis(300));
        let children = format!("/proc/{0}/task/{0}/children", command.id());
        let children = std::fs::read_to_string(children).expect("its children");
        let all = children.split_whitespace().filter_map(|word| word.parse().ok()).map(Pid::from_raw);
        let all: Vec<Pid> = all.chain([survivor(command)]).collect();
        all.iter().for_each(|pid| kill(*pid, Signal::SIGSTOP).expect("it is there"));
        std::thread::sleep(Duration::from_secs(3));
        all.iter().for_each(|pid| kill(*pid, Signal::SIGCONT).expect("it is there"));
    });
    let recording = recording.success().complete();
    assert!(recording.report().only("leaks_slowly").allocs >= 5_600);
    times_are_sane(&recording);
    torture::passed(45, "stopped process trees with their recorder", 1);
}

/// A program with one thread takes a timestamp for each 16th event only where events are frequent.
/// Those that are further apart have their own times.
#[test]
fn rare_events_have_their_times() {
    let recording = Program::new(target::c("rare_events")).recorded().success().complete();
    let lives = lifetimes(&recording);
    assert_eq!(lives["interpolated"], 0, "all have a timestamp: {lives}");
    assert!(lives["shortest"].as_u64().is_some_and(|shortest| shortest >= 300_000_000), "it slept as long: {lives}");
    let answer = recording.heaptape(&["peak", "--json"]);
    let value: Value = serde_json::from_slice(&answer.stdout).expect("the peak");
    let at = value["processes"][0]["at"]["time_ns"].as_u64().expect("the time of the peak");
    // A recorder that is not scheduled for some time knows only that the block came later.
    assert!(at >= 200_000_000, "the peak is 0.3 s after the start: {at} ns");
    let answer = recording.heaptape(&["timeline", "--slices", "6", "--json"]);
    let value: Value = serde_json::from_slice(&answer.stdout).expect("the timeline");
    let slices = value["processes"][0]["slices"].as_array().expect("slices");
    let most = |index: usize| slices[index]["most_bytes"].as_u64();
    assert!(most(0).is_some_and(|bytes| bytes < 1 << 20), "the large block is not there yet: {slices:?}");
    assert!(most(3).is_some_and(|bytes| bytes >= 1 << 20), "and is there in the middle: {slices:?}");
}

/// Blocks that live for less than the time between two timestamps are not said to live for no time,
/// and interpolated times are in order and counted.
#[test]
fn frequent_events_have_interpolated_times() {
    let recording = Program::new(target::c("frequent_events")).recorded().success().complete();
    let lives = lifetimes(&recording);
    let (freed, interpolated) =
        (lives["died"].as_u64().expect("a number"), lives["interpolated"].as_u64().expect("one"));
    assert!(interpolated > freed / 4, "most of {freed} are so frequent: {lives}");
    assert!(lives["mean_error"].as_u64().is_some_and(|error| error > 0), "{lives}");
    let classes = lives["classes"].as_array().expect("classes");
    assert_eq!(classes[0]["died"], 0, "no block lives for less than the clock can tell: {lives}");
    let verified: Value = serde_json::from_slice(&recording.heaptape(&["verify", "--json"]).stdout).expect("JSON");
    let times = verified["recordings"][0]["processes"][0]["interpolated_times"].as_u64().expect("a number");
    assert!(times >= interpolated / 2, "each of these lives has such a time: {times} and {interpolated}");
    let text = recording.heaptape(&["lifetimes"]);
    let text = String::from_utf8_lossy(&text.stdout);
    assert!(text.contains("interpolated between timestamps") && !text.contains("shortest 0 ns"), "{text}");
}

fn lifetimes(recording: &Recording) -> Value {
    let answer = recording.heaptape(&["lifetimes", "--json"]);
    let value: Value = serde_json::from_slice(&answer.stdout).expect("the lifetimes");
    value["processes"][0].clone()
}

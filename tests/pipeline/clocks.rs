//! Clocks that step and programs that stand still: the recording is whole and its times are sane.

use heaptape_tests::run::survivor;
use heaptape_tests::{Program, Recording, same, target, torture};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";

/// Times go forward and none is longer than the run was.
fn times_are_sane(recording: &Recording) {
    let said = recording.heaptape(&["timeline", "--json"]);
    assert!(said.code() < 2, "{said}");
    let value: Value = serde_json::from_slice(&said.stdout).expect("a time line");
    for process in value["processes"].as_array().expect("processes") {
        let slices = process["slices"].as_array().expect("slices").iter();
        let times: Vec<u64> = slices.filter_map(|slice| slice["at"]["time_ns"].as_u64()).collect();
        assert!(times.is_sorted(), "{times:?}");
        let longest = recording.outcome.wall.as_nanos() as u64;
        assert!(times.iter().all(|time| *time <= longest), "{longest}: {times:?}");
    }
}

/// The wall clock, and then every clock that a library can step, goes back ten years and forward
/// twenty, under recorder and program.
#[test]
fn clocks_that_step() {
    if !Path::new(FAKETIME).exists() {
        eprintln!("libfaketime is not installed: run scripts/install-tools");
        return;
    }
    let mut steps = 0;
    for (wall_alone, moments) in [("1", ["-10y", "+10y"]), ("0", ["-10y", "+10y"]), ("1", ["+10y", "-10y"])] {
        let place = heaptape_tests::test_env::folder();
        let clock = place.path().join("clock");
        std::fs::write(&clock, "+0").expect("the clock");
        let program = Program::new(target::c("leaks_slowly")).args(["700", "1"]);
        let plain = program.plain();
        let program = program.env("LD_PRELOAD", FAKETIME).env("FAKETIME_TIMESTAMP_FILE", &clock);
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
        process.ledger();
        // libfaketime allocates inside the clock that the attach reads: those calls found no
        // session yet.
        assert!(process.lost_events < 100 && process.allocs >= 5_600, "{process:#?}");
        times_are_sane(&recording);
    }
    torture::passed(45, "steps of the clocks by ten years, back and forward", steps);
}

/// Everything stands still for a while, in the middle of its work, as a machine that is suspended.
#[test]
fn all_stand_still() {
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
    let recording = recording.success().whole();
    assert!(recording.report().only("leaks_slowly").allocs >= 5_600);
    times_are_sane(&recording);
    torture::passed(45, "a process tree that stood still with its recorder", 1);
}

//! Threads: figures and hashes of each thread's events against what the threads counted themselves.

use heaptape_tests::oracle::Depth;
use heaptape_tests::{Program, Recording, is_full, own, run, same, target, test_env, torture};
use nix::sys::signal::{Signal, kill};
use std::time::Duration;

/// Runs a target that counts itself, recorded, and compares thread by thread.
#[track_caller]
fn each_thread(name: &str, arguments: &[&str]) -> Recording {
    let folder = test_env::folder();
    let file = folder.path().join("own");
    let program = Program::new(target::c(name)).args(arguments).env("OWN_FILE", &file);
    let plain = program.plain().success();
    std::fs::remove_file(&file).expect("own figures");
    let recording = program.recorded();
    same(&plain, &recording.outcome);
    let recording = recording.whole();
    own::equal(&own::read(&file), &own::recorded(&recording));
    recording
}

#[test]
fn one_thread() {
    each_thread("pairs", &["300000", "1"]);
}

#[test]
fn eight_threads_free_what_others_took() {
    each_thread("threads", &["8", "20000"]);
    let program = Program::new(target::c("threads")).args(["8", "20000"]);
    let (recording, report, counts) = program.recorded_like_counted(Depth::Live);
    recording.whole();
    assert!(report.only("threads").live_blocks >= 80);
    assert!(counts[0].resizes >= 8 * 20_000 / 16);
}

/// Guards the stamp law: a block that is handed over and freed within a few nanoseconds is never
/// freed before it was taken.
#[test]
fn a_block_is_handed_over_and_freed_at_once() {
    let handovers = if is_full() { "10000000" } else { "300000" };
    each_thread("handover", &[handovers]);
}

#[test]
fn threads_come_and_go() {
    let threads = if is_full() { 100_000 } else { 2_000 };
    let recording = each_thread("thread_churn", &[&threads.to_string(), "50"]);
    assert!(recording.report().only("thread_churn").allocs >= threads * 10);
    torture::passed(10, "threads that came and went, each in the recording with its own figures", threads);
}

/// More threads come and go than there are slots while the recorder stands still: they wait for it,
/// and nothing is lost.
#[test]
fn threads_wait_for_slots() {
    let folder = test_env::folder();
    let file = folder.path().join("own");
    let program = Program::new(target::c("thread_churn")).args(["25000", "50"]).env("OWN_FILE", &file);
    let recording = program.recorded_while(|command, _| {
        let survivor = run::survivor(command);
        while !own::has_begun(&file) {
            std::thread::sleep(Duration::from_millis(1));
        }
        kill(survivor, Signal::SIGSTOP).expect("it is there");
        std::thread::sleep(Duration::from_millis(1_200));
        kill(survivor, Signal::SIGCONT).expect("it is there");
    });
    let recording = recording.success().whole();
    own::equal(&own::read(&file), &own::recorded(&recording));
    torture::passed(10, "threads that came and went while the recorder stood still for a second", 25_000);
}

#[test]
fn many_threads_at_once() {
    let threads = if is_full() { 10_000 } else { 1_000 };
    each_thread("many_threads", &[&threads.to_string()]);
    torture::passed(11, "threads alive at once", threads);
}

#[test]
fn events_of_eight_threads_by_checksum() {
    let pairs: u64 = if is_full() { 6_200_000 } else { 100_000 };
    let recording = each_thread("pairs", &[&pairs.to_string(), "8"]);
    torture::passed(46, "events of 8 threads with equal checksums", recording.report().only("pairs").events());
}

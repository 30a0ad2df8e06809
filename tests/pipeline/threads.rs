//! Threads: counts and hashes of the events of each thread equal those that the threads computed
//! themselves.

use heaptape_tests::oracle::Depth;
use heaptape_tests::target::Target;
use heaptape_tests::{Program, Recording, handed_round, is_full, own, run, target, test_env, torture};
use nix::sys::signal::{Signal, kill};
use std::process::{Child, Command};
use std::time::Duration;

/// Runs a target that counts itself, recorded, and compares thread by thread.
#[track_caller]
fn each_thread(name: &str, arguments: &[&str]) -> Recording {
    let folder = test_env::folder();
    let file = folder.path().join("own");
    let program = Program::new(target::c(name)).args(arguments).env("OWN_FILE", &file);
    let recording = program.recorded_counting(&file);
    let recording = recording.complete();
    own::equal(&own::read(&file), &own::recorded(&recording));
    recording
}

#[test]
fn events_of_one_thread_match_its_own_counts() {
    each_thread("pairs", &["300000", "1"]);
}

#[test]
fn events_of_threads_that_free_on_others_match_their_counts() {
    each_thread("threads", &["8", "20000"]);
    let program = Program::new(target::c("threads")).args(["8", "20000"]);
    let (recording, report, counts) = program.recorded_like_counted(Depth::Live);
    recording.complete();
    assert!(report.only("threads").live_blocks >= 80);
    assert!(counts[0].resizes >= 8 * 20_000 / 16);
}

/// An allocator may free the old block of a `realloc` before it returns, and another thread gets
/// its address. The recording shows the resize first. (musl does so for each block: see
/// `static_programs`. glibc does for blocks that go back to the arena.)
#[test]
fn moved_block_leaves_its_address_before_another_thread_gets_it() {
    let folder = test_env::folder();
    let file = folder.path().join("own");
    // A run has fewer calls than the recorder keeps for a resize whose thread has lost its
    // processor (`look_ahead::MAX_CALLS`): on a busy machine that may be most of the run.
    let program = Program::new(target::c("moves")).args(["4", "5000"]).env("OWN_FILE", &file);
    let program = program.env("MALLOC_ARENA_MAX", "1").env("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0");
    for _ in 0..if is_full() { 400 } else { 12 } {
        let _ = std::fs::remove_file(&file);
        let recording = program.recorded().success().complete();
        let (own, recorded) = (own::sum(&own::read(&file)), own::recorded(&recording));
        assert_eq!(own::sum(&recorded).resizes, own.resizes);
    }
}

/// Processes that use all the time of the processors that they get, until the value is dropped.
struct Busy(Vec<Child>);

impl Busy {
    fn new(count: usize) -> Busy {
        let start = |_| Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("a shell");
        Busy((0..count).map(start).collect())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// By default a program waits for space in its rings, however few processors the recorder gets.
#[test]
fn nothing_is_lost_beside_busy_processes() {
    let (rounds, pairs, counts): (u64, &str, &[u64]) =
        if is_full() { (20, "20000", &[1, 8, 20, 60, 200]) } else { (1, "3000", &[60, 200]) };
    let busy = Busy::new(8);
    for threads in counts {
        for round in 0..rounds {
            let program = Program::new(target::c("memory")).args(["threads", &threads.to_string(), pairs]);
            let recording = program.recorded();
            let report = recording.report();
            let process = report.only("memory");
            assert_eq!(process.lost_events, 0, "{threads} threads, recording {round}: {process:#?}");
            recording.complete();
        }
    }
    drop(busy);
    torture::passed(11, "recordings beside eight busy processes with no lost event", rounds * counts.len() as u64);
}

/// Guards the order of timestamps: a block that is passed to another thread and freed within a few
/// nanoseconds is never freed before its allocation.
#[test]
fn block_passed_to_another_thread_is_never_freed_before_its_allocation() {
    let handovers = if is_full() { "10000000" } else { "100000" };
    each_thread("handover", &[handovers]);
}

/// Guards the alternation of allocations and frees in the recorder: timestamps without a fence are
/// up to a load's latency too early, so that their order alone is wrong in 1 of 1,000 hand-overs.
#[test]
fn each_free_of_an_address_that_is_used_again_at_once_belongs_to_its_own_allocation() {
    let allocator = Target::library("handover_allocator.c").build();
    let program = Target::program("hands_round.c").with(&allocator).build();
    let rounds = if is_full() { 1_000_000 } else { 5_000 };
    let (mut events, mut exchanged) = (0, 0);
    let folder = test_env::folder();
    for (threads, addresses) in [(2, 1), (2, 4), (3, 2), (8, 8)] {
        let arguments = [threads, addresses, rounds].map(|number| number.to_string());
        let times = folder.path().join(format!("{threads}-{addresses}"));
        let recording = Program::new(&program).args(arguments).arg(&times).recorded().success().complete();
        let found = handed_round::check(&recording, threads, rounds, &times);
        assert_eq!(found.events, 2 * addresses * rounds);
        assert_eq!(recording.report().only("hands_round").unknown_frees, 0);
        events += found.events;
        exchanged += found.exchanged;
    }
    // A timestamp that is so much too early is rare.
    assert!(exchanged * 100_000 <= events, "{exchanged} of {events} events are in another order");
    torture::passed(10, "events of addresses that threads passed on, each with its own free", events);
}

/// Threads all of whose events are sampled out publish nothing, and their slots are used again all
/// the same: nobody waits for one.
#[test]
fn slots_of_threads_without_samples_are_used_again() {
    let program = Program::new(target::c("thread_churn")).args(["3000", "50"]).option("--sample=1GiB");
    let recording = program.recorded().success();
    recording.heaptape(&["verify"]).success();
    let report = recording.report();
    let process = report.only("thread_churn");
    assert_eq!(process.emitted_events, process.recorded_events + process.sampled_out_events, "{process:#?}");
    assert!(process.sampled_out_events >= 3000 * 20, "{process:#?}");
}

#[test]
fn thread_churn_matches_the_counts_of_each_thread() {
    let threads = if is_full() { 100_000 } else { 2_000 };
    let recording = each_thread("thread_churn", &[&threads.to_string(), "50"]);
    assert!(recording.report().only("thread_churn").allocs >= threads * 10);
    torture::passed(10, "threads that started and ended, recorded with their own counts", threads);
}

/// More threads start and end than there are slots while the recorder is stopped. They wait for it,
/// and nothing is lost.
#[test]
fn threads_wait_for_free_slots() {
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
    let recording = recording.success().complete();
    own::equal(&own::read(&file), &own::recorded(&recording));
    torture::passed(10, "threads that started and ended while the recorder was stopped for a second", 25_000);
}

#[test]
fn many_concurrent_threads_match_their_counts() {
    let threads = if is_full() { 10_000 } else { 1_000 };
    each_thread("many_threads", &[&threads.to_string()]);
    torture::passed(11, "concurrent threads", threads);
}

#[test]
fn events_of_eight_threads_match_their_checksums() {
    let pairs: u64 = if is_full() { 6_200_000 } else { 100_000 };
    let recording = each_thread("pairs", &[&pairs.to_string(), "8"]);
    torture::passed(46, "events of 8 threads with equal checksums", recording.report().only("pairs").events());
}

//! A library built with `--cfg heaptape_verify` compares each stack that it
//! captured with a full walk by the same rules, and each 101st with the libc's own `backtrace`; the
//! recording holds the counts.

use heaptape_tests::recording::heaptape;
use heaptape_tests::{Program, Recording, Target, is_full, target, test_env};
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// Builds the comparing library once, and returns its path.
fn library() -> &'static PathBuf {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let folder = test_env::kept().join("verify");
        let status = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--profile", "preload", "-p", "heaptape-preload", "--target-dir"])
            .arg(&folder)
            .current_dir(test_env::root())
            .env("RUSTFLAGS", "--cfg heaptape_verify")
            .status()
            .expect("cargo can be started");
        assert!(status.success(), "cargo build: {status}");
        folder.join("preload/libheaptape.so")
    })
}

/// Returns the number of compared and of different stacks, by a full walk and by `backtrace`.
fn counts(recording: &Recording) -> [u64; 4] {
    let mut sums = [0; 4];
    for tape in recording.files("events.tape") {
        let text = heaptape([OsStr::new("dump"), tape.as_os_str()]).success().text();
        for line in text.lines().filter(|line| line.contains("stacks compared with a full walk")) {
            let numbers = line.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse::<u64>().ok());
            let numbers: Vec<u64> = numbers.collect();
            let [.., walks, bad_walks, backtraces, bad_backtraces] = numbers[..] else { panic!("{line}") };
            for (sum, number) in sums.iter_mut().zip([walks, bad_walks, backtraces, bad_backtraces]) {
                *sum += number;
            }
        }
    }
    sums
}

/// Records `program` and asserts that at least `least` stacks were compared, and all are equal.
#[track_caller]
fn agrees(program: Program, least: u64) {
    let recording = program.env("HEAPTAPE_LIBRARY", library()).recorded();
    assert_eq!(recording.outcome.code(), 0, "{}", recording.outcome.error());
    let [walks, bad_walks, backtraces, bad_backtraces] = counts(&recording);
    assert!(walks >= least, "{walks} stacks were compared, {least} are wanted");
    assert!(backtraces >= least / 150, "{backtraces} of {walks} were compared with backtrace");
    assert_eq!((bad_walks, bad_backtraces), (0, 0), "of {walks} walks and {backtraces} backtraces");
}

/// Unusual kinds of stacks, with few captures.
#[test]
fn unwinder_matches_full_walks_in_small_programs() {
    agrees(Program::new(target::c("known_stacks")), 300);
    agrees(Program::new(Target::program("exceptions.cpp").build()), 50_000);
    agrees(Program::new(target::bound_at_start("alternate_stack")), 1);
    agrees(Program::new(target::c("coroutines")), 1);
}

fn bench(file: &str) -> PathBuf {
    test_env::root().join("tests/bench").join(file)
}

#[test]
fn unwinder_matches_full_walks_in_the_benchmark() {
    let micro = Target::program("../bench/micro.c").flag("-pthread").build();
    let pairs = if is_full() { 2_000_000 } else { 100_000 };
    for (depth, threads) in [("8", "1"), ("40", "1"), ("24", "2")] {
        // One thread at a time compares. Captures of others during that are skipped.
        let least = if threads == "1" { pairs / 2 } else { pairs / 10 };
        agrees(Program::new(&micro).arg(pairs.to_string()).args([depth, threads]), least);
    }
}

#[test]
fn unwinder_matches_full_walks_in_sqlite() {
    let rows = if is_full() { 500_000 } else { 20_000 };
    let script = std::fs::read_to_string(bench("bulk.sql")).expect("the script").replace("500000", &rows.to_string());
    agrees(Program::new("sqlite3").arg(":memory:").stdin(script), rows * 5);
}

#[test]
fn unwinder_matches_full_walks_in_python() {
    let objects: u64 = if is_full() { 60_000 } else { 6_000 };
    let program = Program::new("/usr/bin/python3").arg(bench("objects.py")).arg(objects.to_string());
    agrees(program.env("PYTHONMALLOC", "malloc").env("PYTHONHASHSEED", "0"), objects * 10);
}

#[test]
fn unwinder_matches_full_walks_in_a_compiler() {
    let directory = test_env::folder();
    let out = directory.path().join("out.o");
    let source =
        if is_full() { test_env::programs().join("heavy.cpp") } else { test_env::programs().join("each_operator.cpp") };
    let program = Program::new("g++").args(["-O1", "-c"]).arg(source).arg("-o").arg(out);
    agrees(program, if is_full() { 1_000_000 } else { 40_000 });
}

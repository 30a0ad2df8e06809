//! Programs whose live bytes have a known shape over the run, and the verdict of `heaptape leaks`
//! on each, also as its conditions see it. A program paces itself by points in time, so that a busy
//! machine changes little about its shape.

use heaptape_tests::recording::heaptape;
use heaptape_tests::{Program, Recording, Target};
use serde_json::Value;
use std::path::Path;
use std::sync::Mutex;

/// The most recordings of one shape.
const TRIES: usize = 20;

/// Shape, function that allocates, verdict in a run that is long enough for growth.
type Shape = (&'static str, &'static str, &'static str);

#[rustfmt::skip]
const SHAPES: &[Shape] = &[
    // Loaded at once, and in use to the end: it did not grow, whoever frees it.
    ("table_kept", "table", "one-time"), ("table_freed", "table", ""), ("table_atexit", "table", ""),
    ("table_late", "table", "one-time"), ("table_twice", "table", ""),
    ("ramp20", "ramp", "one-time"), ("ramp40", "ramp", "one-time"), ("ramp60", "ramp", "one-time"),
    ("ramp95", "ramp", "growing"), ("ramp", "ramp", "growing"), ("ramp_atexit", "ramp", "freed-at-exit"),
    ("ramp40_atexit", "ramp", ""),
    // Freed a sixth of the run before the exit.
    ("ramp_drained", "ramp", ""),
    ("wave", "wave", "young-at-end"), ("spikes", "wave", "one-time"),
    // Queues that are never emptied: from one in a hundred that stays to one in four.
    ("backlog99", "queue", "growing"), ("backlog19", "queue", "growing"), ("backlog9", "queue", "growing"),
    ("backlog3", "queue", "growing"), ("drained", "queue", ""), ("drained_slowly", "queue", ""),
    ("steady", "queue", "bounded-cache"),
    ("cache5", "cache", "bounded-cache"), ("cache40", "cache", "bounded-cache"), ("cache60", "cache", "bounded-cache"),
    ("table_full", "value", "bounded-cache"), ("churn", "churn", "growing"), ("workers", "work", "growing"),
];

/// Returns the verdict on a function, or the trend if there is too little to tell; empty if nothing
/// of it is reported. Fails if its stacks have different ones.
fn verdict(folder: &Path, function: &str) -> String {
    let output = heaptape(["leaks".as_ref(), "--json".as_ref(), folder.as_os_str()]);
    assert!(output.code() < 2, "{output}");
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let rows = ["leaks", "freed_at_exit"].into_iter().flat_map(|list| answer[list].as_array().expect("a list"));
    let own =
        rows.filter(|row| row["stack"].as_array().expect("a stack").iter().any(|one| one["function"] == function));
    let of = |row: &Value| match row["verdict"].as_str().expect("a verdict") {
        "too-little" => format!("too little: {}", row["evidence"]["trend"].as_str().unwrap_or_default()),
        verdict => verdict.to_string(),
    };
    let mut found: Vec<String> = own.map(of).collect();
    found.sort();
    found.dedup();
    found.join(" and ")
}

/// Records a program that says when it was late. Where the machine did not let it run for a part of the
/// run, the run had another shape, and says nothing.
fn recorded_in_time(program: &Path, arguments: &[&str]) -> Recording {
    let record = || -> Recording { Program::new(program).args(arguments).recorded() };
    let is_in_time = |recording: &Recording| !recording.outcome.error().lines().any(|line| line == "late");
    let found = (0..TRIES).map(|_| record()).find(is_in_time);
    found.unwrap_or_else(|| panic!("{arguments:?} was late in each of {TRIES} runs"))
}

/// Records shapes in runs of some milliseconds, several at once, and returns what is wrong.
fn judge(shapes: &[Shape], milliseconds: &str, pace: &str, at_once: usize) -> Vec<String> {
    let program = Target::program("leaks/shapes.c").flag("-pthread").build();
    let (left, wrong) = (Mutex::new(shapes.iter()), Mutex::new(Vec::new()));
    let work = || {
        while let Some(&(shape, function, expected)) = { left.lock().expect("no test panicked").next() } {
            let recording = recorded_in_time(&program, &[shape, milliseconds, pace]);
            let found = verdict(&recording.folder, function);
            let condition = ["leaks", "--fail-if", "leaked.growing > 0", "--fail-if", "freed-at-exit > 0"];
            let fails = recording.heaptape(&condition).code() == 1;
            if found != expected || fails != ["growing", "freed-at-exit"].contains(&expected) {
                let text = format!("{shape} {pace}: {expected} was expected, found {found}; conditions fail: {fails}");
                wrong.lock().expect("no test panicked").push(text);
            }
        }
    };
    std::thread::scope(|scope| (0..at_once).for_each(|_| drop(scope.spawn(work))));
    wrong.into_inner().expect("no test panicked")
}

#[test]
fn verdicts_on_programs_that_sleep_match_their_shape() {
    let wrong = judge(SHAPES, "1200", "sleepy", 10);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn verdicts_on_programs_that_work_match_their_shape() {
    // At once, they would keep each other from their pace.
    let wrong = judge(SHAPES, "1200", "busy", 3);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A run of 100 ms: growth is not certain, but nothing else is called growth either.
#[test]
fn verdicts_on_short_programs_match_their_shape() {
    #[rustfmt::skip]
    const SHORT: &[Shape] = &[
        ("table_kept", "table", "one-time"), ("table_freed", "table", ""), ("table_atexit", "table", ""),
        ("ramp20", "ramp", "one-time"), ("ramp", "ramp", "too little: growing"), ("ramp_atexit", "ramp", "freed-at-exit"),
        ("backlog3", "queue", "too little: growing"), ("wave", "wave", "young-at-end"), ("steady", "queue", "bounded-cache"),
        ("cache5", "cache", "bounded-cache"), ("workers", "work", "too little: growing"),
    ];
    for pace in ["sleepy", "busy"] {
        let wrong = judge(SHORT, "100", pace, 1);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

/// Texts and nodes of one map have the same verdict, whenever the map is full.
#[test]
fn parts_of_one_container_have_one_verdict() {
    let program = Target::program("leaks/cached_map.cpp").build();
    for (full_at, entries) in [("10", "600"), ("40", "2000"), ("70", "1400")] {
        let recording = recorded_in_time(&program, &["1200", full_at, entries]);
        assert_eq!(verdict(&recording.folder, "insert"), "bounded-cache", "full at {full_at} %");
    }
}

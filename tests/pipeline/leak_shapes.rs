//! Programs whose live bytes have a known shape over the run, and the verdict of `heaptape leaks`
//! on each, also as its conditions see it. A program that is kept from running takes longer, and
//! keeps its shape. `analyzer/tests/leak_shapes.rs` has many more shapes, in recordings that are
//! written with exact times.

use heaptape_tests::recording::heaptape;
use heaptape_tests::{Program, Recording, Target};
use serde_json::Value;
use std::path::Path;

/// Shape, function that allocates, verdict.
type Shape = (&'static str, &'static str, &'static str);

const SHAPES: &[Shape] = &[
    ("table", "table", "one-time"),
    ("ramp", "ramp", "growing"),
    ("ramp_atexit", "ramp", "freed-at-exit"),
    ("cache", "cache", "bounded-cache"),
    ("workers", "work", "growing"),
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

#[test]
fn verdicts_on_programs_match_their_shape() {
    let program = Target::program("leaks/shapes.c").flag("-pthread").build();
    let judge = |&(shape, function, expected): &Shape| {
        let recording: Recording = Program::new(&program).arg(shape).recorded();
        let found = verdict(&recording.folder, function);
        let condition = ["leaks", "--fail-if", "leaked.growing > 0", "--fail-if", "freed-at-exit > 0"];
        let fails = recording.heaptape(&condition).code() == 1;
        let is_right = found == expected && fails == ["growing", "freed-at-exit"].contains(&expected);
        (!is_right).then(|| format!("{shape}: {expected} was expected, found {found}; conditions fail: {fails}"))
    };
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let runs: Vec<_> = SHAPES.iter().map(|shape| scope.spawn(move || judge(shape))).collect();
        runs.into_iter().filter_map(|run| run.join().expect("a run that ends")).collect()
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Texts and nodes of one map have the same verdict.
#[test]
fn parts_of_one_container_have_one_verdict() {
    let recording = Program::new(Target::program("leaks/cached_map.cpp").build()).recorded();
    assert_eq!(verdict(&recording.folder, "insert"), "bounded-cache");
}

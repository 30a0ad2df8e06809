//! Functions with their callees, callers and lines: `sites --inclusive`, `callers`, `callees` and
//! `source`.

use heaptape_tests::{Program, Recording, Target, test_env};
use serde_json::Value;
use std::fs;
use std::path::Path;

fn json(recording: &Recording, arguments: &[&str]) -> Value {
    let output = recording.heaptape(&[arguments, &["--json"]].concat()).success();
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    answer["processes"][0].clone()
}

/// Returns the names of functions with their allocated bytes.
fn named(rows: &Value) -> Vec<(&str, u64)> {
    let rows = rows.as_array().expect("a list").iter();
    rows.map(|row| (row["function"].as_str().expect("a name"), row["bytes"].as_u64().expect("bytes"))).collect()
}

/// Returns a recording of two threads that allocate in one function by two callers. The source is
/// in the folder.
fn recorded(folder: &Path) -> Recording {
    let source = folder.join("named_threads.c");
    fs::copy(test_env::programs().join("named_threads.c"), &source).expect("a copy");
    let program = folder.join("program");
    let built = std::process::Command::new("cc")
        .args(["-g", "-O1", "-pthread", "-o"])
        .args([&program, &source])
        .status()
        .expect("a compiler");
    assert!(built.success());
    Program::new(program).recorded().success().complete()
}

#[test]
fn functions_have_what_they_and_their_callees_allocate() {
    let directory = test_env::folder();
    let recording = recorded(directory.path());
    let answer = json(&recording, &["sites", "--inclusive"]);
    let rows = answer["functions"].as_array().expect("a list");
    let of =
        |name: &str| rows.iter().find(|row| row["function"] == name).unwrap_or_else(|| panic!("{name}: {rows:#?}"));
    assert_eq!((&of("keep")["total"]["bytes"], &of("keep")["own"]["bytes"]), (&300_000.into(), &300_000.into()));
    assert_eq!((&of("work")["total"]["bytes"], &of("work")["own"]["bytes"]), (&300_000.into(), &0.into()));
    assert_eq!(of("first_caller")["total"]["bytes"], 100_000);
    assert!(rows.iter().all(|row| row["function"] != "malloc"), "a wrapper is no function of the program: {rows:#?}");

    let callers = json(&recording, &["callers", "keep"]);
    assert_eq!(callers["functions"][0]["total"]["allocs"], 2000);
    assert_eq!(named(&callers["functions"][0]["callers"]), [("second_caller", 200_000), ("first_caller", 100_000)]);
    let callees = json(&recording, &["callees", "work"]);
    assert_eq!(named(&callees["functions"][0]["callees"]), [("second_caller", 200_000), ("first_caller", 100_000)]);
    let itself = json(&recording, &["callees", "^keep$"]);
    assert_eq!(named(&itself["functions"][0]["callees"]), [("(itself)", 300_000)]);
    // A part of the name means all functions that have it; a name in full only one.
    assert_eq!(json(&recording, &["callers", "_caller"])["functions"].as_array().map(Vec::len), Some(2));
    for command in ["callers", "callees", "source"] {
        let output = recording.heaptape(&[command, "kepe"]).exits(2);
        assert!(
            output.text().is_empty() && output.error().contains("no stack passes through a function kepe"),
            "{output}"
        );
        assert!(output.error().contains("similar: keep"), "{output}");
        let folder = directory.path().to_str().expect("a path");
        let swapped = heaptape_tests::recording::heaptape([command, folder, "keep"]).exits(2);
        assert!(swapped.error().contains(&format!("the function comes first, as in 'keep {folder}'")), "{swapped}");
    }
    let error = recording.heaptape(&["callers", "malloc"]).exits(2);
    assert!(error.error().contains("malloc: stacks end at the function that calls it"), "{error}");
}

#[test]
fn source_has_the_bytes_of_each_line_or_says_that_it_is_not_there() {
    let directory = test_env::folder();
    let recording = recorded(directory.path());
    let text = |options: &[&str]| recording.heaptape(&[&["source", "keep"], options].concat()).success().text();
    let with_bytes = |output: &str| {
        let found = output.lines().find(|line| line.contains("char *block = malloc(size);"));
        found.is_some_and(|line| line.contains("293 KiB 100.0%") && line.contains("2,000"))
    };
    assert!(with_bytes(&text(&[])), "{}", text(&[]));
    assert!(!text(&[]).contains('!'), "{}", text(&[]));
    // The file was moved: its lines are known, its text is not.
    let source = directory.path().join("named_threads.c");
    let moved = directory.path().join("elsewhere");
    fs::create_dir(&moved).expect("a folder");
    fs::rename(&source, moved.join("named_threads.c")).expect("it moves");
    let output = text(&[]);
    assert!(output.contains("! no source text: ") && output.contains("named_threads.c: not found"), "{output}");
    assert!(output.contains("293 KiB 100.0%"), "{output}");
    let root = moved.to_string_lossy().into_owned();
    assert!(with_bytes(&text(&["--source-root", &root])), "{}", text(&["--source-root", &root]));
    let changed = fs::read_to_string(moved.join("named_threads.c")).expect("the source");
    fs::write(moved.join("named_threads.c"), changed).expect("a newer file");
    let output = text(&["--source-root", &root]);
    assert!(output.contains("! the file was changed after the recording began"), "{output}");
    // Without debug information there is no file.
    let stripped = Program::new(Target::program("known_stacks.c").flag("-g0").build()).recorded().success();
    let output = stripped.heaptape(&["source", "leaf"]).success().text();
    assert!(output.contains("no debug information"), "{output}");
}

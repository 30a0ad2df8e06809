//! `heaptape diff`: the same program twice is no change, one line that allocates a tenth more is
//! exactly one; and across formats, points in time and processes.

use heaptape_tests::recording::heaptape;
use heaptape_tests::{Outcome, Program, Recording, Target};
use serde_json::Value;
use std::ffi::OsString;
use std::path::Path;

fn diff(arguments: &[&str], paths: &[&Path]) -> Outcome {
    let arguments = ["diff"].into_iter().chain(arguments.iter().copied()).map(OsString::from);
    heaptape(arguments.chain(paths.iter().map(OsString::from)))
}

fn changes(output: &Outcome) -> Vec<Value> {
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output}"));
    answer["changes"].as_array().expect("a list").clone()
}

fn shop(flags: &[&str]) -> Recording {
    let target = flags.iter().fold(Target::program("leaks/shop.c"), |target, flag| target.flag(*flag));
    Program::new(target.build()).recorded().success().complete()
}

#[test]
fn two_runs_of_one_program_show_no_change() {
    let first = shop(&[]);
    for _ in 0..20 {
        let second = shop(&[]);
        let output = diff(&["--json"], &[&first.folder, &second.folder]).success();
        assert_eq!(changes(&output), Vec::<Value>::new());
    }
}

#[test]
fn one_line_that_allocates_a_tenth_more_is_the_only_change() {
    let old = shop(&[]);
    for flags in [&["-DMORE"][..], &["-DMORE", "-O0"], &["-DMORE", "-O3", "-fno-pie", "-no-pie"]] {
        let new = shop(flags);
        let output = diff(&["--json"], &[&old.folder, &new.folder]).success();
        let found = changes(&output);
        assert_eq!(found.len(), 1, "{flags:?}: {output}");
        assert_eq!(found[0]["functions"][0], "load_order", "{output}");
        assert_eq!(found[0]["delta"]["bytes"], 500_000.0);
        assert_eq!(found[0]["delta"]["live_bytes"], 5_000.0);
        assert_eq!(found[0]["delta"]["allocs"], 0.0);
        assert_eq!(found[0]["status"], "changed");
    }
}

/// If lines cannot be paired, a row sums up the whole function, and states the number of lines.
#[test]
fn joined_rows_show_their_number_of_lines() {
    let built = |flag: &str| Program::new(Target::program("lines_moved.c").flag(flag).build()).recorded().success();
    let (old, new) = (built("-DPLAIN"), built("-DMOVED"));
    let paths = [&*old.folder, &*new.folder];
    let found = changes(&diff(&["--json"], &paths).success());
    let of_load: Vec<&Value> = found.iter().filter(|change| change["functions"][0] == "load").collect();
    assert_eq!(of_load.len(), 1, "{found:#?}");
    assert_eq!((&of_load[0]["lines"], &of_load[0]["delta"]["live_blocks"]), (&3.into(), &1.0.into()));
    let output = diff(&[], &paths).success().text();
    assert!(output.contains("load lines_moved.c (3 lines)"), "{output}");
    // A row of one line names it.
    let output = diff(&[], &[&shop(&[]).folder, &shop(&["-DMORE"]).folder]).success().text();
    assert!(output.contains("load_order shop.c:"), "{output}");
}

#[test]
fn recording_and_profile_of_one_run_show_no_change() {
    let (old, new) = (shop(&[]), shop(&["-DMORE"]));
    let profile = &old.files("profile.mptl")[0];
    let output = diff(&["--json"], &[&old.folder, profile]).success();
    assert_eq!(changes(&output), Vec::<Value>::new(), "the same run in two formats");
    let output = diff(&["--json"], &[profile, &new.folder]).success();
    let found = changes(&output);
    assert_eq!(found.len(), 1, "{output}");
    assert_eq!(found[0]["functions"][0], "load_order");
}

#[test]
fn points_in_time_and_processes_can_be_compared() {
    let recording = shop(&[]);
    let output = diff(&["--json", "--from", "5000", "--to", "15000"], &[&recording.folder]).success();
    let found = changes(&output);
    let order = found.iter().find(|one| one["functions"][0] == "load_order").expect("orders were loaded between");
    // Each round is two allocations and two frees, one of them kept each hundredth time.
    let allocs = order["delta"]["allocs"].as_f64().expect("a number");
    assert!((2490.0..=2520.0).contains(&allocs), "{allocs}");
    let program = Program::new(Target::program("leaks/labelled.c").build()).args(["children", "marked"]);
    let forked = program.recorded();
    let report = forked.report();
    let children: Vec<String> = report
        .processes
        .iter()
        .filter(|one| one.ppid == report.processes[0].pid)
        .map(|one| one.pid.to_string())
        .collect();
    assert_eq!(children.len(), 2);
    let arguments = ["--json", "--process-a", &children[0], "--process-b", &children[1]];
    let output = diff(&arguments, &[&forked.folder, &forked.folder]);
    assert_eq!(changes(&output), Vec::<Value>::new(), "two children that do the same: {output}");
}

#[test]
fn diff_normalizes_suppresses_noise_and_sorts() {
    let labelled = Target::program("leaks/labelled.c").build();
    let run = |mode: &str| Program::new(&labelled).args([mode, "marked"]).recorded();
    let (one, other) = (run("linear"), run("half_freed"));
    let output = diff(&["--json", "--per", "2,1"], &[&one.folder, &one.folder]).success();
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(answer["scale"], 2.0);
    assert!(
        changes(&output).iter().all(|change| change["delta"]["allocs"].as_f64() > Some(0.0)),
        "half the work in the same"
    );
    let output = diff(&["--json", "--again-b", &other.folder.to_string_lossy()], &[&one.folder, &one.folder]).success();
    assert_eq!(changes(&output), Vec::<Value>::new(), "what runs of one side differ by is noise: {output}");
    let output = diff(&["--json", "--sort=range"], &[&one.folder, &other.folder]).success();
    let ranges: Vec<f64> = changes(&output).iter().filter_map(|change| change["range"].as_f64()).collect();
    assert!(ranges.len() >= 2 && ranges.is_sorted_by(|a, b| a >= b), "{ranges:?}");
    // Sums of changes and of what is quiet are the whole difference.
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    for field in ["bytes", "live_bytes", "allocs", "live_blocks"] {
        let listed: f64 = changes(&output).iter().filter_map(|change| change["delta"][field].as_f64()).sum();
        let number = |part: &str| answer[part][field].as_f64().expect("a number");
        assert_eq!(listed + number("quiet"), number("b") - number("a"), "{field}");
    }
}

#[test]
fn first_line_is_the_verdict_and_rows_have_directions() {
    let (less, more) = (shop(&[]), shop(&["-DMORE"]));
    let compare = |a: &Recording, b: &Recording| diff(&[], &[&a.folder, &b.folder]).success().text();
    let output = compare(&less, &more);
    assert!(output.starts_with("grew: live +4.88 KiB (+9.1%), peak +"), "{output}");
    assert!(output.contains("\nsites: 1 grew (+4.88 KiB live)\n"), "{output}");
    assert!(output.lines().any(|line| line.starts_with(" grew ") && line.contains("load_order")), "{output}");
    let output = compare(&more, &less);
    assert!(output.starts_with("shrank: live -4.88 KiB (-8.4%)"), "{output}");
    assert!(compare(&less, &less).starts_with("same: live 0, "), "{}", compare(&less, &less));
    let other = Program::new(Target::program("named_threads.c").flag("-pthread").build()).recorded().success();
    let output = compare(&less, &other);
    assert!(output.contains(" new (+293 KiB live)") && output.contains(" gone (-"), "{output}");
}

//! The text of `heaptape leaks`: totals by verdict, one entry for each bug, and what is listed only
//! on demand.

use heaptape_tests::{Program, Recording, Target};
use serde_json::Value;

fn text(recording: &Recording, options: &[&str]) -> String {
    recording.heaptape(&[&["leaks"], options].concat()).success().text()
}

fn leaks(recording: &Recording) -> Vec<Value> {
    let output = recording.heaptape(&["leaks", "--json"]).success();
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    answer["leaks"].as_array().expect("a list").clone()
}

/// Returns the first lines of the entries.
fn entries(output: &str) -> Vec<&str> {
    let is_number = |line: &&str| line.split_once(". ").is_some_and(|(number, _)| number.parse::<u32>().is_ok());
    output.lines().filter(is_number).collect()
}

#[test]
fn stacks_of_one_function_are_one_entry_with_names_of_threads() {
    let target = Target::program("named_threads.c").flag("-O1").flag("-pthread");
    let recording = Program::new(target.build()).recorded().success().complete();
    let output = text(&recording, &["--all"]);
    let found = entries(&output);
    assert_eq!(found.len(), 1, "{output}");
    // On a slow machine they take long enough to be growing.
    let verdicts = [("one-time          ", "one-time"), ("probably growing  ", "probably growing (the run was short)")];
    let is_told = |(short, long)| {
        let total = format!("  {short}        293 KiB in 2,000 blocks      keep named_threads.c:");
        let is_total = output.lines().nth(1).is_some_and(|line| line.starts_with(&total));
        is_total && found[0].starts_with(&format!("1. {long}: 293 KiB in 2,000 blocks"))
    };
    assert!(verdicts.into_iter().any(is_told), "{output}");
    assert!(found[0].ends_with(", from 2 stacks"), "{output}");
    assert!(output.contains(", by threads reader, writer\n"), "{output}");
    assert_eq!(entries(&text(&recording, &["--all", "--by", "stack"])).len(), 2);
    // In JSON each stack is a leak of its own.
    let kept = leaks(&recording).into_iter().filter(|leak| leak["kept_on_purpose"].is_null());
    assert_eq!(kept.map(|leak| leak["bytes"].as_u64()).collect::<Vec<_>>(), [Some(200_000), Some(100_000)]);
}

#[test]
fn harmless_blocks_are_counted_and_listed_on_demand() {
    let recording = Program::new(Target::program("known_stacks.c").build()).recorded().success().complete();
    let output = text(&recording, &[]);
    assert!(output.lines().nth(1).is_some_and(|line| line.starts_with("  one-time ")), "{output}");
    assert!(entries(&output).is_empty() && output.contains("2 entries are not listed: one-time (--all)"), "{output}");
    let output = text(&recording, &["--all"]);
    assert!(entries(&output)[0].starts_with("1. one-time: ") && !output.contains("not listed: one-time"), "{output}");
}

#[test]
fn blocks_that_exec_released_are_no_leaks() {
    let script = "names='a b c'; for name in $names; do kept=\"$kept $name\"; done; exec /bin/true";
    let recording = Program::new("/bin/bash").args(["-c", script]).recorded().success().complete();
    let output = text(&recording, &[]);
    assert!(output.contains("\n  released by exec "), "{output}");
    assert!(output.starts_with("nothing leaked"), "{output}");
    assert!(entries(&output).is_empty(), "{output}");
    let of_bash: Vec<Value> = leaks(&recording)
        .into_iter()
        .filter(|leak| {
            leak["kept_on_purpose"].is_null() && leak["image"].as_str().is_some_and(|name| name.ends_with(".bash"))
        })
        .collect();
    assert!(of_bash.len() > 10 && of_bash.iter().all(|leak| leak["released_by_exec"] == true), "{of_bash:#?}");
    // Without exec, they are.
    let recording = Program::new("/bin/bash").args(["-c", "kept=a; exit 0"]).recorded().success().complete();
    assert!(!text(&recording, &[]).contains("released by exec"));
    assert!(leaks(&recording).iter().all(|leak| leak["released_by_exec"].is_null()));
}

#[test]
fn result_file_without_a_condition_is_refused() {
    let recording = Program::new(Target::program("leaks_deep.c").build()).recorded();
    for option in ["--sarif", "--junit"] {
        let file = recording.folder.with_extension("results");
        let output = recording.heaptape(&["leaks", option, &file.to_string_lossy()]).exits(2);
        assert!(output.error().contains("--fail-if") && !file.exists(), "{output}");
    }
}

/// A stack that was cut does not look complete.
#[test]
fn frames_that_were_not_recorded_are_named() {
    let program = Target::program("leaks_deep.c").build();
    let cut = Program::new(&program).option("--max-frames=4").recorded();
    let text = cut.heaptape(&["leaks", "--all", "--frames", "all"]).text();
    assert!(text.contains("middle leaks_deep.c") && !text.contains("main leaks_deep.c"), "{text}");
    assert!(text.contains("    … outer frames that were not recorded\n"), "{text}");
    let text = cut.heaptape(&["leaks", "--all", "--frames", "2"]).text();
    assert!(text.contains("outer frames, and more that were not recorded\n"), "{text}");
    let complete = Program::new(&program).recorded();
    assert!(!complete.heaptape(&["leaks", "--all", "--frames", "all"]).text().contains("not recorded"));
}

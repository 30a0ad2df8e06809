//! Exit statuses, as `docs/exit-status.md` has them: a command that has nothing to answer from says
//! so and never passes.

use heaptape_tests::recording::heaptape;
use heaptape_tests::{Outcome, Program, Recording, Target, lossy, test_env};
use serde_json::Value;
use std::ffi::OsStr;
use std::path::Path;

/// Questions, each with a gate where it takes one.
const QUESTIONS: &[&[&str]] = &[
    &["leaks", "--fail-if", "leaked > 1GiB"],
    &["report", "--fail-if", "peak > 1GiB"],
    &["leaks"],
    &["peak"],
    &["sites"],
    &["sizes"],
    &["lifetimes"],
    &["temporary"],
    &["timeline"],
    &["threads"],
    &["realloc"],
    &["fragmentation"],
];

fn asked(words: &[&str], folder: &Path) -> Outcome {
    heaptape(words.iter().map(OsStr::new).chain([folder.as_os_str()]))
}

fn shop() -> Recording {
    Program::new(Target::program("leaks/shop.c").build()).recorded().success().whole()
}

#[track_caller]
fn no_answer(said: Outcome, why: &str) {
    let said = said.exits(2);
    assert!(said.error().contains(why), "{why}: {said}");
    assert_eq!(said.text(), "", "nothing that looks like an answer");
}

#[test]
fn nothing_recorded_is_no_answer() {
    let program = Program::new(Target::program("small.c").flag("-static").named("nothing-static").build());
    let recording = program.recorded();
    assert!(!recording.outcome.error().contains("next:"), "there is nothing to go on with: {}", recording.outcome);
    for words in QUESTIONS {
        let said = recording.heaptape(words);
        no_answer(said, "nothing was recorded");
        assert!(recording.heaptape(words).error().contains("static"), "{words:?} says why");
    }
    let folder = recording.folder.to_string_lossy().into_owned();
    no_answer(recording.heaptape(&["diff", &folder]), "nothing was recorded");
    no_answer(recording.heaptape(&["diff", "--fail-if", "diff.live > 0", &folder]), "nothing was recorded");
    no_answer(recording.heaptape(&["export", "--format", "csv"]), "nothing was recorded");
    let said = recording.heaptape(&["report"]).exits(2);
    assert!(said.text().contains("no process was recorded"), "{said}");
    let said = recording.heaptape(&["report", "--json"]).exits(2);
    let answer: Value = serde_json::from_slice(&said.stdout).expect("JSON");
    assert!(answer["not_traced"][0]["why"].as_str().is_some_and(|why| why.contains("static")), "{said}");
}

#[test]
fn names_that_match_nothing_are_no_answer_and_similar_names_are_listed() {
    let recording = shop();
    for (option, name, hint) in [
        ("--function", "load_ordre", "load_order"),
        ("--module", "shopp", "shop"),
        ("--thread", "no-such-thread", "no thread no-such-thread"),
        ("--process", "1", ".shop"),
        ("--program", "shpo", "shop"),
    ] {
        for words in QUESTIONS.iter().filter(|words| words[0] != "report") {
            no_answer(recording.heaptape(&[words, &[option, name][..]].concat()), hint);
        }
    }
    no_answer(recording.heaptape(&["report", "--process", "1", "--fail-if", "peak > 0"]), ".shop");
    no_answer(recording.heaptape(&["report", "--program", "shpo"]), "shop");
    no_answer(recording.heaptape(&["export", "--format", "csv", "--program", "shpo"]), "shop");
    let folder = recording.folder.to_string_lossy().into_owned();
    no_answer(recording.heaptape(&["diff", "--function", "load_ordre", &folder]), "load_order");
    no_answer(recording.heaptape(&["diff", "--program", "shpo", &folder]), "shop");
    // One of several names is enough to be wrong.
    let both = ["leaks", "--function", "load_order", "--function", "nobody"];
    no_answer(recording.heaptape(&both), "nobody");
    for right in [["--function", "load_order"], ["--module", "shop"], ["--thread", "1"], ["--program", "sh?p*"]] {
        recording.heaptape(&[&["leaks"], &right[..]].concat()).success();
    }
    // A profile holds sums by stack: names of functions choose among them, threads cannot.
    let profile = &recording.files("profile.mptl")[0];
    no_answer(asked(&["leaks", "--function", "nobody"], profile), "nobody");
    no_answer(asked(&["leaks", "--thread", "1"], profile), "needs events");
    no_answer(asked(&["sites", "--function", "load_order"], profile), "needs events");
    let said = asked(&["leaks", "--function", "load_order", "--fail-if", "leaked.blocks != 50"], profile).success();
    assert!(said.text().contains("leaked.blocks = 50"), "{said}");
}

#[test]
fn time_ranges_that_hold_nothing_are_no_answer() {
    let recording = shop();
    for (range, why) in [
        (&["--from", "5h"][..], "after the end"),
        (&["--from", "100%"], "after the end"),
        (&["--from", "999999999"], "after the end"),
        (&["--from", "90%", "--until", "10%"], "empty"),
        (&["--from", "90%", "--to", "10%"], "empty"),
        (&["--from", "5000", "--until", "5000"], "empty"),
        (&["--until", "0"], "empty"),
    ] {
        for words in QUESTIONS.iter().filter(|words| words[0] != "report") {
            no_answer(recording.heaptape(&[words, range].concat()), why);
        }
    }
    for range in [&["--from", "5h"][..], &["--from", "90%", "--until", "10%"]] {
        recording.heaptape(&[&["diff"], range].concat()).exits(2);
        recording.heaptape(&[&["diff", "--fail-if", "diff.live > 1GiB"], range].concat()).exits(2);
        recording.heaptape(&[&["export", "--format", "csv"], range].concat()).exits(2);
    }
    recording.heaptape(&["diff", "--from", "10%", "--to", "90%"]).success();
    recording.heaptape(&["leaks", "--from", "10%", "--until", "90%"]).success();
    // mpatrol's traces have no times: a time would leave the range open.
    let trace = test_env::root().join("tests/golden/mpatrol/usedebug.mtrc");
    no_answer(asked(&["sizes", "--from", "1ms"], &trace), "no times");
}

#[test]
fn an_incomplete_recording_is_a_warning_and_with_strict_a_status() {
    let recording = shop();
    let place = test_env::folder();
    let folder = place.path().join("lossy");
    assert!(lossy::write(&recording.folder, &folder, 100, 30, 7919) > 0);
    for words in QUESTIONS {
        for (path, warned) in [(&recording.folder, false), (&folder, true)] {
            let said = asked(words, path).success();
            assert_eq!(said.error().contains("incomplete"), warned, "{words:?}: {said}");
            asked(&[words, &["--strict"][..]].concat(), path).exits(if warned { 3 } else { 0 });
        }
    }
    let leaks = |gate: &str| asked(&["leaks", "--strict", "--fail-if", gate], &folder).code();
    assert_eq!((leaks("leaked > 0"), leaks("leaked > 1GiB")), (1, 3), "a gate that fails is sure enough");
    let (a, b) = (recording.folder.to_string_lossy().into_owned(), &folder);
    asked(&["diff", &a], b).success();
    asked(&["diff", "--strict", &a], b).exits(3);
    asked(&["verify"], b).exits(1);
}

#[test]
fn a_gate_says_value_and_limit() {
    let recording = shop();
    let said = recording.heaptape(&["leaks", "--fail-if", "leaked.growing > 1GiB"]).success();
    assert_eq!(said.text().lines().count(), 1, "{said}");
    assert!(said.text().starts_with("ok: leaked.growing = ") && said.text().ends_with("(limit: > 1GiB)\n"), "{said}");
    let said = recording.heaptape(&["leaks", "--fail-if", "leaked.blocks>0"]).exits(1);
    assert!(said.text().starts_with("FAILED: leaked.blocks = 51 (limit: >0)\n"), "{said}");
    let more = Program::new(Target::program("leaks/shop.c").flag("-DMORE").build()).recorded().success();
    let old = recording.folder.to_string_lossy().into_owned();
    let said = more.heaptape(&["diff", "--fail-if", "diff.live > 0", &old]).exits(1).text();
    assert!(said.starts_with("FAILED: diff.live = +"), "{said}");
    assert!(said.contains("KiB live in 0 blocks") && said.contains("load_order shop.c:"), "{said}");
    let profile = &recording.files("profile.mptl")[0];
    let said = asked(&["report", "--fail-if", "peak > 1"], profile).exits(2);
    assert!(said.error().contains("peak cannot be measured"), "{said}");
}

#[test]
fn functions_are_found_by_the_names_that_reports_print() {
    let recording = Program::new(Target::program("leaks/lru.cpp").build()).recorded().success();
    for (name, blocks) in [
        ("shop::LruCache<…>::get_or_make<…>", 50),
        ("LruCache::get_or_make", 50),
        ("LruCache::LruCache", 1),
        ("shop::LruCache<int, long>::LruCache", 1),
    ] {
        let gate = format!("leaked.blocks != {blocks}");
        let said = recording.heaptape(&["leaks", "--function", name, "--fail-if", &gate]);
        assert_eq!(said.code(), 0, "{name}: {said}");
    }
}

#[test]
fn programs_of_one_process_are_told_apart() {
    let recording = Program::new(Target::program("leaks/lru.cpp").build()).arg("chain").recorded().success();
    let images = recording.about().images;
    assert_eq!(images.len(), 2, "{images:?}");
    let pid = images[0].pid.to_string();
    for words in [&["leaks"][..], &["report"], &["sites"], &["leaks", "--fail-if", "leaked > 1GiB"]] {
        let said = recording.heaptape(&[words, &["--process", &pid][..]].concat()).success();
        assert!(said.text().contains(&format!("pid {pid} ran 2 programs")), "{said}");
        let said = recording.heaptape(&[words, &["--process", &images[1].folder][..]].concat()).success();
        assert!(!said.text().contains("ran 2 programs"), "{said}");
    }
    let gate =
        |folder: &str| recording.heaptape(&["leaks", "--process", folder, "--fail-if", "leaked.blocks < 50"]).code();
    assert_eq!((gate(&images[0].folder), gate(&images[1].folder)), (1, 0), "only the second one allocates");
}

#[test]
fn short_lived_processes_are_summed_up() {
    let line = "for i in 1 2 3 4 5 6 7 8 9 10; do ls / > /dev/null; done; /usr/bin/python3 -c 'print(len([str(i) for i in range(50000)]))'";
    let recording = Program::new("bash").args(["-c", line]).recorded().success();
    let all = recording.about().images.len();
    assert!(all >= 12, "{all}");
    let heads = |said: &Outcome| said.text().lines().filter(|line| line.contains(" (pid ")).count();
    for word in ["timeline", "threads"] {
        let said = recording.heaptape(&[word]).success();
        assert!(said.text().contains(" short-lived process") && heads(&said) < all, "{said}");
        assert!(said.text().contains("python3"), "what did most is listed: {said}");
        let said = recording.heaptape(&[word, "--all-processes"]).success();
        assert!(!said.text().contains("short-lived") && heads(&said) == all, "{said}");
        let said = recording.heaptape(&[word, "--json"]).success();
        let answer: Value = serde_json::from_slice(&said.stdout).expect("JSON");
        assert_eq!(answer["processes"].as_array().map(Vec::len), Some(all), "JSON has them all");
    }
    let said = recording.heaptape(&["report"]).success();
    assert!(said.text().contains(" short-lived process"), "{said}");
    let is_row = |line: &&str| line.contains(", exit 0") || line.contains(", replaced by another program");
    let rows = |said: &Outcome| said.text().lines().filter(is_row).count();
    assert_eq!(rows(&recording.heaptape(&["report", "--all-processes"]).success()), all);
    let said = recording.heaptape(&["report", "--json", "--program", "l?"]).success();
    let answer: Value = serde_json::from_slice(&said.stdout).expect("JSON");
    assert_eq!(answer["processes"].as_array().map(Vec::len), Some(10), "{said}");
}

#[test]
fn a_directory_is_not_dumped_and_its_files_are_listed() {
    let recording = shop();
    let said = recording.heaptape(&["dump"]).exits(2);
    assert!(said.error().contains("events.tape") && said.error().contains("recording.json"), "{said}");
    let empty = test_env::folder();
    let said = asked(&["dump"], empty.path()).exits(2);
    assert!(said.error().contains("not a recording"), "{said}");
    let said = heaptape([OsStr::new("epochs"), "--state".as_ref(), empty.path().join("none").as_os_str()]).exits(2);
    assert!(said.error().contains("/none") && said.error().contains("heaptape daemon"), "{said}");
}

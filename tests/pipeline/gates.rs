//! Thresholds for CI, and suppressions.

use heaptape_tests::recording::heaptape;
use heaptape_tests::{Outcome, Program, Recording, Target, test_env};
use serde_json::Value;
use std::ffi::OsStr;

fn shop(flags: &[&str]) -> Recording {
    let target = flags.iter().fold(Target::program("leaks/shop.c"), |target, flag| target.flag(*flag));
    Program::new(target.build()).recorded().success().whole()
}

fn lines(said: &Outcome) -> Vec<String> {
    said.text().lines().map(str::to_string).collect()
}

#[test]
fn what_can_be_measured_needs_no_recording() {
    for word in ["leaks", "report", "diff"] {
        for words in [&[word, "--fail-if", "list"][..], &[word, "--fail-if=list"]] {
            let said = heaptape(words.iter().map(OsStr::new)).success().text();
            assert!(said.contains("leaked.growing") && said.contains("diff.live"), "{said}");
        }
    }
    // Of a program that is recorded it is an argument.
    let recording = Program::new("echo").args(["--fail-if", "list"]).recorded().success();
    assert_eq!(recording.outcome.text(), "--fail-if list\n");
    let said = heaptape(["leaks", "/nonexistent"].map(OsStr::new)).exits(2).error();
    assert_eq!(said.matches("No such file").count(), 1, "why is said once: {said}");
}

#[test]
fn gates_fail_with_the_status_that_was_asked_for_and_few_lines() {
    let recording = shop(&[]);
    for (word, gate, status) in [
        ("leaks", "leaked > 0", 1),
        ("leaks", "leaked > 1MiB", 0),
        ("leaks", "leaked.too-little > 40KiB", 1),
        ("leaks", "leaked.growing > 0", 0),
        ("leaks", "leaked.blocks > 51", 0),
        ("leaks", "leaked.blocks >= 51", 1),
        ("report", "peak > 200MiB", 0),
        ("report", "peak > 10KiB", 1),
        ("report", "allocs != 10001", 0),
        ("report", "lost > 0", 0),
    ] {
        let said = recording.heaptape(&[word, "--fail-if", gate]);
        assert_eq!(said.code(), status, "{word} {gate}: {said}");
        assert!(lines(&said).len() <= 20, "{said}");
        let wanted = if status == 0 { "ok: " } else { "FAILED: " };
        assert!(said.text().starts_with(wanted), "{said}");
    }
    let long = Program::new(Target::program("leaks/labelled.c").build()).args(["linear", "long"]).recorded().success();
    assert_eq!(long.heaptape(&["leaks", "--fail-if", "leaked.growing > 40KiB"]).code(), 1);
    assert_eq!(long.heaptape(&["leaks", "--fail-if", "leaked.growing > 50KiB"]).code(), 0);
    let said = recording.heaptape(&["leaks", "--fail-if", "leaked > 0", "--fail-code", "23"]);
    assert_eq!(said.code(), 23);
    assert!(said.text().contains("load_order"), "who leaks: {said}");
    for wrong in ["leaked", "leak > 0", "leaked > 5%", "peak > 3 parsecs"] {
        assert_eq!(recording.heaptape(&["leaks", "--fail-if", wrong]).code(), 2, "{wrong}");
    }
    assert_eq!(recording.heaptape(&["leaks", "--fail-if", "diff.live > 5%"]).code(), 2, "one side alone");
}

#[test]
fn a_comparison_can_be_a_gate() {
    let (old, new) = (shop(&[]), shop(&["-DMORE"]));
    let old = old.folder.to_string_lossy();
    for (gate, status) in [
        ("diff.live > 5%", 1),
        ("diff.live > 11%", 0),
        ("diff.allocated > 400KiB", 1),
        ("diff.allocs > 0", 0),
        ("diff.sites > 1", 0),
    ] {
        let said = new.heaptape(&["diff", "--fail-if", gate, &old]);
        assert_eq!(said.code(), status, "{gate}: {said}");
        assert!(status == 0 || said.text().contains("load_order"), "{said}");
    }
}

#[test]
fn junit_and_sarif_say_the_same() {
    let recording = shop(&[]);
    let place_of = test_env::folder();
    let (junit, sarif) = (place_of.path().join("junit.xml"), place_of.path().join("gate.sarif"));
    let words = ["leaks", "--fail-if", "leaked > 0", "--fail-if", "leaked.slow > 1MiB"];
    let files = ["--junit", &junit.to_string_lossy(), "--sarif", &sarif.to_string_lossy()].map(str::to_string);
    let words: Vec<&str> = words.into_iter().chain(files.iter().map(String::as_str)).collect();
    assert_eq!(recording.heaptape(&words).code(), 1);
    let junit = std::fs::read_to_string(junit).expect("the file");
    assert!(junit.contains("tests=\"2\" failures=\"1\"") && junit.contains("leaked &gt; 0: it is"), "{junit}");
    let sarif: Value = serde_json::from_slice(&std::fs::read(sarif).expect("the file")).expect("JSON");
    assert_eq!(sarif["version"], "2.1.0");
    let results = sarif["runs"][0]["results"].as_array().expect("a list");
    let place = &results[0]["locations"][0]["physicalLocation"];
    assert!(place["artifactLocation"]["uri"].as_str().is_some_and(|uri| uri.ends_with("leaks/shop.c")), "{sarif:#}");
    assert!(place["region"]["startLine"].as_u64() > Some(10));
    // Of the same, relative to the source's root.
    let root = test_env::programs();
    let again = place_of.path().join("relative.sarif");
    let (again, root) = (again.to_string_lossy().into_owned(), root.to_string_lossy().into_owned());
    recording.heaptape(&["leaks", "--fail-if", "leaked > 0", "--sarif", &again, "--source-root", &root]);
    let relative: Value = serde_json::from_slice(&std::fs::read(again).expect("the file")).expect("JSON");
    let artifact = &relative["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"];
    assert_eq!(
        (&artifact["uri"], &artifact["uriBaseId"]),
        (&"leaks/shop.c".into(), &"%SRCROOT%".into()),
        "{relative:#}"
    );
    let said = recording.heaptape(&["leaks", "--json", "--fail-if", "leaked > 0"]);
    let answer: Value = serde_json::from_slice(&said.stdout).expect("JSON");
    assert_eq!(answer["gates"][0]["failed"], true);
}

#[test]
fn suppressions_of_both_dialects_eat_what_they_name_and_unused_ones_are_told() {
    let recording = shop(&[]);
    let place = test_env::folder();
    let file = |name: &str, text: &str| {
        let path = place.path().join(name);
        std::fs::write(&path, text).expect("a file");
        format!("--suppressions={}", path.display())
    };
    let lsan = file("lsan.supp", "# known\nleak:^load_order$\nleak:nobody\n");
    let said = recording.heaptape(&["leaks", &lsan]).success();
    assert!(!said.text().contains("load_order labelled"), "{said}");
    assert!(said.text().contains("lsan.supp:3: nobody suppressed nothing"), "{said}");
    assert!(said.text().contains("48.8 KiB"), "50 blocks of 1000: {said}");
    let valgrind =
        "{\n  known\n  Memcheck:Leak\n  match-leak-kinds: all\n  fun:realloc\n  fun:index_orders\n  fun:main\n}\n";
    let valgrind = file("valgrind.supp", valgrind);
    let said = recording.heaptape(&["leaks", "--json", &lsan, &valgrind]).success();
    let answer: Value = serde_json::from_slice(&said.stdout).expect("JSON");
    assert_eq!(answer["leaks"], Value::Array(Vec::new()), "{said}");
    assert_eq!(answer["suppressions"][0]["blocks"], 50);
    assert_eq!(recording.heaptape(&["leaks", &lsan, &valgrind, "--fail-if", "leaked > 0"]).code(), 0);
    assert_eq!(recording.heaptape(&["leaks", &file("bad.supp", "nonsense\n")]).code(), 2);
    for dialect in ["lsan", "valgrind"] {
        let made = recording.heaptape(&["leaks", &format!("--gen-suppressions={dialect}")]).success();
        let made = file(dialect, &made.text());
        let said = recording.heaptape(&["leaks", "--fail-if", "leaked > 0", &made]);
        assert_eq!(said.code(), 0, "what was generated eats all: {said}");
    }
}

#[test]
fn the_programs_own_suppressions_are_read_from_its_code() {
    for flags in [&["-DSUPPRESSED"][..], &["-DSUPPRESSED", "-O0"], &["-DSUPPRESSED", "-no-pie", "-fno-pie"]] {
        let recording = shop(flags);
        let said = recording.heaptape(&["leaks", "--json"]).success();
        let answer: Value = serde_json::from_slice(&said.stdout).expect("JSON");
        assert_eq!(answer["suppressions"][0]["rule"], "^load_order$", "{flags:?}: {said}");
        assert_eq!(answer["suppressions"][0]["blocks"], 50);
        assert_eq!(answer["suppressions"][1]["blocks"], 0);
        let said = recording.heaptape(&["leaks", "--json", "--no-built-in"]).success();
        let answer: Value = serde_json::from_slice(&said.stdout).expect("JSON");
        assert_eq!(answer["suppressions"], Value::Array(Vec::new()));
    }
}

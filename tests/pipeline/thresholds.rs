//! Thresholds for CI, and suppressions.

use heaptape_tests::recording::heaptape;
use heaptape_tests::{Outcome, Program, Recording, Target, exact, test_env};
use serde_json::Value;
use std::ffi::OsStr;

fn shop(flags: &[&str]) -> Recording {
    let target = flags.iter().fold(Target::program("leaks/shop.c"), |target, flag| target.flag(*flag));
    exactly(Program::new(target.build()).recorded().success().complete(), 0)
}

/// Gives the program's pauses this length, so that a verdict does not depend on how busy the machine is.
fn exactly(mut recording: Recording, pause_ns: u64) -> Recording {
    let copy = recording.directory.path().join("exact");
    exact::write(&recording.folder, &copy, pause_ns);
    recording.folder = copy;
    recording
}

fn lines(output: &Outcome) -> Vec<String> {
    output.text().lines().map(str::to_string).collect()
}

#[test]
fn list_of_measures_needs_no_recording() {
    for command in ["leaks", "report", "diff"] {
        for arguments in [&[command, "--fail-if", "list"][..], &[command, "--fail-if=list"]] {
            let output = heaptape(arguments.iter().map(OsStr::new)).success().text();
            assert!(output.contains("leaked.growing") && output.contains("diff.live"), "{output}");
        }
    }
    // For a recorded program it is an argument.
    let recording = Program::new("echo").args(["--fail-if", "list"]).recorded().success();
    assert_eq!(recording.outcome.text(), "--fail-if list\n");
    let output = heaptape(["leaks", "/nonexistent"].map(OsStr::new)).exits(2).error();
    assert_eq!(output.matches("No such file").count(), 1, "the reason is there once: {output}");
}

#[test]
fn thresholds_fail_with_the_requested_status_and_few_lines() {
    let recording = shop(&[]);
    for (command, threshold, status) in [
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
        let output = recording.heaptape(&[command, "--fail-if", threshold]);
        assert_eq!(output.code(), status, "{command} {threshold}: {output}");
        assert!(lines(&output).len() <= 20, "{output}");
        let wanted = if status == 0 { "ok: " } else { "FAILED: " };
        assert!(output.text().starts_with(wanted), "{output}");
    }
    let labelled = Target::program("leaks/labelled.c").build();
    let long = exactly(Program::new(labelled).args(["linear", "marked"]).recorded().success(), 10_000_000);
    assert_eq!(long.heaptape(&["leaks", "--fail-if", "leaked.growing > 40KiB"]).code(), 1);
    assert_eq!(long.heaptape(&["leaks", "--fail-if", "leaked.growing > 50KiB"]).code(), 0);
    let output = recording.heaptape(&["leaks", "--fail-if", "leaked > 0", "--fail-code", "23"]);
    assert_eq!(output.code(), 23);
    assert!(output.text().contains("load_order"), "the leaking function: {output}");
    for wrong in ["leaked", "leak > 0", "leaked > 5%", "peak > 3 parsecs"] {
        assert_eq!(recording.heaptape(&["leaks", "--fail-if", wrong]).code(), 2, "{wrong}");
    }
    assert_eq!(recording.heaptape(&["leaks", "--fail-if", "diff.live > 5%"]).code(), 2, "one side alone");
}

#[test]
fn diff_supports_thresholds() {
    let (old, new) = (shop(&[]), shop(&["-DMORE"]));
    let old = old.folder.to_string_lossy();
    for (threshold, status) in [
        ("diff.live > 5%", 1),
        ("diff.live > 11%", 0),
        ("diff.allocated > 400KiB", 1),
        ("diff.allocs > 0", 0),
        ("diff.sites > 1", 0),
    ] {
        let output = new.heaptape(&["diff", "--fail-if", threshold, &old]);
        assert_eq!(output.code(), status, "{threshold}: {output}");
        assert!(status == 0 || output.text().contains("load_order"), "{output}");
    }
}

#[test]
fn junit_and_sarif_contain_the_same_failures() {
    let recording = shop(&[]);
    let directory = test_env::folder();
    let (junit, sarif) = (directory.path().join("junit.xml"), directory.path().join("result.sarif"));
    let arguments = ["leaks", "--fail-if", "leaked > 0", "--fail-if", "leaked.slow > 1MiB"];
    let files = ["--junit", &junit.to_string_lossy(), "--sarif", &sarif.to_string_lossy()].map(str::to_string);
    let arguments: Vec<&str> = arguments.into_iter().chain(files.iter().map(String::as_str)).collect();
    assert_eq!(recording.heaptape(&arguments).code(), 1);
    let junit = std::fs::read_to_string(junit).expect("the file");
    assert!(junit.contains("tests=\"2\" failures=\"1\"") && junit.contains("leaked &gt; 0: it is"), "{junit}");
    let sarif: Value = serde_json::from_slice(&std::fs::read(sarif).expect("the file")).expect("JSON");
    assert_eq!(sarif["version"], "2.1.0");
    let results = sarif["runs"][0]["results"].as_array().expect("a list");
    let location = &results[0]["locations"][0]["physicalLocation"];
    assert!(location["artifactLocation"]["uri"].as_str().is_some_and(|uri| uri.ends_with("leaks/shop.c")), "{sarif:#}");
    assert!(location["region"]["startLine"].as_u64() > Some(10));
    // The same file, relative to the root of the sources.
    let root = test_env::programs();
    let again = directory.path().join("relative.sarif");
    let (again, root) = (again.to_string_lossy().into_owned(), root.to_string_lossy().into_owned());
    recording.heaptape(&["leaks", "--fail-if", "leaked > 0", "--sarif", &again, "--source-root", &root]);
    let relative: Value = serde_json::from_slice(&std::fs::read(again).expect("the file")).expect("JSON");
    let artifact = &relative["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"];
    assert_eq!(
        (&artifact["uri"], &artifact["uriBaseId"]),
        (&"leaks/shop.c".into(), &"%SRCROOT%".into()),
        "{relative:#}"
    );
    let output = recording.heaptape(&["leaks", "--json", "--fail-if", "leaked > 0"]);
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(answer["gates"][0]["failed"], true);
}

#[test]
fn lsan_and_valgrind_suppressions_hide_matches_and_unused_ones_are_reported() {
    let recording = shop(&[]);
    let directory = test_env::folder();
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).expect("a file");
        format!("--suppressions={}", path.display())
    };
    let lsan = file("lsan.supp", "# known\nleak:^load_order$\nleak:nobody\n");
    let output = recording.heaptape(&["leaks", &lsan]).success();
    assert!(!output.text().contains("load_order labelled"), "{output}");
    assert!(output.text().contains("lsan.supp:3: nobody suppressed nothing"), "{output}");
    assert!(output.text().contains("48.8 KiB"), "50 blocks of 1000: {output}");
    let valgrind =
        "{\n  known\n  Memcheck:Leak\n  match-leak-kinds: all\n  fun:realloc\n  fun:index_orders\n  fun:main\n}\n";
    let valgrind = file("valgrind.supp", valgrind);
    let output = recording.heaptape(&["leaks", "--json", &lsan, &valgrind]).success();
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(answer["leaks"], Value::Array(Vec::new()), "{output}");
    assert_eq!(answer["suppressions"][0]["blocks"], 50);
    assert_eq!(recording.heaptape(&["leaks", &lsan, &valgrind, "--fail-if", "leaked > 0"]).code(), 0);
    assert_eq!(recording.heaptape(&["leaks", &file("bad.supp", "nonsense\n")]).code(), 2);
    for dialect in ["lsan", "valgrind"] {
        let made = recording.heaptape(&["leaks", &format!("--gen-suppressions={dialect}")]).success();
        let made = file(dialect, &made.text());
        let output = recording.heaptape(&["leaks", "--fail-if", "leaked > 0", &made]);
        assert_eq!(output.code(), 0, "generated suppressions hide all: {output}");
    }
}

#[test]
fn suppressions_of_the_program_are_read_from_its_code() {
    for flags in [&["-DSUPPRESSED"][..], &["-DSUPPRESSED", "-O0"], &["-DSUPPRESSED", "-no-pie", "-fno-pie"]] {
        let recording = shop(flags);
        let output = recording.heaptape(&["leaks", "--json"]).success();
        let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(answer["suppressions"][0]["rule"], "^load_order$", "{flags:?}: {output}");
        assert_eq!(answer["suppressions"][0]["blocks"], 50);
        assert_eq!(answer["suppressions"][1]["blocks"], 0);
        let output = recording.heaptape(&["leaks", "--json", "--no-built-in"]).success();
        let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(answer["suppressions"], Value::Array(Vec::new()));
    }
}

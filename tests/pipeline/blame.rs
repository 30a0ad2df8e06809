//! Every report, threshold and export blames the same frame, for inlined functions and in
//! interpreters.

use heaptape_tests::recording::heaptape;
use heaptape_tests::wait::until;
use heaptape_tests::{Daemon, Program, Recording, Target, test_env};
use serde_json::Value;
use std::fs;

fn json(recording: &Recording, arguments: &[&str]) -> Value {
    let output = recording.heaptape(&[arguments, &["--json"]].concat());
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {output}"))
}

/// Returns the function that a stack in JSON blames.
fn blamed(stack: &Value) -> &str {
    let frames = stack.as_array().expect("a stack");
    let blamed: Vec<&Value> = frames.iter().filter(|frame| frame["blamed"] == true).collect();
    assert_eq!(blamed.len(), 1, "{stack:#}");
    blamed[0]["function"].as_str().expect("a name")
}

/// Returns each command with the location in its first row.
fn first_locations(recording: &Recording) -> Vec<(String, String)> {
    let mut locations = Vec::new();
    let mut say = |command: &str, location: String| locations.push((command.to_string(), location));
    let text = |arguments: &[&str]| recording.heaptape(arguments).text();
    let leaks = text(&["leaks"]);
    let mut lines = leaks.lines();
    say("leaks, headline", lines.next().and_then(|line| line.split(": ").nth(1)).unwrap_or_default().into());
    let mut entry = lines.skip_while(|line| !line.starts_with("1. "));
    say("leaks, entry", entry.nth(1).unwrap_or_default().trim().into());
    say("leaks --json", blamed(&json(recording, &["leaks"])["leaks"][0]["stack"]).into());
    for (command, list) in [("peak", "holders"), ("sites", "sites"), ("lifetimes", "sites")] {
        let answer = json(recording, &[command]);
        let row = &answer["processes"][0][list][0];
        if !row.is_null() && command != "lifetimes" {
            say(command, row["place"].as_str().expect("a location").into());
            say(&format!("{command} --json"), blamed(&row["stack"]).into());
        }
    }
    let report = json(recording, &["report"]);
    for list in ["live", "peak"] {
        say(&format!("report, {list}"), report["top"][list][0]["place"].as_str().expect("a location").into());
    }
    let folder = recording.folder.to_string_lossy().into_owned();
    let diff = recording.heaptape(&["diff", "--json", "--from", "1%"]);
    let diff: Value = serde_json::from_slice(&diff.stdout).expect("JSON");
    say("diff", diff["changes"][0]["functions"][0].as_str().expect("a function").into());
    let threshold = recording.heaptape(&["leaks", "--json", "--fail-if", "leaked.growing > 0"]);
    let threshold: Value = serde_json::from_slice(&threshold.stdout).expect("JSON");
    let culprit = &threshold["gates"][0]["culprits"][0];
    say("threshold", culprit["stack"][0].as_str().expect("a frame").into());
    let directory = test_env::folder();
    let table = directory.path().join("stacks.json");
    let out = table.to_string_lossy().into_owned();
    let _ = heaptape(["export", "--to", "json", "-o", &out, &folder]).success();
    let rows = fs::read_to_string(&table).expect("the rows");
    let rows: Vec<Value> = rows.lines().filter_map(|row| serde_json::from_str(row).ok()).collect();
    let most = rows.iter().max_by_key(|row| row["alloc_bytes"].as_u64()).expect("a row");
    say("export", blamed(&most["stack"]).into());
    locations
}

fn all_blame(recording: &Recording, function: &str) {
    let wrong: Vec<_> =
        first_locations(recording).into_iter().filter(|(_, location)| !location.starts_with(function)).collect();
    assert!(wrong.is_empty(), "{function} was expected: {wrong:#?}");
}

#[test]
fn inlined_rust_functions_are_blamed_by_every_command() {
    let recording = Program::new(Target::program("inlined.rs").build()).recorded().success();
    all_blame(&recording, "inlined::metrics::feed");
}

#[test]
fn inlined_cpp_functions_are_blamed_by_every_command() {
    let recording = Program::new(Target::program("inlined.cpp").build()).recorded();
    all_blame(&recording, "main::{lambda}::operator()");
    // A row states how many lines it sums up. By line, each line has its own row.
    let locations = |arguments: &[&str]| -> Vec<String> {
        let answer = json(&recording, arguments);
        let rows = answer["processes"][0]["sites"].as_array().expect("rows").clone();
        rows.iter().map(|row| row["place"].as_str().expect("a location").to_string()).collect()
    };
    let of_session = |rows: Vec<String>| -> Vec<String> {
        rows.into_iter().filter(|row| row.starts_with("shop::session_for") || row.contains(".cpp:")).collect()
    };
    let found = of_session(locations(&["sites"]));
    for start in [
        "shop::session_for::{lambda}::operator() inlined.cpp:29,30 < shop::Cache<shop::Session>::get_or_make<",
        "shop::session_for inlined.cpp:33 < main::{lambda}::operator()",
        "main::{lambda}::operator() inlined.cpp:42",
    ] {
        assert!(found.iter().any(|row| row.starts_with(start)), "{start}: {found:#?}");
    }
    let found = of_session(locations(&["sites", "--by", "line"]));
    for line in [29, 30, 33, 42] {
        assert!(found.iter().any(|row| row.ends_with(&format!("inlined.cpp:{line}"))), "{line}: {found:#?}");
    }
}

/// The callers of an allocator of the program are blamed if the user names it as a wrapper.
#[test]
fn named_wrappers_are_skipped() {
    let recording = Program::new(Target::program("inlined.cpp").build()).recorded();
    let functions = |arguments: &[&str]| -> Vec<String> {
        let answer = json(&recording, arguments);
        let rows = answer["processes"][0]["sites"].as_array().expect("rows");
        rows.iter().map(|row| blamed(&row["stack"]).to_string()).collect()
    };
    assert!(functions(&["sites"]).iter().any(|function| function.starts_with("shop::")));
    let found = functions(&["sites", "--wrapper", "shop::session_for*", "--wrapper", "shop::Cache<*"]);
    assert!(!found.iter().any(|function| function.starts_with("shop::")), "{found:?}");
    assert!(found.iter().any(|function| function == "main::{lambda}::operator()"), "{found:?}");
    // A module is named by the name of its file.
    let found = functions(&["sites", "--wrapper", "inlined"]);
    assert!(!found.iter().any(|function| function == "main"), "{found:?}");
}

/// Exports blame the same frames as the reports, also with wrappers that the user names.
#[test]
fn exports_skip_named_wrappers() {
    let recording = Program::new(Target::program("inlined.cpp").build()).recorded();
    let exported = |arguments: &[&str], variable: &str| -> Vec<String> {
        let mut export = std::process::Command::new(test_env::command());
        let export = export.args(["export", "--format", "json", "-o", "-"]).args(arguments).arg(&recording.folder);
        let output = export.env("HEAPTAPE_WRAPPERS", variable).output().expect("heaptape runs");
        let rows = String::from_utf8(output.stdout).expect("text");
        let rows = rows.lines().filter_map(|row| serde_json::from_str::<Value>(row).ok());
        rows.filter(|row| !row["stack"].is_null()).map(|row| blamed(&row["stack"]).to_string()).collect()
    };
    let of_shop = |found: &[String]| found.iter().any(|function| function.starts_with("shop::"));
    assert!(of_shop(&exported(&[], "")));
    let by_option = exported(&["--wrapper", "shop::session_for*", "--wrapper", "shop::Cache<*"], "");
    let by_variable = exported(&[], "shop::session_for*; shop::Cache<*");
    for found in [by_option, by_variable] {
        assert!(!of_shop(&found), "{found:?}");
        assert!(found.iter().any(|function| function == "main::{lambda}::operator()"), "{found:?}");
    }
}

#[test]
fn a_single_outer_frame_is_never_hidden() {
    let recording = Program::new(heaptape_tests::target::c("leaks_deep")).recorded();
    let stacks =
        |arguments: &[&str]| recording.heaptape(&[&["leaks", "--all", "--top", "1"], arguments].concat()).text();
    assert!(stacks(&["--frames", "3"]).contains("… 3 outer frames"), "{}", stacks(&["--frames", "3"]));
    assert!(!stacks(&["--frames", "all"]).contains("outer frame"));
    assert!(stacks(&["--frames", "all"]).contains("__libc_start"), "{}", stacks(&["--frames", "all"]));
    for frames in ["5", "6"] {
        let output = stacks(&["--frames", frames]);
        assert!(output.contains("main leaks_deep.c") && !output.contains('…'), "{output}");
    }
    assert_eq!(recording.heaptape(&["leaks", "--frames", "0"]).code(), 2);
}

/// A `Map` of Node.js grows, and is freed when the program ends.
#[test]
fn growth_freed_at_exit_is_in_the_headline() {
    let directory = test_env::folder();
    let script = directory.path().join("leak.js");
    let text = "const kept = new Map();\nfunction remember(at) { kept.set(at, Buffer.allocUnsafeSlow(4096 + at % 64)); }\n\
                // Most of the run grows, however long the machine takes to start it.\n\
                const start = process.uptime(), length = Math.max(1, 5 * start);\n\
                let at = 0;\nconst timer = setInterval(() => {\n\
                const due = 6000 * Math.min(1, (process.uptime() - start) / length);\n\
                while (at < due) remember(at++);\nif (at >= 6000) clearInterval(timer); }, 5);\n";
    fs::write(&script, text).expect("a script");
    // Without optimized code, which has no frames for functions that it inlines.
    let flags = ["--perf-basic-prof", "--interpreted-frames-native-stack", "--no-opt"];
    let node = Program::new(test_env::need("node")).args(flags).arg(&script).folder(directory.path());
    let recording = node.recorded().success();
    let output = recording.heaptape(&["leaks"]).text();
    let headline = output.lines().next().unwrap_or_default();
    assert!(headline.contains("MiB grew through the run and were freed only at exit: "), "{output}");
    assert!(headline.contains("leak.js:"), "{output}");
    assert!(output.contains("\n1. freed at exit: grew to "), "{output}");
    let answer = json(&recording, &["leaks"]);
    // 23.5 MiB are allocated; what comes last may be freed in the same sixteenth of the run.
    assert!(answer["total"]["grown_bytes"].as_u64() > Some(8 << 20), "{}", answer["total"]);
    let rows = answer["freed_at_exit"].as_array().expect("rows");
    let sum: u64 = rows.iter().filter_map(|row| row["grown_bytes"].as_u64()).sum();
    assert!(sum >= answer["total"]["grown_bytes"].as_u64().unwrap_or(u64::MAX), "{sum}");
    assert!(["remember", "(anonymous)"].contains(&blamed(&rows[0]["stack"])), "{:#}", rows[0]);
    // None of it is leaked. It has a threshold of its own.
    let threshold = |threshold: &str| recording.heaptape(&["leaks", "--fail-if", threshold]);
    assert_eq!(threshold("leaked.growing > 4MiB").code(), 0);
    let failed = threshold("freed-at-exit > 4MiB");
    assert_eq!(failed.code(), 1);
    assert!(failed.text().contains("leak.js:"), "{failed}");
}

/// Returns what the scripts of the page that compares two recordings compute.
fn page_of(before: &Recording, after: &Recording) -> Value {
    let directory = test_env::folder();
    let page = directory.path().join("page.html");
    let arguments = ["export", "--format", "html", "-o"].map(std::ffi::OsString::from);
    let files = [page.clone().into(), before.folder.clone().into(), after.folder.clone().into()];
    let _ = heaptape(arguments.into_iter().chain(files)).success();
    heaptape_tests::page::read(&page, &["timeline.js", "tree.js"])
}

/// On the axis of the longer run, the curve of the shorter one ends with its process, on both
/// sides.
#[test]
fn page_curve_ends_with_its_process() {
    let run = |pause: &str| Program::new(Target::program("two_lives.c").build()).arg(pause).recorded().success();
    let (short, long) = (run("80"), run("200"));
    let length =
        |recording: &Recording| json(recording, &["report"])["processes"][0]["duration_ns"].as_f64().expect("ns");
    let share = length(&short) / length(&long);
    for (before, after, shorter) in [(&short, &long, 0), (&long, &short, 1)] {
        let answer = page_of(before, after);
        let slices = answer["slices"].as_f64().expect("a number");
        let end = |side: usize| answer["ends"][side].as_f64().expect("a number") / slices;
        assert_eq!(end(1 - shorter), 1.0, "{}", answer["ends"]);
        assert!((end(shorter) - share).abs() < 0.02, "{} of {slices}, expected {share}", answer["ends"]);
    }
}

/// The page of two builds whose files have different names compares their functions.
#[test]
fn page_compares_programs_with_different_file_names() {
    let recorded = |name: &str| {
        let built = Target::program("leaks_deep.c").named(name).build();
        Program::new(built).recorded().success()
    };
    let (before, after) = (recorded("deep_1.2"), recorded("deep_2.0"));
    let answer = page_of(&before, &after);
    let functions = answer["functions"].as_array().expect("a list");
    let leaf: Vec<&Value> = functions.iter().filter(|function| function[0] == "leaf").collect();
    assert_eq!(leaf.len(), 1, "one function of both sides: {leaf:?}");
    assert_eq!(leaf[0][1], "deep_2.0");
    assert!(answer["blamed"].as_array().is_some_and(|rows| rows.iter().any(|row| row == "leaf")), "{answer}");
}

/// A row that sums up two lines has the longest lifetime of both.
#[test]
fn mean_lifetime_is_at_most_the_longest() {
    let recording = Program::new(Target::program("two_lives.c").build()).arg("50").recorded().success();
    let answer = json(&recording, &["lifetimes"]);
    let rows = answer["processes"][0]["sites"].as_array().expect("rows");
    let number = |row: &Value, key: &str| row[key].as_u64().expect("a number");
    for row in rows {
        assert!(number(row, "mean") <= number(row, "longest"), "{row:#}");
    }
    let work = rows.iter().find(|row| row["place"].as_str().is_some_and(|row| row.starts_with("work")));
    let work = work.unwrap_or_else(|| panic!("{answer:#}"));
    assert_eq!((number(work, "sites"), number(work, "died")), (3, 22), "{work:#}");
    // Two of 22 live for 50 ms, the others for some microseconds.
    assert!(number(work, "longest") >= 50_000_000, "{work:#}");
    assert!((4_000_000..number(work, "longest") / 2).contains(&number(work, "mean")), "{work:#}");
}

/// Live blocks of a running process are not leaks.
#[test]
fn blocks_of_a_running_process_are_still_live() {
    let mut daemon = Daemon::start(&["--mode", "profile", "--snapshot", "300ms"]);
    let running = daemon.spawn(&Target::program("two_lives.c").build(), &["60000"], None);
    let leaks = || daemon.heaptape(&["leaks"], &daemon.epochs(&[])).text();
    let has_blocks = |output: &str| output.starts_with("128 B in 2 blocks ");
    until("blocks of the running process are known", || has_blocks(&leaks()));
    let output = leaks();
    assert!(output.lines().next().is_some_and(|first| first.contains(" still live, from ")), "{output}");
    assert!(!output.contains("never freed"), "{output}");
    drop(running);
    until("the process is known to have ended", || leaks().contains(" never freed, from "));
    daemon.stop();
}

/// Blocks that the run-time library keeps are no leaks on the page either.
#[test]
fn page_omits_what_leaks_omits() {
    let recording = Program::new(Target::program("inlined.cpp").build()).recorded();
    let answer = json(&recording, &["leaks"]);
    let kept: u64 = answer["leaks"]
        .as_array()
        .expect("rows")
        .iter()
        .filter(|row| !row["kept_on_purpose"].is_null())
        .filter_map(|row| row["bytes"].as_u64())
        .sum();
    let directory = test_env::folder();
    let page = directory.path().join("page.html");
    let arguments = ["export", "--format", "html", "-o"].map(std::ffi::OsString::from);
    let files = [page.clone().into(), recording.folder.clone().into()];
    let _ = heaptape(arguments.into_iter().chain(files)).success();
    let html = fs::read_to_string(&page).expect("the page");
    assert!(kept > 0 && html.contains(&format!("\"kept\":[{kept},")), "{kept}");
}

/// CPython allocates small objects itself. The reports state how to record them, also for a
/// stripped interpreter.
#[test]
fn recording_python_without_pymalloc_is_recommended() {
    let advice = "note: CPython's own allocator hides objects of up to 512 bytes: record with PYTHONMALLOC=malloc";
    let hints = |recording: &Recording| {
        ["leaks", "report"].map(|command| recording.heaptape(&[command]).text().matches(advice).count())
    };
    let script = "kept = [str(number) * 3 for number in range(20000)]";
    let python = || Program::new("/usr/bin/python3").args(["-c", script]);
    assert_eq!(hints(&python().recorded().success()), [1, 1]);
    assert_eq!(hints(&python().env("PYTHONMALLOC", "malloc").recorded().success()), [0, 0]);
    // The functions are recognized by their names, if any, and only in CPython.
    let small = |name: &str, flag: &str| {
        let built = Target::program("pymalloc.c").named(name).flag(flag).build();
        hints(&Program::new(built).recorded().success())
    };
    assert_eq!(small("python3.99", "-DARENAS"), [1, 1]);
    assert_eq!(small("python3.98", "-DRAW"), [0, 0]);
    assert_eq!(small("snake", "-DARENAS"), [0, 0]);
}

/// Names of Python's functions need an option, which one note states, with the command.
#[test]
fn recording_names_of_python_functions_is_explained_once() {
    let notes = |recording: &Recording| {
        let of = |command: &str| {
            let text = recording.heaptape(&[command]).text();
            let notes = text.lines().filter(|line| line.contains("Python") && line.contains(" -X perf "));
            notes.map(str::to_string).collect::<Vec<_>>()
        };
        let [leaks, report] = ["leaks", "report"].map(of);
        assert_eq!(leaks, report);
        leaks
    };
    let script = "kept = [bytearray(1000) for number in range(2000)]";
    let python = || Program::new("/usr/bin/python3").args(["-c", script]);
    let recording = python().recorded().success();
    let [note] = &notes(&recording)[..] else { panic!("one note: {:?}", notes(&recording)) };
    assert!(note.starts_with("note: Python"), "{note}");
    assert!(note.contains(": heaptape record -- ") && note.ends_with(&format!(" -X perf -c '{script}'")), "{note}");
    assert!(notes(&Program::new(Target::program("own_pool.cpp").build()).recorded().success()).is_empty());
}

/// A program that is started by a symbolic link has the name of the link, as with busybox or
/// redis-server.
#[test]
fn frames_of_a_symlinked_program_have_the_name_of_the_link() {
    let built = Target::program("leaks_deep.c").named("deep_tool").flag("-s").build();
    let directory = test_env::folder();
    let link = directory.path().join("deep_server");
    std::os::unix::fs::symlink(&built, &link).expect("a link");
    let (called, plain) = (Program::new(&link).recorded().success(), Program::new(&built).recorded().success());
    for command in ["leaks", "report", "sites"] {
        let (called, plain) = (called.heaptape(&[command]).text(), plain.heaptape(&[command]).text());
        assert!(called.contains("deep_server+0x") && !called.contains("deep_tool+0x"), "{called}");
        assert!(plain.contains("deep_tool+0x"), "{plain}");
    }
}

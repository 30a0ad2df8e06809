//! Exit statuses as in `docs/exit-status.md`: a command without data reports that and never passes.

use heaptape_tests::recording::heaptape;
use heaptape_tests::{Outcome, Program, Recording, Target, lossy, test_env};
use serde_json::Value;
use std::ffi::OsStr;
use std::path::Path;

/// Commands, two of them with a threshold.
const COMMANDS: &[&[&str]] = &[
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

fn run_on(arguments: &[&str], folder: &Path) -> Outcome {
    heaptape(arguments.iter().map(OsStr::new).chain([folder.as_os_str()]))
}

fn shop() -> Recording {
    Program::new(Target::program("leaks/shop.c").build()).recorded().success().complete()
}

#[track_caller]
fn no_answer(output: Outcome, why: &str) {
    let output = output.exits(2);
    assert!(output.error().contains(why), "{why}: {output}");
    assert_eq!(output.text(), "", "nothing that looks like an answer");
}

#[test]
fn empty_recording_exits_with_2() {
    let program = Program::new(Target::program("small.c").flag("-static").flag("-s").named("nothing-stripped").build());
    let recording = program.recorded();
    assert!(!recording.outcome.error().contains("next:"), "there is nothing to go on with: {}", recording.outcome);
    for arguments in COMMANDS {
        let output = recording.heaptape(arguments);
        no_answer(output, "nothing was recorded");
        assert!(recording.heaptape(arguments).error().contains("static"), "{arguments:?} says why");
    }
    let folder = recording.folder.to_string_lossy().into_owned();
    no_answer(recording.heaptape(&["diff", &folder]), "nothing was recorded");
    no_answer(recording.heaptape(&["diff", "--fail-if", "diff.live > 0", &folder]), "nothing was recorded");
    no_answer(recording.heaptape(&["export", "--format", "csv"]), "nothing was recorded");
    let output = recording.heaptape(&["report"]).exits(2);
    assert!(output.text().contains("no process was recorded"), "{output}");
    let output = recording.heaptape(&["report", "--json"]).exits(2);
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(answer["not_traced"][0]["why"].as_str().is_some_and(|why| why.contains("static")), "{output}");
}

#[test]
fn unmatched_names_exit_with_2_and_list_similar_names() {
    let recording = shop();
    for (option, name, hint) in [
        ("--function", "load_ordre", "load_order"),
        ("--module", "shopp", "shop"),
        ("--thread", "no-such-thread", "no thread no-such-thread"),
        ("--process", "1", ".shop"),
        ("--program", "shpo", "shop"),
    ] {
        for arguments in COMMANDS.iter().filter(|arguments| arguments[0] != "report") {
            no_answer(recording.heaptape(&[arguments, &[option, name][..]].concat()), hint);
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
    no_answer(run_on(&["leaks", "--function", "nobody"], profile), "nobody");
    no_answer(run_on(&["leaks", "--thread", "1"], profile), "needs events");
    no_answer(run_on(&["sites", "--function", "load_order"], profile), "needs events");
    let output = run_on(&["leaks", "--function", "load_order", "--fail-if", "leaked.blocks != 50"], profile).success();
    assert!(output.text().contains("leaked.blocks = 50"), "{output}");
}

#[test]
fn empty_time_ranges_exit_with_2() {
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
        for arguments in COMMANDS.iter().filter(|arguments| arguments[0] != "report") {
            no_answer(recording.heaptape(&[arguments, range].concat()), why);
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
    no_answer(run_on(&["sizes", "--from", "1ms"], &trace), "no times");
}

#[test]
fn incomplete_recording_warns_and_strict_exits_with_3() {
    let recording = shop();
    let directory = test_env::folder();
    let folder = directory.path().join("lossy");
    assert!(lossy::write(&recording.folder, &folder, 100, 30, 7919) > 0);
    for arguments in COMMANDS {
        for (path, warned) in [(&recording.folder, false), (&folder, true)] {
            let output = run_on(arguments, path).success();
            assert_eq!(output.error().contains("incomplete"), warned, "{arguments:?}: {output}");
            run_on(&[arguments, &["--strict"][..]].concat(), path).exits(if warned { 3 } else { 0 });
        }
    }
    let leaks = |threshold: &str| run_on(&["leaks", "--strict", "--fail-if", threshold], &folder).code();
    assert_eq!((leaks("leaked > 0"), leaks("leaked > 1GiB")), (1, 3), "a failed threshold is certain");
    let (a, b) = (recording.folder.to_string_lossy().into_owned(), &folder);
    run_on(&["diff", &a], b).success();
    run_on(&["diff", "--strict", &a], b).exits(3);
    run_on(&["verify"], b).exits(1);
    // Of several, each is checked, and the worst one counts.
    let both = run_on(&["verify", &a], b).exits(1).text().to_owned();
    assert!(both.starts_with(&a) && both.contains("complete\n") && both.contains("missing or wrong"), "{both}");
    assert_eq!(run_on(&["verify", &a], &recording.folder).code(), 0);
    let worst = run_on(&["verify", "/nonexistent/recording", &a], b).exits(2);
    assert!(worst.error().contains("/nonexistent/recording") && worst.text().contains("missing or wrong"), "{worst}");
}

#[test]
fn threshold_prints_value_and_limit() {
    let recording = shop();
    let output = recording.heaptape(&["leaks", "--fail-if", "leaked.growing > 1GiB"]).success();
    assert_eq!(output.text().lines().count(), 1, "{output}");
    assert!(
        output.text().starts_with("ok: leaked.growing = ") && output.text().ends_with("(limit: > 1GiB)\n"),
        "{output}"
    );
    let output = recording.heaptape(&["leaks", "--fail-if", "leaked.blocks>0"]).exits(1);
    assert!(output.text().starts_with("FAILED: leaked.blocks = 51 (limit: >0)\n"), "{output}");
    let more = Program::new(Target::program("leaks/shop.c").flag("-DMORE").build()).recorded().success();
    let old = recording.folder.to_string_lossy().into_owned();
    let output = more.heaptape(&["diff", "--fail-if", "diff.live > 0", &old]).exits(1).text();
    assert!(output.starts_with("FAILED: diff.live = +"), "{output}");
    assert!(output.contains("KiB live in 0 blocks") && output.contains("load_order shop.c:"), "{output}");
    let profile = &recording.files("profile.mptl")[0];
    let answer = run_on(&["report", "--fail-if", "peak > 1"], profile).exits(2);
    assert!(answer.error().contains("peak cannot be measured"), "{answer}");
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
        let threshold = format!("leaked.blocks != {blocks}");
        let output = recording.heaptape(&["leaks", "--function", name, "--fail-if", &threshold]);
        assert_eq!(output.code(), 0, "{name}: {output}");
    }
}

#[test]
fn programs_of_one_pid_are_distinguished() {
    let recording = Program::new(Target::program("leaks/lru.cpp").build()).arg("chain").recorded().success();
    let processes = recording.about().processes;
    assert_eq!(processes.len(), 2, "{processes:?}");
    let pid = processes[0].pid.to_string();
    for arguments in [&["leaks"][..], &["report"], &["sites"], &["leaks", "--fail-if", "leaked > 1GiB"]] {
        let output = recording.heaptape(&[arguments, &["--process", &pid][..]].concat()).success();
        assert!(output.text().contains(&format!("pid {pid} ran 2 programs")), "{output}");
        let output = recording.heaptape(&[arguments, &["--process", &processes[1].folder][..]].concat()).success();
        assert!(!output.text().contains("ran 2 programs"), "{output}");
    }
    let threshold =
        |folder: &str| recording.heaptape(&["leaks", "--process", folder, "--fail-if", "leaked.blocks < 50"]).code();
    assert_eq!(
        (threshold(&processes[0].folder), threshold(&processes[1].folder)),
        (1, 0),
        "only the second one allocates"
    );
}

#[test]
fn short_lived_processes_are_summarized() {
    let line = "for i in 1 2 3 4 5 6 7 8 9 10; do ls / > /dev/null; done; /usr/bin/python3 -c 'print(len([str(i) for i in range(50000)]))'";
    let recording = Program::new("bash").args(["-c", line]).recorded().success();
    let all = recording.about().processes.len();
    assert!(all >= 12, "{all}");
    let heads = |output: &Outcome| output.text().lines().filter(|line| line.contains(" (pid ")).count();
    for command in ["timeline", "threads"] {
        let output = recording.heaptape(&[command]).success();
        assert!(output.text().contains(" short-lived process") && heads(&output) < all, "{output}");
        assert!(output.text().contains("python3"), "what did most is listed: {output}");
        let output = recording.heaptape(&[command, "--all-processes"]).success();
        assert!(!output.text().contains("short-lived") && heads(&output) == all, "{output}");
        let output = recording.heaptape(&[command, "--json"]).success();
        let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(answer["processes"].as_array().map(Vec::len), Some(all), "JSON has them all");
    }
    let output = recording.heaptape(&["report"]).success();
    assert!(output.text().contains(" short-lived process"), "{output}");
    let is_row = |line: &&str| line.contains(", exit 0") || line.contains(", replaced by another program");
    let rows = |output: &Outcome| output.text().lines().filter(is_row).count();
    assert_eq!(rows(&recording.heaptape(&["report", "--all-processes"]).success()), all);
    let output = recording.heaptape(&["report", "--json", "--program", "l?"]).success();
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(answer["processes"].as_array().map(Vec::len), Some(10), "{output}");
}

#[test]
fn dump_of_a_directory_lists_its_files() {
    let recording = shop();
    let output = recording.heaptape(&["dump"]).exits(2);
    assert!(output.error().contains("events.tape") && output.error().contains("recording.json"), "{output}");
    let empty = test_env::folder();
    let answer = run_on(&["dump"], empty.path()).exits(2);
    assert!(answer.error().contains("not a recording"), "{answer}");
    let output = heaptape([OsStr::new("epochs"), "--state".as_ref(), empty.path().join("none").as_os_str()]).exits(2);
    assert!(output.error().contains("/none") && output.error().contains("heaptape daemon"), "{output}");
    let none = empty.path().join("none");
    let output = heaptape([OsStr::new("why"), "shop".as_ref(), "--state".as_ref(), none.as_os_str()]).exits(2);
    assert!(output.error().contains("/none") && output.error().contains("heaptape daemon"), "{output}");
}

/// A reader that has seen enough (`head -1`) is no failure.
#[test]
fn reader_that_leaves_is_no_failure() {
    let recording =
        Program::new("perl").args(["-e", "$x{$_} = [$_] for 1..30000; delete $x{$_} for 1..30000"]).recorded();
    let recording = recording.success();
    let (traces, tapes) = (recording.files("trace.mtrc"), recording.files("events.tape"));
    let (Some(trace), Some(tape)) = (traces.first(), tapes.first()) else { panic!("{}", recording.outcome) };
    let commands: [&[&OsStr]; 4] = [
        &["dump".as_ref(), trace.as_ref()],
        &["dump".as_ref(), tape.as_ref()],
        &["stream".as_ref(), recording.folder.as_ref()],
        &["gprof".as_ref(), recording.folder.as_ref()],
    ];
    for command in commands {
        let mut child = std::process::Command::new(test_env::command())
            .args(command)
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .expect("heaptape");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("its end");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !error.contains("Broken pipe"), "{command:?}: {}: {error}", output.status);
    }
}

/// A pipe is read once, where that suffices, and refused otherwise.
#[test]
fn pipes_are_read_once_or_refused() {
    let recording = shop();
    let folder = test_env::folder();
    let trace = folder.path().join("trace");
    let to = ["export", "--format", "mtrc", "-o"].map(OsStr::new);
    heaptape(to.into_iter().chain([trace.as_os_str(), recording.folder.as_os_str()])).success();
    let of_pipe = |command: &str| {
        let line = format!("{} {command} <(cat {})", test_env::command().display(), trace.display());
        Program::new("bash").args(["-c", &line]).plain()
    };
    let (dumped, shown) = (of_pipe("dump").success(), of_pipe("mptrace").success());
    assert_eq!(dumped.text(), run_on(&["dump"], &trace).success().text());
    assert_eq!(shown.text(), run_on(&["mptrace"], &trace).success().text());
    let refused = of_pipe("leaks").exits(2);
    assert!(refused.error().contains("not a regular file"), "{refused}");
    let device = Path::new("/dev/zero");
    for (command, status) in [("dump", 2), ("mprof", 1), ("mptrace", 1), ("mleak", 1), ("dcpicat", 2)] {
        let refused = run_on(&[command], device).exits(status);
        assert!(refused.error().contains("/dev/zero: a device, not a file or a pipe"), "{refused}");
    }
    let leaks = recording.heaptape(&["leaks", "--suppressions", "/dev/zero"]);
    assert_eq!(leaks.code(), 2, "{leaks}");
    assert!(leaks.error().contains("/dev/zero: larger than 16384 KiB"), "{leaks}");
    let gprof = run_on(&["gprof"], device).exits(2);
    assert!(gprof.error().contains("/dev/zero: not a regular file"), "{gprof}");
}

/// A check of several recordings is one answer in JSON, also about what cannot be read.
#[test]
fn verify_answers_for_several_recordings_in_json() {
    let recording = shop();
    let folder = test_env::folder();
    let garbage = folder.path().join("garbage");
    std::fs::write(&garbage, "no recording").expect("a file");
    let run = ["verify", "--json"].map(OsStr::new);
    let checked = heaptape(run.into_iter().chain([recording.folder.as_os_str(), garbage.as_os_str()]));
    assert_eq!(checked.code(), 2, "{checked}");
    let answer: Value = serde_json::from_str(&checked.text()).expect("JSON");
    let [good, bad] = [&answer["recordings"][0], &answer["recordings"][1]];
    assert_eq!((&good["complete"], &bad["complete"]), (&true.into(), &false.into()), "{checked}");
    let process = &good["processes"][0];
    let number = |key: &str| process[key].as_u64().unwrap_or_else(|| panic!("{key}: {checked}"));
    let events = ["allocs", "resizes", "frees"].iter().map(|key| number(key)).sum::<u64>();
    assert_eq!((number("emitted_events"), number("recorded_events"), number("lost_events")), (events, events, 0));
    assert!(bad["error"].as_str().is_some_and(|error| error.contains("garbage")), "{checked}");
    let checked = heaptape(run.into_iter().chain([recording.folder.as_os_str()])).success();
    let answer: Value = serde_json::from_str(&checked.text()).expect("JSON");
    assert_eq!(answer["recordings"].as_array().map(Vec::len), Some(1), "{checked}");
    let tape = &recording.files("events.tape")[0];
    let bytes = std::fs::read(tape).expect("the tape");
    std::fs::write(tape, &bytes[..bytes.len() * 2 / 3]).expect("a truncated tape");
    let checked = heaptape(run.into_iter().chain([recording.folder.as_os_str()])).exits(1);
    let answer: Value = serde_json::from_str(&checked.text()).expect("JSON");
    let process = &answer["recordings"][0]["processes"][0];
    assert_eq!((&answer["recordings"][0]["complete"], &process["complete"]), (&false.into(), &false.into()));
    assert_ne!(process["missing"].as_array().map(Vec::len), Some(0), "{checked}");
}

//! The labeled set: programs with one known leak per mode, and the verdict of `heaptape leaks` with
//! its default settings. The same recordings with one event in a hundred lost may have an uncertain
//! verdict, but no wrong one.

use heaptape_tests::recording::heaptape;
use heaptape_tests::wait::until;
use heaptape_tests::{Daemon, Program, Recording, Target, exact, lossy, target, test_env};
use serde_json::Value;
use std::path::Path;

/// Mode, function that allocates, verdict, blocks left.
type LabelledRow = (&'static str, &'static str, &'static str, u64);

#[rustfmt::skip]
const LABELLED: &[LabelledRow] = &[
    ("linear", "linear", "growing", 1000), ("copied_text", "copied_text", "growing", 400), ("half_freed", "half_freed", "growing", 600),
    ("rare", "rare", "slow", 9), ("rare_path", "rare_path", "slow", 83), ("alone", "alone", "growing", 40),
    ("built_text", "built_text", "growing", 400), ("arena_chunk", "arena_chunk", "growing", 40),
    ("thread_state", "thread_state", "growing", 100), ("backlog", "backlog", "growing", 600), ("entry", "entry", "bounded-cache", 64),
    ("mixed_entry", "mixed_entry", "bounded-cache", 64), ("lost_entry", "lost_entry", "slow", 78), ("table", "table", "one-time", 1),
    ("setup", "setup", "one-time", 1200), ("burst", "burst", "one-time", 750), ("plugin", "plugin", "one-time", 1),
    ("late", "late", "one-time", 600), ("pool", "pool", "one-time", 360), ("reset_arena", "reset_arena", "one-time", 8),
    ("array", "array", "container-growth", 1), ("buffer", "buffer", "container-growth", 1), ("column", "column", "container-growth", 12),
    ("session", "session", "freed-at-exit", 0), ("request", "request", "young-at-end", 2), ("batch", "batch", "young-at-end", 32),
    ("tidy", "tidy", "", 0), ("children", "children", "growing", 1600),
];

/// The same modes at full speed, where times have no meaning.
#[rustfmt::skip]
const QUICK: &[LabelledRow] = &[
    ("linear", "linear", "growing", 1000), ("entry", "entry", "bounded-cache", 64), ("session", "session", "freed-at-exit", 0),
    ("setup", "setup", "one-time", 1200), ("backlog", "backlog", "growing", 600), ("half_freed", "half_freed", "growing", 600),
    ("rare_path", "rare_path", "slow", 83), ("buffer", "buffer", "container-growth", 1),
];

/// Modes of the C++ program.
#[rustfmt::skip]
const CONTAINERS: &[LabelledRow] = &[
    ("grow_vector", "grow_vector", "container-growth", 1), ("grow_list", "grow_list", "growing", 800),
    ("forget_order", "forget_order", "growing", 800), ("tie_cycle", "tie_cycle", "growing", 1200),
];

/// Speed of the programs: their pauses have these lengths in a copy of the recording, so that no
/// other work of the machine changes a verdict. Only a long run is called growing. A shorter one is
/// called too little, and its trend must be the verdict of a long run.
#[derive(Clone, Copy, PartialEq)]
enum Pace {
    Quick,
    Paced,
    Long,
}

impl Pace {
    fn pause_ns(self) -> u64 {
        match self {
            Pace::Quick => 0,
            Pace::Paced => 1_000_000,
            Pace::Long => 10_000_000,
        }
    }
}

/// Records a mode of a program that marks its pauses, and gives it the times of this pace.
fn recorded(program: &Path, mode: &str, pace: Pace, options: &[&str]) -> Recording {
    let run = Program::new(program).args([mode, "marked"]);
    let mut recording = options.iter().fold(run, |run, option| run.option(option)).recorded();
    let copy = recording.directory.path().join("exact");
    exact::write(&recording.folder, &copy, pace.pause_ns());
    recording.folder = copy;
    recording
}

/// Returns the rows of `leaks --json`, merged by function and verdict. For a verdict of too little
/// it is the trend.
fn verdicts(folder: &Path, pace: Pace) -> Vec<(String, String, u64)> {
    let output = heaptape(["leaks".as_ref(), "--json".as_ref(), "--by=function".as_ref(), folder.as_os_str()]);
    assert!(output.code() < 2, "{output}");
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let rows = ["leaks", "freed_at_exit"].into_iter().flat_map(|list| answer[list].as_array().expect("a list"));
    let mut found: Vec<(String, String, u64)> = Vec::new();
    for row in rows.filter(|row| row["kept_on_purpose"].is_null()) {
        let stack = row["stack"].as_array().expect("a stack");
        let own = stack.iter().find(|frame| frame["program"] == true).or(stack.first());
        let function = own.map_or("?", |frame| frame["function"].as_str().expect("a name")).to_string();
        let (mut verdict, blocks) =
            (row["verdict"].as_str().expect("a verdict"), row["blocks"].as_u64().expect("a number"));
        assert!(pace == Pace::Long || !["growing", "slow"].contains(&verdict), "growth in a short run: {row:#}");
        if verdict == "too-little" {
            verdict = row["evidence"]["trend"].as_str().expect("a trend");
            assert!(pace != Pace::Long, "there is enough to tell: {row:#}");
        }
        match found.iter_mut().find(|(known, of, _)| *known == function && of == verdict) {
            Some((_, _, sum)) => *sum += blocks,
            None => found.push((function, verdict.to_string(), blocks)),
        }
    }
    found
}

/// Records the modes of a set, and compares their verdicts.
fn judged(program: &Path, set: &[LabelledRow], pace: Pace) {
    let mut wrong = Vec::new();
    let all_lost: u64 = set.iter().map(|row| judge(program, row, pace, &mut wrong)).sum();
    assert!(all_lost > 900, "too little was lost to say anything: {all_lost}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Records one mode, adds what is wrong with its verdicts, and returns how many events the copies
/// of the recording have lost.
fn judge(program: &Path, row: &LabelledRow, pace: Pace, wrong: &mut Vec<String>) -> u64 {
    let &(mode, function, verdict, blocks) = row;
    let recording = recorded(program, mode, pace, &[]);
    let found = verdicts(&recording.folder, pace);
    let own: Vec<_> = found.iter().filter(|(name, ..)| name == function).collect();
    let right = match verdict {
        "" => own.is_empty(),
        _ => own.len() == 1 && own[0].1 == verdict && own[0].2 == blocks,
    };
    let others = found.iter().filter(|(name, ..)| name != function);
    let harmless = others.clone().all(|(name, of, _)| is_harmless(name, of));
    if !right || !harmless {
        wrong.push(format!("{mode}: {verdict} of {blocks} was expected, found {found:?}"));
    }
    let directory = test_env::folder();
    let mut all_lost = 0;
    for seed in [7919, 1_299_709] {
        let folder = directory.path().join(format!("lossy.{seed}"));
        let lost = lossy::write(&recording.folder, &folder, 100, 30, seed);
        all_lost += lost;
        for (name, of, blocks) in verdicts(&folder, pace) {
            let right = of == "uncertain" || (name == function && of == verdict) || is_harmless(&name, &of);
            if !right {
                wrong.push(format!("{mode}, {lost} events lost by {seed}: {name} is called {of} ({blocks} blocks)"));
            }
        }
    }
    all_lost
}

/// Returns whether a row is of the start of the program.
fn is_harmless(name: &str, verdict: &str) -> bool {
    matches!(verdict, "one-time" | "uncertain") && ["base", "main", "parents", "_dl_init", "call_init"].contains(&name)
}

#[test]
fn verdicts_of_paced_programs_match_their_labels() {
    judged(&Target::program("leaks/labelled.c").build(), LABELLED, Pace::Paced);
}

#[test]
fn growth_in_a_long_run_is_called_growing() {
    let grows = |row: &&LabelledRow| ["growing", "slow", "bounded-cache"].contains(&row.2);
    let set: Vec<_> = LABELLED.iter().filter(grows).copied().collect();
    judged(&Target::program("leaks/labelled.c").build(), &set, Pace::Long);
    judged(&Target::program("leaks/containers.cpp").build(), CONTAINERS, Pace::Long);
}

/// Blocks that every program keeps are no leaks: the threshold that the README recommends passes on
/// sound programs, and fails on those that leak.
#[test]
fn readme_threshold_passes_sound_programs_and_fails_leaks() {
    let threshold = ["leaks", "--fail-if", "leaked.growing > 0"];
    let directory = test_env::folder();
    let folder = directory.path().to_string_lossy().into_owned();
    let source = test_env::root().join("tests/programs/semantics.c").to_string_lossy().into_owned();
    let script = "for i in {1..200}; do words[i]=\"word $i of ${#words[@]}\"; done; f() { local a=$1; echo ${a^^}; }; f x; sleep 1.2; f y";
    let git = format!(
        "cd {folder} && git init -q . && for i in $(seq 40); do echo $i > f; git add f; \
         git -c user.name=n -c user.email=e commit -q -m \"change $i\"; done"
    );
    Program::shell(&git).plain().success();
    let sound: [Program; 5] = [
        Program::new("bash").args(["-c", script]),
        Program::new("bash").args(["-c", "for i in 1 2 3; do ls / | wc -l; done"]),
        Program::new("gcc").args(["-O2", "-c", "-o", "/dev/null", &source]),
        Program::new("git").args(["-C", &folder, "log", "--stat"]),
        // Blocks of 16 bytes in a run of a millisecond.
        Program::new(Target::program("leaks/labelled.c").build()).args(["linear", "marked"]),
    ];
    for program in sound {
        let recording = program.recorded().success();
        let output = recording.heaptape(&threshold);
        assert_eq!(output.code(), 0, "{output}");
    }
    let labelled = Target::program("leaks/labelled.c").build();
    for mode in ["linear", "copied_text", "half_freed", "arena_chunk", "children"] {
        let output = recorded(&labelled, mode, Pace::Long, &[]).heaptape(&threshold);
        assert_eq!(output.code(), 1, "{mode}: {output}");
        assert!(output.text().contains(&format!(": {mode} ")), "{output}");
    }
}

/// Sums of the daemon of the same programs, slower, while they run, have the label as verdict, or
/// are uncertain. A program has its label if it kept its pace: where a machine stops it for a while,
/// its sums show two bursts.
#[test]
fn verdicts_from_sums_match_the_label_or_are_uncertain() {
    let daemon = Daemon::start(&["--mode", "profile"]);
    let program = Target::program("leaks/labelled.c").build();
    let folder = test_env::folder();
    let file = |mode: &str| folder.path().join(mode);
    let start = |mode: &str| daemon.spawn(&program, &[mode, "slow", file(mode).to_str().expect("a path")], None);
    let keeps_pace = |mode: &str| {
        let longest = std::fs::read_to_string(file(mode)).ok().and_then(|text| text.parse::<u64>().ok());
        longest.is_some_and(|milliseconds| milliseconds < 240)
    };
    // Programs that last longer would leave the others idle for half of their time.
    let lasting = LABELLED.iter().filter(|(mode, ..)| *mode != "children");
    let running: Vec<_> = lasting.map(|(mode, ..)| (mode, start(mode))).collect();
    let is_idle = |one: &Value| one["seconds"].as_u64() > Some(8) && one["allocs_a_second"] == 0;
    let done = |all: Vec<Value>| all.len() > 20 && all.iter().all(is_idle);
    // One of them is killed at its end.
    let has_ended = |mode: &str| mode == "request" || file(mode).metadata().is_ok_and(|file| file.len() > 0);
    until("all have done what they do", || {
        running.iter().all(|(mode, _)| has_ended(mode)) && done(daemon.list("labelled"))
    });
    daemon.query(&["snapshot"]);
    let output = daemon.heaptape(&["leaks", "--json"], &daemon.epochs(&[]));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output}"));
    let (mut wrong, mut matching) = (Vec::new(), Vec::new());
    for row in answer["leaks"].as_array().expect("a list").iter().filter(|row| row["kept_on_purpose"].is_null()) {
        let (verdict, pid) = (row["verdict"].as_str().expect("a verdict"), row["process"].as_u64());
        let of_pid = running.iter().find(|(_, one)| Some(u64::from(one.0.id())) == pid);
        let Some((mode, _)) = of_pid.filter(|(mode, _)| keeps_pace(mode)) else { continue };
        let (_, function, label, _) = LABELLED.iter().find(|(name, ..)| name == *mode).expect("a label");
        let stack = row["stack"].as_array().expect("a stack");
        let is_own = stack.iter().any(|frame| frame["function"] == *function);
        if is_own && verdict == *label {
            matching.push(format!("{mode}: {verdict}"));
        } else if verdict != "uncertain" && (is_own || verdict != "one-time") {
            wrong.push(format!("{mode}: {verdict}, {} blocks, {}", row["blocks"], stack[0]["function"]));
        }
    }
    println!("matching: {matching:?}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let growing = ["linear", "copied_text", "alone", "built_text", "arena_chunk"];
    for mode in growing.into_iter().filter(|mode| keeps_pace(mode)) {
        assert!(matching.contains(&format!("{mode}: growing")), "{mode} is not among {matching:?}");
    }
}

/// A profile has its live bytes at some points in time. A short process without them does not keep
/// the others from being shown.
#[test]
fn timeline_of_a_profile_shows_live_bytes_over_time() {
    let daemon = Daemon::start(&["--mode", "profile"]);
    daemon.run(&target::c("pairs"), &["1000", "1"]).success();
    let slow = daemon.spawn(&target::c("leaks_slowly"), &["100000", "5"], None);
    until("it has run for ten seconds", || daemon.list("leaks_slowly").iter().any(|one| one["seconds"] == 10));
    daemon.query(&["snapshot"]);
    let epochs = daemon.epochs(&[]);
    let output = daemon.heaptape(&["timeline", "--json"], &epochs);
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output}"));
    let processes = answer["processes"].as_array().expect("a list");
    let slices_of = |pid: u64| processes.iter().find(|one| one["pid"] == pid).map(|one| one["slices"].clone());
    let Some(Value::Array(slices)) = slices_of(slow.0.id().into()) else { panic!("{answer:#}") };
    let live: Vec<u64> = slices.iter().filter_map(|slice| slice["live_bytes"].as_u64()).collect();
    assert!(live.len() >= 9 && live.is_sorted() && live[0] < live[live.len() - 1] / 4, "{live:?}");
    assert!(slices.iter().all(|slice| slice["allocs"].is_null()), "{slices:?}");
    let report = daemon.report(&epochs);
    assert_eq!(live.last(), Some(&report.only("leaks_slowly").live_bytes));
    assert!(processes.iter().any(|one| one["slices"] == Value::Array(Vec::new())), "{answer:#}");
    let text = daemon.heaptape(&["timeline"], &epochs).success().text();
    assert!(text.contains("only sums at the end") && text.contains("live"), "{text}");
    let refused = daemon.heaptape(&["timeline", "--program", "pairs"], &epochs);
    assert!(refused.code() == 2 && refused.error().contains("`heaptape sites`"), "{refused}");
}

#[test]
fn verdicts_of_quick_programs_match_their_labels() {
    judged(&Target::program("leaks/labelled.c").build(), QUICK, Pace::Quick);
}

#[test]
fn verdicts_of_cpp_containers_match_their_labels() {
    judged(&Target::program("leaks/containers.cpp").build(), CONTAINERS, Pace::Paced);
}

/// A range that ends with an event ends at its time, too: what the program did later is no sign that
/// nothing grew until then.
#[test]
fn a_range_up_to_an_event_is_judged_up_to_its_time() {
    let recording = recorded(&Target::program("leaks/rests.c").build(), "", Pace::Long, &[]);
    for (range, verdict) in [(&[][..], "one-time"), (&["--until", "1000"], "growing"), (&["--until", "10s"], "growing")]
    {
        let output = recording.heaptape(&[&["leaks", "--json", "--all"], range].concat());
        let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(answer["leaks"][0]["verdict"], verdict, "{range:?}: {:#}", answer["leaks"]);
    }
}

#[test]
fn evidence_has_ages_lifetimes_and_free_sites() {
    let program = Target::program("leaks/labelled.c").build();
    let recording = recorded(&program, "lost_entry", Pace::Long, &["--free-stacks"]);
    let output = recording.heaptape(&["leaks", "--json", "--by=function"]);
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let leak =
        answer["leaks"].as_array().and_then(|rows| rows.iter().find(|row| row["verdict"] == "slow")).expect("a leak");
    let evidence = &leak["evidence"];
    assert_eq!(evidence["allocs"], 1000, "{evidence:#}");
    assert_eq!(evidence["freed"], 922);
    let lives: u64 =
        evidence["lives"].as_array().expect("a list").iter().filter_map(|row| row["blocks"].as_u64()).sum();
    assert_eq!(lives, 922, "each freed block is in one class");
    let allocations: u64 = evidence["births"].as_array().expect("a list").iter().filter_map(Value::as_u64).sum();
    assert_eq!(allocations, 78);
    assert!(evidence["oldest_age"].as_u64() > evidence["longest_life"].as_u64(), "older than any that was freed");
    assert_eq!(evidence["freed_at"][0]["functions"][0], "run_behind_cache");
    assert_eq!(evidence["freed_at"][0]["blocks"], 922);
    assert!(evidence["examples"][0][0].as_str().is_some_and(|address| address.starts_with("0x")));
}

#[test]
fn inherited_blocks_are_reported_and_are_not_leaks_of_the_child() {
    let recording = Program::new(Target::program("leaks/labelled.c").build()).args(["children", "marked"]).recorded();
    let output = recording.heaptape(&["leaks", "--json"]);
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let processes = answer["processes"].as_array().expect("a list");
    let inherited: Vec<u64> = processes.iter().filter_map(|one| one["inherited_blocks"].as_u64()).collect();
    assert_eq!(inherited.iter().filter(|&&blocks| blocks > 600).count(), 2, "two children: {inherited:?}");
    let named = |row: &&Value| row["stack"][0]["function"] == "parents";
    let parents = answer["leaks"].as_array().expect("a list").iter().filter(named);
    assert_eq!(parents.filter_map(|row| row["blocks"].as_u64()).sum::<u64>(), 600, "once, in the parent");
}

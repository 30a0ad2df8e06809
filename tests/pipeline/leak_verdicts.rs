//! The labelled set: programs whose leaks are known, one a mode, and what `heaptape leaks` must say
//! of each with its default settings; then the same recordings with one event in a hundred lost,
//! where a verdict may be uncertain and never wrong.

use heaptape_tests::daemon::until;
use heaptape_tests::recording::heaptape;
use heaptape_tests::{Daemon, Program, Recording, Target, lossy, test_env};
use serde_json::Value;
use std::path::Path;

/// Mode, function that allocates, verdict, blocks left.
#[rustfmt::skip]
const LABELLED: &[(&str, &str, &str, u64)] = &[
    ("linear", "linear", "growing", 1000), ("copied_text", "copied_text", "growing", 400), ("half_freed", "half_freed", "growing", 600),
    ("rare", "rare", "slow", 9), ("rare_path", "rare_path", "slow", 83), ("alone", "alone", "growing", 40),
    ("built_text", "built_text", "growing", 400), ("arena_chunk", "arena_chunk", "growing", 40),
    ("thread_state", "thread_state", "growing", 100), ("backlog", "backlog", "growing", 600), ("entry", "entry", "bounded-cache", 64),
    ("mixed_entry", "mixed_entry", "bounded-cache", 64), ("lost_entry", "lost_entry", "slow", 78), ("table", "table", "one-time", 1),
    ("setup", "setup", "one-time", 1200), ("burst", "burst", "one-time", 750), ("plugin", "plugin", "one-time", 1),
    ("late", "late", "one-time", 600), ("pool", "pool", "one-time", 360), ("reset_arena", "reset_arena", "one-time", 8),
    ("array", "array", "container-growth", 1), ("buffer", "buffer", "container-growth", 1), ("column", "column", "container-growth", 12),
    ("session", "session", "freed-at-exit", 0), ("request", "request", "young-at-end", 2), ("batch", "batch", "young-at-end", 32),
    ("tidy", "tidy", "", 0), ("childs", "childs", "growing", 1600),
];

/// The same, run as fast as they go: their time says nothing then.
#[rustfmt::skip]
const QUICK: &[(&str, &str, &str, u64)] = &[
    ("linear", "linear", "growing", 1000), ("entry", "entry", "bounded-cache", 64), ("session", "session", "freed-at-exit", 0),
    ("setup", "setup", "one-time", 1200), ("backlog", "backlog", "growing", 600), ("half_freed", "half_freed", "growing", 600),
    ("rare_path", "rare_path", "slow", 83), ("buffer", "buffer", "container-growth", 1),
];

/// The same of C++.
#[rustfmt::skip]
const CONTAINERS: &[(&str, &str, &str, u64)] = &[
    ("grow_vector", "grow_vector", "container-growth", 1), ("grow_list", "grow_list", "growing", 800),
    ("forget_order", "forget_order", "growing", 800), ("tie_cycle", "tie_cycle", "growing", 1200),
];

/// How fast the programs run. Only a long run says that something grows; what a shorter one calls
/// too little to tell must be what a long one would say.
#[derive(Clone, Copy, PartialEq)]
enum Pace {
    Quick,
    Paced,
    Long,
}

/// What `leaks --json` says: function, verdict, blocks, merged by function and verdict. Of what is
/// too little to tell the verdict is that of a longer run.
fn verdicts(folder: &Path, pace: Pace) -> Vec<(String, String, u64)> {
    let said = heaptape(["leaks".as_ref(), "--json".as_ref(), "--by=function".as_ref(), folder.as_os_str()]);
    assert!(said.code() < 2, "{said}");
    let answer: Value = serde_json::from_slice(&said.stdout).expect("JSON");
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

fn judged(program: &Path, set: &[(&str, &str, &str, u64)], pace: Pace) {
    let (mut wrong, mut all_lost) = (Vec::new(), 0);
    for &(mode, function, verdict, blocks) in set {
        let mut run = Program::new(program).arg(mode);
        match pace {
            Pace::Quick => run = run.arg("quick"),
            Pace::Paced => {}
            Pace::Long => run = run.arg("long"),
        }
        let recording: Recording = run.recorded();
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
        let place = test_env::folder();
        for seed in [7919, 104_729, 1_299_709] {
            let folder = place.path().join(format!("lossy.{seed}"));
            let lost = lossy::write(&recording.folder, &folder, 100, 30, seed);
            all_lost += lost;
            for (name, of, blocks) in verdicts(&folder, pace) {
                let right = of == "uncertain" || (name == function && of == verdict) || is_harmless(&name, &of);
                if !right {
                    wrong
                        .push(format!("{mode}, {lost} events lost by {seed}: {name} is called {of} ({blocks} blocks)"));
                }
            }
        }
    }
    assert!(all_lost > 900, "too little was lost to say anything: {all_lost}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What every program has besides: its own start.
fn is_harmless(name: &str, verdict: &str) -> bool {
    matches!(verdict, "one-time" | "uncertain") && ["base", "main", "parents", "_dl_init", "call_init"].contains(&name)
}

#[test]
fn paced_programs_are_judged_rightly() {
    judged(&Target::program("leaks/labelled.c").build(), LABELLED, Pace::Paced);
}

#[test]
fn growth_in_a_long_run_is_called_so() {
    let grows = |row: &&(&str, &str, &str, u64)| ["growing", "slow", "bounded-cache"].contains(&row.2);
    let set: Vec<_> = LABELLED.iter().filter(grows).copied().collect();
    judged(&Target::program("leaks/labelled.c").build(), &set, Pace::Long);
    judged(&Target::program("leaks/containers.cpp").build(), CONTAINERS, Pace::Long);
}

/// What every program keeps is no leak: the gate that README recommends passes on programs that are
/// sound, and fails on those that leak.
#[test]
fn the_gate_of_the_readme() {
    let gate = ["leaks", "--fail-if", "leaked.growing > 0"];
    let place = test_env::folder();
    let folder = place.path().to_string_lossy().into_owned();
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
        Program::new(Target::program("leaks/labelled.c").build()).args(["linear", "quick"]),
    ];
    for program in sound {
        let recording = program.recorded().success();
        let said = recording.heaptape(&gate);
        assert_eq!(said.code(), 0, "{said}");
    }
    let labelled = Target::program("leaks/labelled.c").build();
    for mode in ["linear", "copied_text", "half_freed", "arena_chunk", "childs"] {
        let said = Program::new(&labelled).args([mode, "long"]).recorded().heaptape(&gate);
        assert_eq!(said.code(), 1, "{mode}: {said}");
        assert!(said.text().contains(&format!(": {mode} ")), "{said}");
    }
}

/// The daemon's sums of the same programs, slower, while they run: the label, or uncertain.
#[test]
fn sums_are_never_judged_wrongly() {
    let daemon = Daemon::start(&["--mode", "profile"]);
    let program = Target::program("leaks/labelled.c").build();
    let start = |mode: &str| daemon.spawn(&program, &[mode, "slow"], None);
    // Those that last longer would let the others stand still for half of their lives.
    let lasting = LABELLED.iter().filter(|(mode, ..)| *mode != "childs");
    let running: Vec<_> = lasting.map(|(mode, ..)| (mode, start(mode))).collect();
    let is_idle = |one: &Value| one["seconds"].as_u64() > Some(8) && one["allocs_a_second"] == 0;
    let done = |all: Vec<Value>| all.len() > 20 && all.iter().all(is_idle);
    until("all have done what they do", || done(daemon.list("labelled")));
    daemon.ask(&["snapshot"]);
    let said = daemon.word(&["leaks", "--json"], &daemon.epochs(&[]));
    let answer: Value = serde_json::from_slice(&said.stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
    let (mut wrong, mut told) = (Vec::new(), Vec::new());
    for row in answer["leaks"].as_array().expect("a list").iter().filter(|row| row["kept_on_purpose"].is_null()) {
        let (verdict, pid) = (row["verdict"].as_str().expect("a verdict"), row["process"].as_u64());
        let Some((mode, _)) = running.iter().find(|(_, one)| Some(u64::from(one.0.id())) == pid) else { continue };
        let (_, function, label, _) = LABELLED.iter().find(|(name, ..)| name == *mode).expect("a label");
        let stack = row["stack"].as_array().expect("a stack");
        let is_own = stack.iter().any(|frame| frame["function"] == *function);
        if is_own && verdict == *label {
            told.push(format!("{mode}: {verdict}"));
        } else if verdict != "uncertain" && (is_own || verdict != "one-time") {
            wrong.push(format!("{mode}: {verdict}, {} blocks, {}", row["blocks"], stack[0]["function"]));
        }
    }
    println!("told: {told:?}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for mode in ["linear", "copied_text", "alone", "built_text", "arena_chunk"] {
        assert!(told.contains(&format!("{mode}: growing")), "{mode} is not among {told:?}");
    }
}

#[test]
fn programs_in_a_hurry_are_judged_rightly() {
    judged(&Target::program("leaks/labelled.c").build(), QUICK, Pace::Quick);
}

#[test]
fn containers_and_objects_are_judged_rightly() {
    judged(&Target::program("leaks/containers.cpp").build(), CONTAINERS, Pace::Paced);
}

#[test]
fn evidence_tells_when_how_old_and_who() {
    let recording = Program::new(Target::program("leaks/labelled.c").build())
        .args(["lost_entry", "long"])
        .option("--free-stacks")
        .recorded();
    let said = recording.heaptape(&["leaks", "--json", "--by=function"]);
    let answer: Value = serde_json::from_slice(&said.stdout).expect("JSON");
    let leak =
        answer["leaks"].as_array().and_then(|rows| rows.iter().find(|row| row["verdict"] == "slow")).expect("a leak");
    let evidence = &leak["evidence"];
    assert_eq!(evidence["allocs"], 1000, "{evidence:#}");
    assert_eq!(evidence["freed"], 922);
    let lives: u64 =
        evidence["lives"].as_array().expect("a list").iter().filter_map(|row| row["blocks"].as_u64()).sum();
    assert_eq!(lives, 922, "each freed sibling stands in one class");
    let births: u64 = evidence["births"].as_array().expect("a list").iter().filter_map(Value::as_u64).sum();
    assert_eq!(births, 78);
    assert!(evidence["oldest_age"].as_u64() > evidence["longest_life"].as_u64(), "older than any that was freed");
    assert_eq!(evidence["freed_at"][0]["functions"][0], "run_behind_cache");
    assert_eq!(evidence["freed_at"][0]["blocks"], 922);
    assert!(evidence["examples"][0][0].as_str().is_some_and(|address| address.starts_with("0x")));
}

#[test]
fn inherited_blocks_are_told_and_are_no_leaks_of_the_child() {
    let recording = Program::new(Target::program("leaks/labelled.c").build()).arg("childs").recorded();
    let said = recording.heaptape(&["leaks", "--json"]);
    let answer: Value = serde_json::from_slice(&said.stdout).expect("JSON");
    let processes = answer["processes"].as_array().expect("a list");
    let inherited: Vec<u64> = processes.iter().filter_map(|one| one["inherited_blocks"].as_u64()).collect();
    assert_eq!(inherited.iter().filter(|&&blocks| blocks > 600).count(), 2, "two children: {inherited:?}");
    let named = |row: &&Value| row["stack"][0]["function"] == "parents";
    let parents = answer["leaks"].as_array().expect("a list").iter().filter(named);
    assert_eq!(parents.filter_map(|row| row["blocks"].as_u64()).sum::<u64>(), 600, "once, in the parent");
}

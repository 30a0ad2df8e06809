//! Cores that gdb's gcore writes of a program that runs on, alone and with its recording.

use heaptape_tests::recording::heaptape;
use heaptape_tests::{Program, Recording, Target, target};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// What `dumps_itself` has when it lets its core be written.
const LOST: u64 = 40;
const CYCLES: u64 = 20;
const HIDDEN: u64 = 50;
const ENTRIES: u64 = 300;

/// Allocators of the distribution, and the names by which heaptape knows them.
const ALLOCATORS: [(&str, &str); 4] = [
    ("libjemalloc.so.2", "jemalloc"),
    ("libtcmalloc_minimal.so.4", "tcmalloc"),
    ("libmimalloc.so.2", "mimalloc"),
    ("libmimalloc.so.2.0", "mimalloc"),
];

fn program(folder: &Path) -> Program {
    Program::new(Target::program("dumps_itself.cpp").flag("-pthread").build()).folder(folder)
}

fn core_of(folder: &Path, pid: u32) -> String {
    let core: PathBuf = folder.join(format!("core.{pid}"));
    assert!(core.is_file(), "{}", core.display());
    core.to_str().expect("a path").into()
}

/// Runs the program alone, and returns its core.
fn alone() -> (String, tempfile::TempDir) {
    alone_with(|program| program)
}

fn alone_with(change: impl Fn(Program) -> Program) -> (String, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    change(program(folder.path())).plain().success();
    let name = std::fs::read_dir(folder.path()).expect("a folder").flatten().next().expect("a core").file_name();
    let pid = name.to_str().and_then(|name| name.strip_prefix("core.")).and_then(|pid| pid.parse().ok());
    (core_of(folder.path(), pid.expect("a pid")), folder)
}

/// Runs the program under `record`.
fn recorded_with(change: impl Fn(Program) -> Program) -> (String, Recording, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let recording = change(program(folder.path())).recorded().success();
    let processes = recording.about().processes;
    let own = processes.iter().find(|process| folder.path().join(format!("core.{}", process.pid)).is_file());
    (core_of(folder.path(), own.expect("a core of a recorded process").pid), recording, folder)
}

fn json(text: &[u8], key: &str) -> Value {
    let answer: Value = serde_json::from_slice(text).expect("JSON");
    let of_program = |process: &&Value| !process[key].is_null();
    answer["processes"].as_array().expect("processes").iter().find(of_program).expect("an answer")[key].clone()
}

fn assert_true(holds: &Value) {
    assert_eq!(holds["lacks"], "", "{holds:#}");
    let cycles = holds["cycle_blocks"].as_u64().expect("a number");
    let lost = holds["lost_blocks"].as_u64().expect("a number");
    assert_eq!((cycles, lost), (2 * CYCLES, LOST + 2 * CYCLES), "{holds:#}");
    let root = holds["roots"].as_array().expect("roots").iter().find(|root| root["name"] == "global cache");
    assert_eq!(root.expect("the cache")["blocks"], 2 * ENTRIES, "{holds:#}");
}

#[test]
fn a_core_of_a_living_program_says_what_it_has() {
    let (core, _folder) = alone();
    let holds = json(&heaptape(["holds", "--json", "--top", "100", &core]).success().stdout, "holds");
    assert_true(&holds);
    let text = heaptape(["core", &core]).success().text();
    let first = text.lines().next().expect("an answer");
    assert!(first.starts_with("no crash: ") && first.ends_with("; 2 threads"), "{text}");
    assert!(first.contains("2.81 KiB lost, 5.31 KiB in cycles that nothing else holds"), "{text}");
    assert!(text.contains("global cache") && text.contains(&format!("heaptape holds {core}")), "{text}");
}

#[test]
fn entries_of_a_core_say_what_becomes_of_their_blocks() {
    let (core, _folder) = alone();
    let text = heaptape(["leaks", &core]).success().text();
    let entry = |size: &str| {
        let lines: Vec<&str> = text.lines().collect();
        let at = lines.iter().position(|line| line.trim() == format!("block of {size} bytes"));
        lines[at.unwrap_or_else(|| panic!("{size}: {text}")) - 1].split_once(". ").expect("an entry").1
    };
    assert!(entry("72").starts_with("lost: 2.81 KiB in 40 blocks"), "{text}");
    assert!(entry("136").starts_with("in a cycle: 5.31 KiB in 40 blocks"), "{text}");
    assert!(entry("200").starts_with("held by global cache: "), "{text}");
    let total = |word: &str| text.lines().any(|line| line.starts_with(&format!("  {word} ")));
    assert!(total("lost") && total("in a cycle") && total("held") && !text.contains("uncertain"), "{text}");
}

#[test]
fn a_recording_names_the_blocks_that_were_live_when_its_core_was_written() {
    let (core, recording, folder) = recorded_with(|program| program);
    // A copy has another time; the memory itself says when it was.
    let copy = folder.path().join("copy");
    std::fs::copy(&core, &copy).expect("a copy");
    for core in [&*core, copy.to_str().expect("a path")] {
        let arguments: [&[&str]; 2] =
            [&["holds", "--json", "--top", "100", "--core", core], &["holds", "--json", "--top", "100", core]];
        for arguments in arguments {
            let holds = json(&recording.heaptape(arguments).success().stdout, "holds");
            assert_true(&holds);
            let lost = holds["lost"].as_array().expect("rows").iter();
            let of_lose = lost.filter(|row| row["stack"].to_string().contains("lose"));
            assert_eq!(of_lose.map(|row| row["blocks"].as_u64().expect("a number")).sum::<u64>(), LOST, "{holds:#}");
            // What it allocated afterwards is not there.
            assert!(!holds.to_string().contains("global later"), "{holds:#}");
        }
    }
    let text = recording.heaptape(&["core", &core]).success().text();
    let first = text.lines().nth(usize::from(!text.starts_with("no crash"))).expect("an answer");
    assert!(first.starts_with("no crash: ") && first.contains("2.81 KiB lost, 5.31 KiB in cycles"), "{text}");
    assert!(text.contains("heaptape holds "), "{text}");
    let text = recording.heaptape(&["leaks", "--all", &core]).success().text();
    assert!(text.contains("lost: 2.81 KiB") && text.contains("held by global cache"), "{text}");
}

/// Pointers in a disguise are found where there are many, so that their blocks are not lost.
#[test]
fn blocks_behind_pointers_in_a_disguise_are_not_lost() {
    let (core, _folder) = alone();
    let holds = json(&heaptape(["holds", "--json", &core]).success().stdout, "holds");
    assert_eq!((&holds["hidden_blocks"], &holds["disguise"]), (&HIDDEN.into(), &"XOR".into()), "{holds:#}");
    let text = heaptape(["holds", "--lost", &core]).success().text();
    assert!(text.contains("behind pointers in a disguise (XOR)") && !text.contains("504 bytes"), "{text}");
}

/// Only a recording knows the blocks of other allocators: without one, nothing is said of them.
#[test]
fn cores_of_other_allocators_are_read_with_a_recording() {
    let libraries = ALLOCATORS.map(|(file, name)| (Path::new(target::LIBRARIES).join(file), name));
    let installed: Vec<_> = libraries.iter().filter(|(file, _)| file.is_file()).collect();
    assert!(!installed.is_empty(), "no other allocator is installed: run scripts/install-tools");
    for (library, name) in installed {
        let with = |program: Program| program.env("LD_PRELOAD", library);
        let (core, _folder) = alone_with(with);
        for command in ["core", "holds", "leaks"] {
            let outcome = heaptape([command, &core]);
            let (text, why) = (outcome.text(), format!("the program has {name}, and only a recording knows"));
            assert!(text.lines().next().is_some_and(|line| line.contains(&why)), "{command}: {text}");
            assert!(!text.contains("0 B live") && !text.contains("lost:") && !text.contains(" lost,"), "{text}");
        }
        let (core, recording, _folder) = recorded_with(with);
        let holds = json(&recording.heaptape(&["holds", "--json", "--top", "100", &core]).success().stdout, "holds");
        let root = |name: &str| {
            let roots = holds["roots"].as_array().expect("roots");
            roots.iter().find(|root| root["name"] == name).map_or(0, |root| root["blocks"].as_u64().unwrap_or(0))
        };
        assert_eq!((root("global cache"), root("global later")), (2 * ENTRIES, 0), "{holds:#}");
        // Stale words in the memory of an allocator may hold what is lost; but nothing else is lost.
        let lost = holds["lost"]
            .as_array()
            .expect("rows")
            .iter()
            .filter(|row| !row["stack"].to_string().contains("libtcmalloc"));
        let is_true = |row: &Value| ["lose", "make_cycles"].iter().any(|name| row["stack"].to_string().contains(name));
        assert!(lost.clone().all(is_true), "{holds:#}");
    }
}

/// The heap of musl is not that of glibc.
#[test]
fn a_core_of_a_static_program_with_musl_says_that_its_blocks_are_not_known() {
    if !super::cores::are_cores_written() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = Target::program("core_heap.c").by("musl-gcc").flag("-static").named("core-heap-musl").build();
    Program::new(program).folder(folder.path()).plain();
    let core = super::cores::core_in(folder.path());
    let core = core.to_str().expect("a path");
    let text = heaptape(["core", core]).text();
    assert!(text.starts_with("SIGABRT"), "{text}");
    for command in ["holds", "leaks"] {
        let text = heaptape([command, core]).text();
        assert!(text.starts_with("the blocks in the core are not known: no heap of glibc was found"), "{text}");
    }
}

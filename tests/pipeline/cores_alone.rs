//! Cores of programs that were not recorded: the blocks of glibc's malloc, and who holds them, as the
//! program itself says; and what a recording adds.

use super::cores::{are_cores_written, core_in};
use heaptape_tests::recording::heaptape;
use heaptape_tests::{Outcome, Program, target};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// What `core_heap` prints: its live blocks with their usable bytes, and whether they are lost.
struct Printed {
    live: BTreeMap<String, (u64, bool)>,
    /// The block that it wrote behind.
    damaged: Option<String>,
}

impl Printed {
    fn of(outcome: &Outcome) -> Printed {
        let mut printed = Printed { live: BTreeMap::new(), damaged: None };
        for line in outcome.text().lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["free", address, _] => drop(printed.live.remove(address)),
                ["damaged", address] => printed.damaged = Some(address.into()),
                [what, address, bytes] => {
                    let bytes = bytes.parse().expect("a number");
                    printed.live.insert(address.into(), (bytes, what == "lost"));
                }
                _ => panic!("{line}"),
            }
        }
        printed
    }

    fn lost(&self) -> u64 {
        self.live.values().filter(|(_, is_lost)| *is_lost).count() as u64
    }

    fn bytes(&self) -> u64 {
        self.live.values().map(|(bytes, _)| bytes).sum()
    }
}

fn json(arguments: &[&str]) -> Value {
    let output = heaptape(arguments).success();
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    answer["processes"][0].clone()
}

/// Runs `core_heap`; `None` where no core is written.
fn crashed(way: &str, before: &str) -> Option<(Printed, PathBuf, tempfile::TempDir)> {
    if !are_cores_written() {
        eprintln!("cores are not written here");
        return None;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = Program::new(target::c("core_heap")).arg(way).folder(folder.path());
    let printed = Printed::of(&program.after(before).plain());
    let core = core_in(folder.path());
    Some((printed, core, folder))
}

fn root(holds: &Value, name: &str) -> u64 {
    let roots = holds["roots"].as_array().expect("roots");
    let found = roots.iter().find(|root| root["name"] == name);
    found.unwrap_or_else(|| panic!("{name}: {holds:#}"))["blocks"].as_u64().expect("a number")
}

#[test]
fn blocks_and_their_holders_are_those_that_the_program_has() {
    let Some((printed, core, _folder)) = crashed("", "true") else { return };
    let core = core.to_str().expect("a path");
    let holds = json(&["holds", "--json", "--top", "100", core])["holds"].clone();
    // glibc has one for the thread-local data of the thread, by its own calloc.
    assert_eq!(holds["blocks"], printed.live.len() + 1, "{holds:#}");
    let more = holds["bytes"].as_u64().expect("bytes") - printed.bytes();
    assert!((200..1000).contains(&more), "{more} bytes more: {holds:#}");
    assert_eq!((&holds["lacks"], &holds["lost_blocks"]), (&"".into(), &printed.lost().into()), "{holds:#}");
    assert_eq!((root(&holds, "global list"), root(&holds, "global large")), (300, 6), "{holds:#}");
    assert_eq!(root(&holds, "global of_thread"), 100, "{holds:#}");
    let lost = &holds["lost"][0];
    assert_eq!((&lost["what"], &lost["times"]), (&"block of 72 bytes".into(), &printed.lost().into()), "{lost:#}");
    let answer = json(&["core", "--json", core]);
    assert_eq!(answer["signal"]["name"], "SIGABRT", "{answer:#}");
    let heap = &answer["heap"];
    assert_eq!((&heap["live_blocks"], &heap["lost_blocks"]), (&holds["blocks"], &holds["lost_blocks"]), "{heap:#}");
    assert_eq!((&heap["arenas"], &heap["damage"]), (&2.into(), &Value::Array(Vec::new())), "{heap:#}");
    let text = heaptape(["leaks", core]).success().text();
    assert!(text.contains("block of 72 bytes") && text.contains("lost: 2.81 KiB"), "{text}");
    assert!(text.contains("a core has no stacks and no times"), "{text}");
    // What nothing holds comes first: a core tells no more of leaks.
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].contains(" live in the core, of ") && lines[0].contains("; 2.81 KiB lost"), "{text}");
    let first = lines.iter().position(|line| line.starts_with("1. ")).expect("an entry");
    assert!(lines[first + 1].contains("block of 72 bytes"), "{text}");
    assert!(!text.contains("the recording"), "{text}");
}

#[test]
fn a_damaged_header_is_named_with_the_block_before_it() {
    for (way, written) in [("damaged", "0x4141414141414141"), ("top", "0x4141414141414140")] {
        let Some((printed, core, _folder)) = crashed(way, "true") else { return };
        let core = core.to_str().expect("a path");
        let answer = json(&["core", "--json", core]);
        let damage = &answer["heap"]["damage"];
        assert_eq!(damage.as_array().map(Vec::len), Some(1), "{answer:#}");
        assert_eq!(damage[0]["before"]["address"], printed.damaged.clone().expect("a block"), "{answer:#}");
        assert!(answer["verdict"].as_str().is_some_and(|text| text.contains(written)), "{answer:#}");
        // Where the chunk is that cannot be read, there may be blocks that hold others.
        let holds = json(&["holds", "--json", core])["holds"].clone();
        assert_eq!((&holds["lacks"], &holds["lost_blocks"]), (&"".into(), &printed.lost().into()), "{holds:#}");
    }
}

/// With a recording, it has a name.
#[test]
fn a_damaged_header_is_named_beside_a_recording() {
    if !are_cores_written() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let recording = Program::new(target::c("core_heap")).arg("damaged").folder(folder.path()).recorded();
    let printed = Printed::of(&recording.outcome);
    let core = core_in(folder.path());
    let output = recording.heaptape(&["core", "--json", core.to_str().expect("a path")]).success();
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let answer = &answer["processes"][0];
    let damage = &answer["heap"]["damage"];
    assert_eq!(damage.as_array().map(Vec::len), Some(1), "{answer:#}");
    let before = &damage[0]["before"];
    assert_eq!(before["address"], printed.damaged.expect("a block"), "{answer:#}");
    assert!(before["line"].as_str().is_some_and(|line| line.starts_with("a live block of hold ")), "{answer:#}");
    assert!(answer["verdict"].as_str().is_some_and(|text| text.contains("0x4141414141414141")), "{answer:#}");
}

/// What the C library says before it ends a program is in the core, and nowhere else if nobody read its
/// standard error.
#[test]
fn what_the_library_said_is_read_from_the_core() {
    if !are_cores_written() {
        return;
    }
    for (way, said) in [("double_free", "free(): double free detected"), ("stack", "free(): invalid ")] {
        let folder = tempfile::tempdir().expect("a folder");
        let _ = Program::new(target::c("misuses")).arg(way).folder(folder.path()).plain();
        let core = core_in(folder.path());
        let answer = json(&["core", "--json", core.to_str().expect("a path")]);
        let verdict = answer["verdict"].as_str().expect("a verdict");
        assert!(verdict.contains(&format!("; the C library said: {said}")), "{verdict}");
    }
    // It said nothing here.
    let Some((_, core, _folder)) = crashed("", "true") else { return };
    assert_eq!(json(&["core", "--json", core.to_str().expect("a path")])["abort_message"], Value::Null);
}

#[test]
fn a_core_without_all_memory_calls_nothing_lost() {
    let Some((printed, core, _folder)) = crashed("", "true") else { return };
    let bytes = std::fs::read(&core).expect("the core");
    std::fs::write(&core, &bytes[..bytes.len() - 20_000]).expect("cut");
    let holds = json(&["holds", "--json", core.to_str().expect("a path")])["holds"].clone();
    assert_eq!(holds["lost_blocks"], 0, "{holds:#}");
    assert!(holds["lacks"].as_str().is_some_and(|lacks| lacks.contains("the core was cut")), "{holds:#}");
    assert!(printed.lost() > 0);
    // Without private memory (core(5)), only the threads are known.
    let Some((_, core, _folder)) = crashed("", "echo 0x10 > /proc/self/coredump_filter") else { return };
    let text = heaptape(["core", core.to_str().expect("a path")]).text();
    assert!(text.starts_with("SIGABRT") && text.contains("no heap of glibc was found"), "{text}");
    assert!(text.contains("coredump_filter"), "{text}");
}

/// The kernel leaves out files that others may share, unless it is told to write them.
#[test]
fn a_core_without_mapped_files_calls_nothing_lost() {
    if !are_cores_written() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    Program::new(target::c("holds_odd_memory")).args(["mapped", "abort"]).folder(folder.path()).plain();
    let core = core_in(folder.path());
    let holds = json(&["holds", "--json", core.to_str().expect("a path")])["holds"].clone();
    let lacks = holds["lacks"].as_str().expect("a text");
    assert!(lacks.starts_with("1 file that it had mapped to be written is not in the core"), "{holds:#}");
    assert_eq!(holds["lost_blocks"], 0, "{holds:#}");
}

#[test]
fn with_a_recording_the_holders_in_a_core_have_stacks() {
    if !are_cores_written() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let recording = Program::new(target::c("core_heap")).folder(folder.path()).recorded();
    let printed = Printed::of(&recording.outcome);
    let core = core_in(folder.path());
    let core = core.to_str().expect("a path");
    let output = recording.heaptape(&["holds", "--json", "--core", core]).success();
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let holds = &answer["processes"][0]["holds"];
    let blocks = printed.live.len() + 1;
    assert_eq!((&holds["blocks"], &holds["lost_blocks"]), (&blocks.into(), &printed.lost().into()), "{holds:#}");
    assert_eq!((root(holds, "global list"), root(holds, "global of_thread")), (300, 100), "{holds:#}");
    assert!(holds["lost"][0]["stack"].to_string().contains("lose"), "{holds:#}");
    let text = recording.heaptape(&["leaks", "--all", "--core", core]).success().text();
    assert!(text.contains("lost: 2.81 KiB") && text.contains("held by global list"), "{text}");
    // The memory alone shows the same blocks.
    let alone = json(&["holds", "--json", core])["holds"].clone();
    assert_eq!((&alone["blocks"], &alone["lost_blocks"]), (&holds["blocks"], &holds["lost_blocks"]), "{alone:#}");
    // The core of another process is refused.
    let Some((_, other, _folder)) = crashed("", "true") else { return };
    let outcome = recording.heaptape(&["holds", "--core", other.to_str().expect("a path")]);
    assert!(outcome.error().contains("which was not recorded"), "{outcome}");
}

/// Blocks that only its parent's hold are not lost, though the recording of the child has no events of
/// those.
#[test]
fn blocks_of_a_forked_child_are_held_by_those_of_its_parent() {
    if !are_cores_written() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let recording = Program::new(target::c("core_of_child")).folder(folder.path()).recorded().success();
    let core = core_in(folder.path());
    let core = core.to_str().expect("a path");
    let output = recording.heaptape(&["holds", "--json", "--core", core]).success();
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let processes = answer["processes"].as_array().expect("processes").iter();
    let holds = processes.map(|process| &process["holds"]).find(|holds| holds["blocks"].is_number());
    let holds = holds.unwrap_or_else(|| panic!("{answer:#}"));
    assert_eq!((&holds["blocks"], &holds["lost_blocks"]), (&57.into(), &7.into()), "{holds:#}");
}

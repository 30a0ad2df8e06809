//! `heaptape core`: a crash is explained by the blocks that it is about.

use heaptape_tests::{Program, Recording, target};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Returns whether the kernel writes cores where a program runs (core(5)).
pub(super) fn are_cores_written() -> bool {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    !pattern.starts_with('|') && !pattern.contains('/')
}

pub(super) fn core_in(folder: &Path) -> PathBuf {
    let entries = std::fs::read_dir(folder).expect("a folder").flatten().map(|entry| entry.path());
    let is_core = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("core"));
    entries.into_iter().find(is_core).expect("a core")
}

/// Crashes a recorded program, and returns the answer about its core; `None` where no core is
/// written.
fn crashed(way: &str) -> Option<(Value, Recording, tempfile::TempDir)> {
    if !are_cores_written() {
        eprintln!("cores are not written here");
        return None;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = Program::new(target::c("misuses")).arg(way).folder(folder.path()).option("--free-stacks");
    let recording = program.recorded();
    let core = core_in(folder.path());
    let output = recording.heaptape(&["core", "--json", core.to_str().expect("a path")]).success();
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    Some((answer["processes"][0].clone(), recording, folder))
}

fn has_function(event: &Value, name: &str) -> bool {
    event["stack"].to_string().contains(name)
}

#[test]
fn a_use_after_free_names_who_freed_the_block() {
    for way in ["use_after_free", "in_thread"] {
        let Some((answer, recording, folder)) = crashed(way) else { return };
        assert_eq!(answer["signal"]["name"], "SIGSEGV", "{answer:#}");
        let place = &answer["places"][0];
        assert_eq!((&place["found_in"][0], &place["is_freed"]), (&"the fault".into(), &true.into()), "{answer:#}");
        let block = &place["blocks"][0];
        assert_eq!((&block["bytes"], &block["offset"]), (&1_000_000.into(), &5000.into()), "{answer:#}");
        assert!(has_function(&block["begin"], "make") && has_function(&block["end"], "drop"), "{answer:#}");
        assert!(answer["threads"][0]["at"].as_str().is_some_and(|at| at.starts_with("use ")), "{answer:#}");
        let core = core_in(folder.path());
        let text = recording.heaptape(&["core", core.to_str().expect("a path")]).success().text();
        assert!(text.contains("use after free: byte 5000 of a block of 1,000,000 bytes"), "{text}");
    }
}

#[test]
fn a_register_leads_to_the_freed_block_that_a_wrong_pointer_came_from() {
    let Some((answer, ..)) = crashed("stale_pointer") else { return };
    let places = answer["places"].as_array().expect("places").iter();
    let freed: Vec<&Value> = places.filter(|place| place["is_freed"] == true).collect();
    assert!(freed.iter().any(|place| place["blocks"][0]["bytes"] == 16), "{answer:#}");
    assert!(answer["verdict"].as_str().is_some_and(|text| text.contains("was freed")), "{answer:#}");
}

/// The block that a register leads to is live, but the pointer was its former owner's.
#[test]
fn former_owners_of_a_live_block_are_named() {
    let Some((answer, ..)) = crashed("reused") else { return };
    let what = answer["places"].as_array().expect("places").iter().filter_map(|place| place["what"].as_str());
    let former = |what: &str| {
        what.contains("which is live; before it, a block of 16 bytes of make ") && what.contains("was freed")
    };
    assert!(what.clone().any(former), "{answer:#}");
}

#[test]
fn wrong_frees_are_named() {
    for (way, kind) in [("double_free", "double free"), ("inside", "free inside of a block"), ("stack", "foreign free")]
    {
        let Some((answer, ..)) = crashed(way) else { return };
        assert_eq!(answer["signal"]["name"], "SIGABRT", "{answer:#}");
        let row = &answer["wrong_frees"][0];
        assert_eq!((&row["kind"], &row["is_last"]), (&kind.into(), &true.into()), "{way}: {answer:#}");
        assert!(answer["abort_message"].as_str().is_some_and(|text| text.starts_with("free(): ")), "{way}: {answer:#}");
        let block = &row["blocks"][0];
        match way {
            "double_free" => assert!(has_function(&block["end"], "drop"), "{answer:#}"),
            "inside" => assert_eq!((&block["bytes"], &block["offset"]), (&40.into(), &8.into()), "{answer:#}"),
            _ => assert!(row["what"].as_str().is_some_and(|what| what.starts_with("on the stack of")), "{answer:#}"),
        }
    }
}

#[test]
fn what_is_no_core_is_refused() {
    let recording = Program::new(target::c("misuses")).recorded().success();
    let path = recording.folder.join("recording.json");
    let outcome = recording.heaptape(&["core", path.to_str().expect("a path")]);
    assert!(outcome.error().contains("core: offset 0"), "{}", outcome.error());
}

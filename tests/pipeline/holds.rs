//! `heaptape holds`: who holds what is live when a program ends, what nobody holds, and why it says
//! so.

use heaptape_tests::{Program, Recording, Target, target};
use serde_json::Value;

#[track_caller]
fn holds(recording: &Recording, arguments: &[&str]) -> Value {
    let output = recording.heaptape(&[&["holds", "--json", "--top", "100"], arguments].concat()).success();
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let processes = answer["processes"].as_array().expect("processes").iter();
    processes.map(|process| process["holds"].clone()).find(|holds| !holds.is_null()).expect("an answer")
}

fn cache(sessions: u64) -> Recording {
    let program = Program::new(Target::program("holds_cache.cpp").build()).arg(sessions.to_string());
    program.option("--references").recorded().success()
}

#[test]
fn a_global_cache_holds_its_sessions_before_its_destructor_runs() {
    let recording = cache(500);
    let report = holds(&recording, &[]);
    let root = &report["roots"][0];
    assert_eq!(
        (&root["name"], &root["kind"]),
        (&"global Cache::instance()::cache".into(), &"global".into()),
        "{report:#}"
    );
    // A session, its orders, the array of them, its name and its node, and the buckets.
    assert_eq!(root["blocks"], 500 * 8 + 1, "{report:#}");
    let held = &report["held"][0];
    assert!(held["label"].as_str().is_some_and(|label| label.starts_with("open_session")), "{held:#}");
    let steps: Vec<&str> =
        held["paths"][0]["steps"].as_array().expect("steps").iter().filter_map(Value::as_str).collect();
    let expected = [
        "Order",
        "std::unique_ptr<Order>[] of vector",
        "Session of make_shared (+16)",
        "hash node of std::pair<unsigned long const, std::shared_ptr<Session>> (+16)",
        "buckets of a hash table",
        "global Cache::instance()::cache",
    ];
    // Nodes are a list, too.
    assert_eq!((steps.first(), steps.last()), (expected.first(), expected.last()), "{held:#}");
    for step in &steps {
        let of_node = step.starts_with("hash node of std::pair<unsigned long const");
        assert!(expected.contains(step) || of_node, "{step}: {held:#}");
    }
    let text = recording.heaptape(&["holds"]).success().text();
    assert!(text.contains("most by global Cache::instance()::cache"), "{text}");
    let text = recording.heaptape(&["holds", "--of", "open_session", "--types"]).success().text();
    assert!(text.contains("Session of make_shared") && text.contains("<- global Cache"), "{text}");
    recording.heaptape(&["holds", "--of", "no_such_function"]).exits(2);
}

#[test]
fn cycles_are_proven_by_their_counts_and_lost_blocks_by_a_second_sign() {
    let report = holds(&cache(10), &[]);
    assert_eq!((&report["cycle_blocks"], &report["lacks"]), (&400.into(), &"".into()), "{report:#}");
    // A stale word may hide a few, and must not invent one.
    let lost = report["lost_blocks"].as_u64().expect("blocks") - 400;
    assert!((198..=200).contains(&lost), "{report:#}");
    let rows = report["lost"].as_array().expect("rows");
    assert_eq!(rows.len(), 2, "{report:#}");
    for row in rows {
        let function = row["stack"].to_string();
        if row["is_cycle"] == true {
            assert_eq!(
                (&row["confidence"], &row["times"], &row["what"]),
                (&"proven".into(), &200.into(), &"2 Node of make_shared".into())
            );
            assert!(function.contains("make_cycle"), "{row:#}");
        } else {
            assert_eq!(row["confidence"], "likely", "{row:#}");
            assert!(function.contains("lose"), "{row:#}");
        }
    }
}

#[test]
fn each_kind_of_root_holds_its_block() {
    let recording = Program::new(target::c("holds_roots")).option("--references").recorded().success();
    let report = holds(&recording, &[]);
    assert_eq!(report["lacks"], "", "{report:#}");
    let root_of = |function: &str| {
        let is_it = |row: &&Value| row["stack"].to_string().contains(function);
        let held = report["held"].as_array().expect("rows").iter().find(is_it);
        held.and_then(|row| row["paths"][0]["steps"].as_array()?.last()?.as_str()).unwrap_or("nothing").to_owned()
    };
    for (function, root) in [
        ("of_stack", "stack of thread"),
        ("of_thread", "thread-local data of thread"),
        ("of_mapping", "mapping at 0x"),
        ("of_inside", "global inside"),
        ("of_large", "global large"),
        ("of_main", "stack of thread"),
        ("of_xor", "nothing"),
        ("of_lost", "nothing"),
    ] {
        let found = root_of(function);
        assert!(found.starts_with(root), "{function} is held by {found}: {report:#}");
    }
    let lost = |function: &str| {
        let is_it = |row: &&Value| row["stack"].to_string().contains(function);
        let rows = report["lost"].as_array().expect("rows").iter().filter(is_it);
        rows.filter_map(|row| row["blocks"].as_u64()).sum::<u64>()
    };
    assert!((49..=50).contains(&lost("of_lost")), "{report:#}");
    // Documented: a hidden pointer is none.
    assert_eq!(lost("of_xor"), 1, "{report:#}");
    assert_eq!(report["lost_blocks"].as_u64(), Some(lost("of_lost") + 1), "{report:#}");
}

#[test]
fn without_references_the_answer_says_how_to_get_them() {
    let recording = Program::new(target::c("holds_roots")).recorded().success();
    let outcome = recording.heaptape(&["holds"]);
    assert!(outcome.error().contains("record with --references"), "{}", outcome.error());
}

#[test]
fn a_cut_file_calls_nothing_lost() {
    let recording = cache(10);
    let path = &recording.files("references.tape")[0];
    let bytes = std::fs::read(path).expect("the file");
    std::fs::write(path, &bytes[..bytes.len() - 3]).expect("cut");
    let report = holds(&recording, &[]);
    assert_ne!(report["lacks"], "", "{report:#}");
    assert_eq!(report["lost_blocks"], 0, "{report:#}");
}

/// A stop makes a waiting thread look again at what it waits for, which may be in the frame of
/// `main`.
#[test]
fn threads_that_wait_on_the_frame_of_main_are_left_alone() {
    let program = Target::program("waits_on_main.c").flag("-pthread").build();
    let recording = Program::new(program).option("--references").recorded().success();
    let report = holds(&recording, &[]);
    assert_eq!(report["lost_blocks"], 0, "that thread may hold anything: {report:#}");
}

//! `heaptape holds`: who holds what is live when a program ends.

use heaptape_tests::{Program, Recording, Target, same, target, test_env};
use serde_json::Value;

#[track_caller]
pub(super) fn holds(recording: &Recording, arguments: &[&str]) -> Value {
    let output = recording.heaptape(&[&["holds", "--json", "--top", "100"], arguments].concat()).success();
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let processes = answer["processes"].as_array().expect("processes").iter();
    processes.map(|process| process["holds"].clone()).find(|holds| !holds.is_null()).expect("an answer")
}

pub(super) fn cache(sessions: u64) -> Recording {
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
        ("of_code", "mapping at 0x"),
        ("of_inside", "global inside"),
        ("of_large", "global large"),
        ("\"of_main\"", "stack of thread"),
        // It ends the program, and is not stopped for that; the area may be mapped just before.
        ("of_main_data", "thread-local data of thread"),
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

/// What lies in memory of a file that is shared, or that children do not get, is held.
#[test]
fn memory_of_every_kind_holds() {
    let folder = test_env::folder();
    let file = folder.path().join("mapped");
    let recording = Program::new(target::c("holds_odd_memory")).arg(&file).option("--references").recorded().success();
    assert_only_nothing_is_lost(&holds(&recording, &[]));
}

/// Asserts that of the blocks of `holds_odd_memory` those are lost that nothing holds.
pub(super) fn assert_only_nothing_is_lost(report: &Value) {
    assert_eq!(report["lacks"], "", "{report:#}");
    let rows = report["lost"].as_array().expect("rows");
    assert!(rows.iter().all(|row| row["stack"].to_string().contains("of_nothing")), "{report:#}");
    // The stack or a register may have the last one.
    assert!(report["lost_blocks"].as_u64().is_some_and(|blocks| (19..=20).contains(&blocks)), "{report:#}");
}

/// The kernel joins mappings that are beside each other, also with the stack of a thread.
#[test]
fn memory_beside_stacks_holds() {
    for (how, blocks) in [("fibers", 64), ("slab", 45 + 6), ("handler", 15)] {
        let program = Program::new(target::c("holds_beside_stacks")).arg(how).option("--references");
        let report = holds(&program.recorded().success(), &[]);
        let counts = ["lost_blocks", "cycle_blocks", "stale_blocks"].map(|key| &report[key]);
        assert_eq!(counts, [0, 0, 0].map(Value::from).each_ref(), "{how}: {report:#}");
        assert!(report["blocks"].as_u64().is_some_and(|live| live >= blocks), "{how}: {report:#}");
    }
}

/// Threads that wait for space in their rings stand still as well while the memory is read.
#[test]
fn threads_that_allocate_as_fast_as_they_can_lose_nothing() {
    let program = Program::new(target::c("holds_beside_stacks")).arg("speed").option("--references");
    let report = holds(&program.recorded().success(), &[]);
    // Each may have just taken a block from its slot, or not yet stored one.
    let unheld = ["lost_blocks", "stale_blocks"].map(|key| report[key].as_u64().unwrap_or(u64::MAX));
    assert!(unheld.iter().sum::<u64>() <= 4 && report["blocks"].as_u64() > Some(3000), "{report:#}");
}

#[test]
fn without_references_the_answer_says_how_to_get_them() {
    let recording = Program::new(target::c("holds_roots")).recorded().success();
    let outcome = recording.heaptape(&["holds"]);
    assert!(outcome.error().contains("record --references"), "{}", outcome.error());
}

#[test]
fn options_that_select_nothing_are_refused() {
    let recording = cache(10);
    for (option, value, remedy) in [
        ("--until", "10ms", "--live"),
        ("--from", "50%", "--live"),
        ("--function", "main", "--of"),
        ("--min-size", "9", "--of"),
    ] {
        let outcome = recording.heaptape(&["holds", option, value]);
        assert!(outcome.code() == 2 && outcome.error().contains(remedy), "{option}: {outcome}");
    }
}

/// A program that ends in a way in which nothing can be read is named with that way.
#[test]
fn a_killed_program_is_said_to_have_no_references_for_that() {
    let ended = |by: &str| {
        let program = Program::new("/bin/sh").args(["-c", &format!("kill -{by} $$")]);
        let recording = program.option("--references").recorded();
        let leaks = recording.heaptape(&["leaks", "--all"]).text();
        assert!(leaks.contains("note: who holds what in sh could not be read: "), "{leaks}");
        recording.heaptape(&["holds"]).exits(2).error()
    };
    let killed = ended("KILL");
    assert!(killed.contains("), ended by signal 9: ") && !killed.contains("--core"), "{killed}");
    let crashed = ended("SEGV");
    assert!(crashed.contains("), ended by signal 11: ") && crashed.contains("heaptape holds --core CORE"), "{crashed}");
}

fn beside(way: &str, place: &str, end: &str) -> Program {
    Program::new(target::c("ends_beside")).args([way, place, end]).option("--references")
}

/// Checks that a program ends as without us, and that none of its blocks is called lost.
#[track_caller]
fn ends_as_alone(way: &str, place: &str, end: &str) -> Option<Value> {
    let program = beside(way, place, end);
    let (plain, recording) = (program.plain(), program.recorded());
    same(&plain, &recording.outcome);
    let outcome = recording.heaptape(&["holds", "--json"]);
    let answer: Value = serde_json::from_slice(&outcome.stdout).unwrap_or_default();
    let report = answer["processes"][0]["holds"].clone();
    let lost = &report["lost_blocks"];
    assert!(lost.is_null() || lost == 0, "{way} {place} {end}: {report:#}");
    (!report.is_null()).then_some(report)
}

/// A stop makes a waiting thread look again at what it waits for: `main` may have returned, or freed
/// it. A thread whose wait could end so stays as it is.
#[test]
fn no_thread_notices_that_the_memory_is_read() {
    let ways = [
        "mutex",
        "condition",
        "condition_timed",
        "barrier",
        "semaphore",
        "semaphore_timed",
        "futex",
        "futex_private",
        "futex_changed",
        "poll",
        "poll_timed",
        "ppoll",
        "select",
        "pselect",
        "sigtimedwait",
        "sigwaitinfo",
        "sigsuspend",
        "nanosleep",
        "pause",
        "accept",
        "epoll",
        "epoll_pwait",
        "read",
        "readv",
        "recv",
        "recvmsg",
        "waitpid",
        "spins",
    ];
    for way in ways {
        for (place, end) in [("block", "return"), ("frame", "thread")] {
            let report = ends_as_alone(way, place, end);
            // A thread that runs may be late to stop on a busy machine.
            let report = report.filter(|_| way != "spins");
            assert!(report.is_none_or(|report| report["lacks"] == ""), "{way} {place} {end}");
        }
    }
}

/// What only a register holds is not lost, whether its thread was stopped or not.
#[test]
fn a_register_of_a_waiting_thread_holds_its_block() {
    for place in ["block", "frame"] {
        let report = ends_as_alone("register", place, "return").expect("an answer");
        assert_eq!(report["lacks"], "", "{report:#}");
        // `main` has freed and overwritten the word, or the frame of `main` still has it.
        let is_undecided = report["undecided_blocks"] == 4;
        assert!(is_undecided || report["undecided_blocks"] == 0, "{report:#}");
        assert!(is_undecided || place == "frame", "{report:#}");
    }
}

#[test]
fn programs_end_as_alone_in_whatever_way_they_end() {
    for (way, place) in [("pause", "frame"), ("poll", "frame"), ("condition", "block")] {
        for end in ["dumpable", "children", "handler", "_exit", "abort", "both"] {
            ends_as_alone(way, place, end);
        }
    }
    // The first thread has ended: the memory is read by another one.
    let report = ends_as_alone("nobody", "frame", "last").expect("an answer");
    assert_eq!(report["lacks"], "", "{report:#}");
}

/// `leaks` has a second axis where the recording has references.
#[test]
fn leaks_say_who_holds_their_blocks() {
    let recording = cache(500);
    let output = recording.heaptape(&["leaks", "--json"]).success();
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let leaks = answer["leaks"].as_array().expect("leaks");
    let of = |function: &str| -> Vec<&Value> {
        let is_it = |leak: &&Value| leak["stack"].to_string().contains(function);
        leaks.iter().filter(is_it).map(|leak| &leak["held"]).collect()
    };
    assert_eq!(of("keep").len(), 1, "{answer:#}");
    for held in of("keep") {
        assert_eq!(
            (&held["by"][0]["name"], &held["by"][0]["blocks"]),
            (&"global kept".into(), &100.into()),
            "{held:#}"
        );
        assert_eq!((&held["lost_blocks"], &held["cycle_blocks"]), (&0.into(), &0.into()), "{held:#}");
    }
    let cycles = of("make_cycle");
    assert!(cycles.iter().all(|held| held["by"] == Value::Array(Vec::new())), "{answer:#}");
    let blocks: u64 = cycles.iter().filter_map(|held| held["cycle_blocks"].as_u64()).sum();
    assert_eq!(blocks, 400, "{answer:#}");
    let lost = of("lose");
    assert!(lost.iter().all(|held| held["lost_blocks"].as_u64() >= Some(198)), "{answer:#}");
    let text = recording.heaptape(&["leaks", "--all"]).success().text();
    for line in ["held by global kept: ", "lost: ", "in cycles that nothing else holds: "] {
        assert!(text.contains(line), "{line}: {text}");
    }
    // What nothing holds is listed and named first, though it does not grow.
    let text = recording.heaptape(&["leaks"]).success().text();
    let head: Vec<&str> = text.lines().take_while(|line| !line.starts_with("1. ")).collect();
    let head = head.join("\n");
    assert!(head.contains(" lost, ") && head.contains(" in cycles that nothing else holds: "), "{text}");
    assert!(text.contains("lose holds_cache.cpp:") && text.contains("make_cycle"), "{text}");
    assert!(!text.contains("held by global kept"), "{text}");
    // Without references nothing is said.
    let plain = Program::new(Target::program("holds_cache.cpp").build()).arg("10").recorded().success();
    let output = plain.heaptape(&["leaks", "--json"]).success();
    assert!(!String::from_utf8_lossy(&output.stdout).contains("\"held\""));
}

/// What one function allocated may be two leaks, here that which the runtime keeps on purpose and the
/// rest: each has the holders of its own blocks.
#[test]
fn holders_of_a_leak_have_no_more_blocks_than_it() {
    let program = Program::new("readlink").args(["-f", "/"]).env("LC_ALL", "C.UTF-8").option("--references");
    let recording = program.recorded().success();
    let output = recording.heaptape(&["leaks", "--json"]).success();
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let leaks = answer["leaks"].as_array().expect("leaks").iter().filter(|leak| leak.get("held").is_some());
    let number = |value: &Value| value.as_u64().expect("a number");
    let mut checked = 0;
    for leak in leaks {
        let held = &leak["held"];
        let by: u64 = held["by"].as_array().expect("holders").iter().map(|holder| number(&holder["blocks"])).sum();
        let blocks = by + number(&held["lost_blocks"]) + number(&held["cycle_blocks"]);
        assert!(blocks <= number(&leak["blocks"]), "{leak:#}");
        checked += 1;
    }
    assert!(checked > 0, "{answer:#}");
}

/// Two processes of one program: their leaks are one entry, and its holders are those of both.
#[test]
fn leaks_of_several_processes_name_the_holders_in_each() {
    let program = Target::program("holds_cache.cpp").build();
    let script = format!("{0} 300 & {0} 200; wait", program.display());
    let recording = Program::new("sh").args(["-c", &script]).option("--references").recorded().success();
    let text = recording.heaptape(&["leaks", "--all"]).success().text();
    // 100 orders of 48 bytes in each.
    assert!(text.contains("held by global kept of 2 processes: 9.38 KiB"), "{text}");
    let answer = recording.heaptape(&["holds", "--json"]).success();
    let answer: Value = serde_json::from_slice(&answer.stdout).expect("JSON");
    let with = |process: &&Value| process["holds"]["roots"].to_string().contains("global kept");
    assert_eq!(answer["processes"].as_array().expect("processes").iter().filter(with).count(), 2, "{answer:#}");
}

/// The first lines are about the leak that grows most, and name its holder in each process: from half of
/// its bytes on without a share.
#[test]
fn the_headline_names_the_holder_of_what_grows() {
    let program = Target::program("grows.c").build();
    let script = format!("{0} 10 & {0} 10; wait", program.display());
    for (line, expected, wrong) in [
        (script, "held by global list of 2 processes", "% held by"),
        (format!("{} 6", program.display()), "held by global list", "% held by"),
        (format!("{} 4", program.display()), "40.0% held by global list", "nothing"),
    ] {
        let recording = Program::shell(&line).option("--references").recorded().success();
        let text = recording.heaptape(&["leaks"]).success().text();
        let head: Vec<&str> = text.lines().take_while(|line| !line.starts_with("1. ")).collect();
        let head = head.join("\n");
        assert!(head.contains("growing: grow grows.c:"), "{text}");
        assert!(head.contains(expected) && !head.contains(wrong), "{line}: {text}");
    }
}

/// The program has one global that owns nearly everything. A stale word on a stack may lead to a few
/// blocks, too.
#[test]
fn what_only_a_cache_or_a_type_holds_is_retained_by_it() {
    let recording = cache(500);
    let report = holds(&recording, &["--types"]);
    let root = &report["roots"][0];
    let (blocks, only) = (root["blocks"].as_u64(), root["only_blocks"].as_u64());
    assert!((Some(3990)..=blocks).contains(&only), "{root:#}");
    assert!(root["only_bytes"].as_u64() <= root["bytes"].as_u64(), "{root:#}");
    let retained = |start: &str| {
        let is_it = |row: &&Value| row["what"].as_str().is_some_and(|what| what.starts_with(start));
        let row = report["held"].as_array().expect("rows").iter().find(is_it).expect("the type");
        (row["blocks"].as_u64(), row["retained_blocks"].as_u64().expect("a number"))
    };
    // A session, its four orders, the array of them, and its name.
    let (blocks, sessions) = retained("Session of make_shared");
    assert_eq!(blocks, Some(500));
    assert!((3493..=3500).contains(&sessions), "{report:#}");
    let (_, nodes) = retained("hash node of");
    assert!((3980..=4000).contains(&nodes), "{report:#}");
    // The nodes are a list as well, whose start is in the map itself.
    assert_eq!(retained("buckets of a hash table"), (Some(1), 1), "{report:#}");
    let text = recording.heaptape(&["holds"]).success().text();
    assert!(text.contains("only by it") && text.contains(" with what only they hold"), "{text}");
}

/// One old word on a stack leads into a map, and from there to all of it: not even a node is held only by
/// the map, and the answer says by what else.
#[test]
fn a_second_holder_of_most_of_it_is_named() {
    let program = Program::new(Target::program("holds_shared.cpp").build()).option("--references");
    let recording = program.recorded().success();
    let report = holds(&recording, &[]);
    let root = |name: &str| {
        let row = report["roots"].as_array().expect("roots").iter().find(|row| row["name"] == name);
        row.unwrap_or_else(|| panic!("no {name}: {report:#}")).clone()
    };
    let shared = root("global shared");
    assert_eq!((&shared["blocks"], &shared["only_blocks"]), (&4000.into(), &0.into()), "{shared:#}");
    assert!(shared["also_by"].as_str().is_some_and(|name| name.starts_with("stack of thread")), "{shared:#}");
    assert_eq!(shared["also_bytes"], shared["bytes"], "{shared:#}");
    let alone = root("global alone");
    assert_eq!((&alone["blocks"], &alone["only_blocks"]), (&1000.into(), &1000.into()), "{alone:#}");
    assert_eq!((&alone["also_by"], &alone["also_bytes"]), (&Value::Null, &Value::Null), "{alone:#}");
    // Which of two globals at the same distance counts as the nearest is not said.
    let both = [root("global whole"), root("global part")].map(|row| (row["blocks"] != row["only_blocks"], row));
    let partly: Vec<&Value> = both.iter().filter(|(is_shared, _)| *is_shared).map(|(_, row)| row).collect();
    assert!(!partly.is_empty(), "{both:#?}");
    for row in partly {
        let other = if row["name"] == "global whole" { "global part" } else { "global whole" };
        assert_eq!((&row["also_by"], &row["also_bytes"]), (&other.into(), &(300 * 160).into()), "{row:#}");
    }
    let text = recording.heaptape(&["holds"]).success().text();
    assert!(text.contains("global shared; 188 KiB of it also by stack of thread"), "{text}");
}

/// At which place of a node an element is makes no difference.
#[test]
fn elements_of_arrays_in_nodes_are_held_in_one_way() {
    let program = Program::new(Target::program("holds_elements.cpp").build()).option("--references");
    let report = holds(&program.recorded().success(), &[]);
    let row = |function: &str| {
        let rows = report["held"].as_array().expect("rows");
        let row = rows.iter().find(|row| row["label"].as_str().is_some_and(|label| label.contains(function)));
        row.unwrap_or_else(|| panic!("no {function}: {report:#}"))
    };
    // The first and the last node of a deque are held by itself, too.
    let ways = |function| row(function)["ways"].as_u64().expect("a number");
    assert!(ways("make_waiting") <= 3 && ways("make_queued") <= 2, "{report:#}");
    assert_eq!(row("make_waiting")["blocks"], 2000);
    assert_eq!(row("make_queued")["blocks"], 20 * 31);
}

/// The map of the page is what is held by way of what.
#[test]
fn the_page_has_what_is_held_through_each_kind() {
    let recording = cache(500);
    let report = holds(&recording, &[]);
    let page = page_of(&recording);
    let root = &page["held"][0][0];
    assert_eq!(
        (&root["name"], &root["bytes"]),
        (&report["roots"][0]["name"], &report["roots"][0]["bytes"]),
        "{root:#}"
    );
    // Nearly all are in the buckets, and each holds the next one; the map itself knows the first node.
    let mut part = root;
    let way = ["buckets of", "hash node of", "Session of make_shared", "std::unique_ptr<Order>[] of vector", "Order"];
    let blocks = [500 * 8 + 1, 500 * 8, 500 * 7, 500 * 5, 500 * 4];
    for (start, blocks) in way.into_iter().zip(blocks) {
        let parts = part["parts"].as_array().unwrap_or_else(|| panic!("no {start}: {root:#}"));
        part =
            parts.iter().find(|part| part["name"].as_str().is_some_and(|name| name.starts_with(start))).expect(start);
        let found = part["blocks"].as_u64().expect("a number");
        assert!((blocks * 98 / 100..=blocks).contains(&found), "{start} {blocks}: {root:#}");
    }
    assert_eq!(root["kinds"][0]["name"], "Order", "{root:#}");
}

/// The card of a leak has the way from its blocks to the root, and that of several leaks the sums.
#[test]
fn a_card_of_the_page_has_who_holds_it_and_how() {
    let recording =
        Program::new(Target::program("holds_shared.cpp").build()).option("--references").recorded().success();
    let page = page_of(&recording);
    let cards = page["cards"].as_array().expect("cards");
    let card = cards.iter().find(|card| card["text"] == "Held by global kept (23.4 KiB)");
    let card = card.unwrap_or_else(|| panic!("no card: {cards:#?}"));
    let steps = card["paths"][0]["steps"].as_array().expect("steps");
    assert_eq!((steps.len(), &steps[0]), (3, &"tree node of std::pair<int const, long>".into()), "{card:#}");
    assert_eq!(steps[2], "global kept", "{card:#}");
    // The map leads to the root of the tree, and to its ends.
    let blocks = card["paths"][0]["blocks"].as_u64().expect("a number");
    assert!((800..=1000).contains(&blocks) && card["bytes"] == 24_000, "{card:#}");
    assert_eq!(card["both"]["by"][0]["bytes"], 48_000, "{card:#}");
}

/// Returns what the page makes of it.
fn page_of(recording: &Recording) -> Value {
    let file = recording.directory.path().join("page.html");
    recording.heaptape(&["export", "--format", "html", "-o", file.to_str().expect("a path")]).success();
    heaptape_tests::page::read(&file, &["timeline.js", "tree.js", "holders.js"])
}

/// Two runs of one program: what grew, each block with what holds it.
#[test]
fn since_an_earlier_recording_the_edges_that_grew_are_named() {
    let (before, after) = (cache(100), cache(300));
    let since = ["--since", before.folder.to_str().expect("a path")];
    let report = holds(&after, &since);
    let rows = report["grown"].as_array().expect("rows");
    let of = |what: &str, holder: &str| {
        let is_it = |row: &&Value| {
            let has = |key: &str, text: &str| row[key].as_str().is_some_and(|value| value.starts_with(text));
            has("what", what) && has("holder", holder)
        };
        let found: Vec<u64> =
            rows.iter().filter(is_it).map(|row| blocks(row) - row["before_blocks"].as_u64().unwrap_or(0)).collect();
        found.iter().sum::<u64>()
    };
    fn blocks(row: &Value) -> u64 {
        row["blocks"].as_u64().expect("a number")
    }
    assert_eq!(of("Order", "std::unique_ptr<Order>[] of vector"), 800, "{report:#}");
    assert_eq!(of("Session", "hash node"), 200, "{report:#}");
    // The 100 of `keep` are as many as before.
    assert_eq!(of("block of keep", ""), 0, "{report:#}");
    assert_eq!(holds(&after, &["--since", after.folder.to_str().expect("a path")])["grown"], Value::Array(Vec::new()));
    let text = after.heaptape(&[&["holds"], &since[..]].concat()).success().text();
    assert!(text.contains("Order <- std::unique_ptr<Order>[] of vector"), "{text}");
}

/// Legacy mangling, the default of stable compilers, drops the types of generic functions; DWARF has
/// them.
#[test]
fn rust_blocks_have_types_with_legacy_names() {
    let program = Target::program("holds_types.rs").build();
    let report = holds(&Program::new(program).option("--references").recorded().success(), &["--types"]);
    let of = |what: &str| {
        let row = report["held"].as_array().expect("rows").iter().find(|row| row["what"] == what);
        row.and_then(|row| row["blocks"].as_u64())
    };
    assert_eq!(of("holds_types::Order"), Some(400), "{report:#}");
    assert_eq!(of("Arc<holds_types::Session>"), Some(100), "{report:#}");
    let lost = report["lost"].as_array().expect("rows");
    let proven = |row: &&Value| row["is_cycle"] == true && row["confidence"] == "proven";
    let cycles: u64 = lost.iter().filter(proven).filter_map(|row| row["times"].as_u64()).sum();
    // A stale word on the stack may lead to one.
    assert!((48..=50).contains(&cycles), "{report:#}");
    assert_eq!(report["lost_blocks"], cycles, "{report:#}");
}

/// The reader knows protocol buffers, and Perfetto's numbers of fields.
#[test]
fn perfetto_gets_the_graph_of_blocks() {
    let recording = cache(500);
    let report = holds(&recording, &[]);
    let trace = recording.directory.path().join("trace.pftrace");
    recording.heaptape(&["export", "--format", "perfetto", "-o", trace.to_str().expect("a path")]).success();
    let reader = test_env::programs().join("../clients/read_perfetto.py");
    let output = std::process::Command::new("python3").arg(reader).arg(&trace).output().expect("python3");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let graph = found["graphs"].as_object().expect("graphs").values().next().expect("a graph");
    for (key, expected) in [("objects", "blocks"), ("bytes", "bytes"), ("held_bytes", "held_bytes")] {
        assert_eq!(graph[key], report[expected], "{key}: {graph:#}");
    }
    assert!(graph["roots"].to_string().contains("global Cache::instance()::cache"), "{graph:#}");
    assert!(graph["types"].to_string().contains("Session of make_shared"), "{graph:#}");
}

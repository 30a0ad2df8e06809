//! Memory that programs map themselves: what is mapped at the end, by the program's own count of
//! pages.

use super::rss::{all_rss, oracle};
use heaptape_tests::{Program, Recording, same, target};
use serde_json::Value;

fn report(recording: &Recording) -> Vec<Value> {
    let output = recording.heaptape(&["report", "--json"]).success();
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    report["processes"].as_array().expect("processes").clone()
}

/// Returns a sum of the calls of a process that map memory.
#[track_caller]
fn sum(process: &Value, name: &str) -> u64 {
    process["mappings"][name].as_u64().unwrap_or_else(|| panic!("{name}: {process:#}"))
}

#[test]
fn mapped_ranges_are_those_that_the_program_counts() {
    let program = Program::new(target::c("mappings"));
    let plain = program.plain().success();
    let recording = program.recorded();
    same(&plain, &recording.outcome);
    let recording = recording.complete();
    let processes = report(&recording);
    let [parent, child] = &processes[..] else { panic!("{processes:#?}") };
    // The recorder reads the length of a segment, and may be too late for that on a busy machine.
    let page = oracle(&recording, "page");
    let [expected, without] = [0, 7 * page].map(|late| oracle(&recording, "mapped") - late);
    let mapped = sum(parent, "mapped_bytes");
    assert!([expected, without].contains(&mapped), "{expected}: {parent:#}");
    // Two ends and a middle of one call, three each of two that differ in their access, one of each
    // other kind, and those of the threads.
    let ranges = 1 + 3 + 3 + 3 + 1 + 1 + u64::from(mapped == expected) + 1 + 1 + 40;
    assert_eq!(sum(parent, "mapped_ranges"), ranges, "{parent:#}");
    // A constructor, the break, cuts, two moves of two ranges, 52 that are not kept, two that are
    // reserved, one that is returned, a file, two segments, a handler, and 100 of each thread.
    assert_eq!(sum(parent, "calls"), 1 + 1 + 1 + 4 + 52 + 2 + 1 + 1 + 2 + 1 + 400, "{parent:#}");
    assert_eq!(sum(parent, "reserved_bytes"), oracle(&recording, "reserved"), "{parent:#}");
    let returned = (sum(parent, "returned_bytes"), sum(parent, "returned_calls"));
    assert_eq!(returned, (oracle(&recording, "returned"), 2), "{parent:#}");
    assert_eq!((sum(child, "mapped_bytes"), sum(child, "calls")), (13 * page, 1), "{child:#}");
    assert_eq!((sum(child, "inherited_bytes"), sum(parent, "inherited_bytes")), (mapped, 0), "{child:#}");
    for process in &processes {
        let number = |name: &str| process[name].as_u64().expect("a number");
        assert_eq!(number("allocs") + number("resizes") + number("frees"), number("recorded_events"), "{process:#}");
        assert_eq!(number("emitted_events"), number("recorded_events"), "calls that map memory are no events");
        assert_eq!(sum(process, "allocator_calls"), 0, "glibc's own calls are not seen");
    }
    let text = recording.heaptape(&["report"]).success().text();
    assert!(text.contains("mappings   "), "{text}");
    assert!(!recording.heaptape(&["report", "--mappings", "no"]).success().text().contains("mappings   "));
    let only = recording.heaptape(&["report", "--mappings", "only"]).success().text();
    assert!(
        only.contains("returned by madvise") && only.contains("reserves") && !only.contains("events     "),
        "{only}"
    );
    assert_leaks_name_them(&recording, mapped + sum(child, "mapped_bytes"));
    assert_others_have_them(&recording, mapped);
}

fn json(recording: &Recording, arguments: &[&str]) -> Value {
    let output = recording.heaptape(&[arguments, &["--json"]].concat()).success();
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// The section of `leaks` has all that is mapped, with its stack, function and file.
#[track_caller]
fn assert_leaks_name_them(recording: &Recording, mapped: u64) {
    let leaks = json(recording, &["leaks"]);
    let rows = leaks["mappings"].as_array().unwrap_or_else(|| panic!("{leaks:#}"));
    let (page, bytes) = (oracle(recording, "page"), |row: &Value| row["bytes"].as_u64().expect("bytes"));
    assert_eq!(rows.iter().map(bytes).sum::<u64>(), mapped, "{rows:#?}");
    let of = |name: &str| {
        let is_it = |row: &&Value| {
            row["stack"].as_array().expect("a stack").iter().any(|frame| frame["function"].as_str() == Some(name))
        };
        rows.iter().find(is_it).unwrap_or_else(|| panic!("{name}: {rows:#?}"))
    };
    for (name, pages, ranges, function) in [
        ("reserves", 9, 6, "mmap"),
        ("cuts", 3, 3, "mmap"),
        ("moves", 40, 1, "mmap"),
        ("grow_break", 11, 1, "brk"),
        ("map_file", 3, 1, "mmap"),
        ("handler", 2, 1, "mmap"),
        ("run", 40, 40, "mmap"),
    ] {
        let row = of(name);
        let found = (bytes(row), row["ranges"].as_u64(), row["function"].as_str());
        assert_eq!(found, (pages * page, Some(ranges), Some(function)), "{row:#}");
    }
    let segment = rows.iter().find(|row| row["function"] == "shmat");
    assert!(segment.is_none_or(|row| bytes(row) == 7 * page), "{rows:#?}");
    // The recorder reads the name, too.
    assert!(of("map_file")["file"].as_str().is_none_or(|file| file.contains("mappings")), "{rows:#?}");
    assert!(json(recording, &["leaks", "--mappings", "no"])["mappings"].is_null());
    let only = json(recording, &["leaks", "--mappings", "only"]);
    assert_eq!((&only["mappings"], only["leaks"].as_array().map(Vec::len)), (&leaks["mappings"], Some(0)));
    assert_eq!(of("reserves")["reserved_bytes"].as_u64(), Some(59 * page), "{rows:#?}");
}

/// `peak` and `timeline` have what was mapped at their times, and `rss` the pages of it that were
/// written: one of each of three ranges.
#[track_caller]
fn assert_others_have_them(recording: &Recording, mapped: u64) {
    let timeline = json(recording, &["timeline"]);
    let slices = timeline["processes"][0]["slices"].as_array().expect("slices");
    let last = slices.last().expect("a slice");
    assert_eq!(last["mapped_bytes"].as_u64(), Some(mapped), "{timeline:#}");
    assert_eq!(last["reserved_bytes"].as_u64(), Some(oracle(recording, "reserved")), "{timeline:#}");
    let without = json(recording, &["timeline", "--mappings", "no"]);
    assert!(without["processes"][0]["slices"][0]["mapped_bytes"].is_null(), "{without:#}");
    let text = recording.heaptape(&["timeline", "--mappings", "only"]).success().text();
    assert!(text.contains("reserved") && !text.contains("blocks"), "{text}");
    let peak = json(recording, &["peak"]);
    let rows = peak["processes"][0]["mapped"].as_array().unwrap_or_else(|| panic!("{peak:#}"));
    assert!(rows.iter().any(|row| row["function"] == "brk"), "{peak:#}");
    for report in all_rss(recording, &[]).iter().filter(|report| report["cause"] == "exit") {
        let rows = report["mapped"].as_array().unwrap_or_else(|| panic!("{report:#}"));
        let bytes = rows.iter().filter_map(|row| row["bytes"].as_u64()).sum::<u64>();
        assert_eq!(bytes, 3 * oracle(recording, "page"), "{report:#}");
        let returned = report["returned"].as_array().unwrap_or_else(|| panic!("{report:#}"));
        let sum = |key: &str| returned.iter().filter_map(|row| row[key].as_u64()).sum::<u64>();
        assert_eq!((sum("bytes"), sum("calls")), (oracle(recording, "returned"), 2), "{report:#}");
    }
}

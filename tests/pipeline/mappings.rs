//! Memory that programs map themselves: what is mapped at the end, by the program's own count of
//! pages.

use super::rss::oracle;
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
    assert_eq!(sum(parent, "mapped_bytes"), oracle(&recording, "mapped"), "{parent:#}");
    // Two ends and a middle of one call, and one of each other kind, and those of the threads.
    assert_eq!(sum(parent, "mapped_ranges"), 1 + 3 + 1 + 1 + 1 + 1 + 1 + 40, "{parent:#}");
    // A constructor, the break, cuts, two moves of two ranges, 52 that are not kept, a file, two
    // segments, a handler, and 100 of each thread.
    assert_eq!(sum(parent, "calls"), 1 + 1 + 1 + 4 + 52 + 1 + 2 + 1 + 400, "{parent:#}");
    assert_eq!((sum(child, "mapped_bytes"), sum(child, "calls")), (13 * 4096, 1), "{child:#}");
    for process in &processes {
        let number = |name: &str| process[name].as_u64().expect("a number");
        assert_eq!(number("allocs") + number("resizes") + number("frees"), number("recorded_events"), "{process:#}");
        assert_eq!(number("emitted_events"), number("recorded_events"), "calls that map memory are no events");
        assert_eq!(sum(process, "allocator_calls"), 0, "glibc's own calls are not seen");
    }
    let text = recording.heaptape(&["report"]).success().text();
    assert!(text.contains("mappings   "), "{text}");
}

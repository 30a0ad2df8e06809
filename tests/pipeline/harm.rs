//! Generated programs see no difference between a bare run and a recorded one.

use heaptape_tests::harm::{Case, Hunt, Summary, Way};
use heaptape_tests::{is_full, torture};
use std::time::{Duration, SystemTime};

/// Cases that differed once, each made small.
const ONCE_DIFFERENT: &[&str] = &[
    // Sampling computed with the program's floating-point state.
    "float:1:0 pairs:2000:500 pairs:2000:500",
    // Operators of one plugin served another.
    "plugin:2:0:5 plugin:3:0:5",
    // An ignored signal had its default disposition in the program.
    "ignoring:13 look",
];

/// A minute of cases, 40 s from fixed seeds and 20 s from the clock's; an hour in the full form.
#[test]
fn a_minute_of_generated_programs() {
    let (fixed, clock) = if is_full() { (600, 3_000) } else { (40, 20) };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let hunt = Hunt::new();
    let mut summary = Summary::default();
    hunt.run(1, Duration::from_secs(fixed), &mut summary);
    println!("seeds of the clock from {now}");
    hunt.run(now, Duration::from_secs(clock), &mut summary);
    println!("{summary}");
    assert!(summary.found.is_empty(), "seeds from 1 and from {now}: {summary}");
    assert!(summary.runs > 0 && summary.unsteady.len() as u64 * 10 <= summary.cases.max(20), "{summary}");
    hunt.daemon_is_whole();
    torture::passed(59, "generated programs without a difference", summary.cases);
}

#[test]
fn cases_that_differed_once() {
    let hunt = Hunt::new();
    let mut summary = Summary::default();
    for text in ONCE_DIFFERENT {
        hunt.replay(&Case::parse(text).expect("a case"), &mut summary);
    }
    assert!(summary.found.is_empty(), "{summary}");
}

/// The comparison finds each kind of harm that another library does on purpose.
#[test]
fn planted_harm_is_found() {
    let kinds = [
        "descriptor",
        "handler",
        "disposition",
        "mask",
        "limit",
        "timer",
        "mapping",
        "environment",
        "output",
        "errno",
        "flags",
        "alignment",
        "crash",
    ];
    for kind in kinds {
        let mut summary = Summary::default();
        Hunt::only(Way::Planted(kind)).run(1, Duration::from_secs(60), &mut summary);
        let found = summary.found.first().unwrap_or_else(|| panic!("{kind} is not found: {summary}"));
        assert!(!found.what.is_empty(), "{found}");
    }
    torture::passed(59, "kinds of planted harm, each found", kinds.len() as u64);
}

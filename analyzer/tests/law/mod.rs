//! The invariant of the accounting: also for damaged recordings, no command reports that nothing is
//! lost while another one reports a loss, and `emitted = recorded + lost + sampled out` holds
//! wherever the four numbers are printed.

use heaptape_analyzer::export::{self, html};
use heaptape_analyzer::report::{Query, View, leaks, summary, verify};
use heaptape_analyzer::text::Style;
use heaptape_reports::{threads, timeline};
use serde_json::Value;
use std::path::Path;

/// Texts of reports on a known number of lost events.
const LOST: [&str; 4] = [" LOST", " dropped: its ring was full", " events is unusable", " events cannot be read"];
/// Texts of reports on an unknown number of lost events.
const DAMAGED: [&str; 5] = [
    " of the tape are damaged",
    " is truncated at ",
    " is truncated: ",
    " are not a complete event",
    "none of its files",
];

/// The four numbers of the accounting, as one command prints them.
type Numbers = [u64; 4];

fn numbers(value: &Value, what: &str) -> Numbers {
    let names = ["emitted_events", "recorded_events", "lost_events", "sampled_out_events"];
    let numbers = names.map(|name| value[name].as_u64().unwrap_or_else(|| panic!("{what}: no {name} in {value}")));
    let [emitted, recorded, lost, sampled_out] = numbers;
    assert_eq!(emitted, recorded + lost + sampled_out, "{what}: {value}");
    numbers
}

/// Returns the last row of the table of `verify` of a recording with one process.
fn of_verify(text: &str) -> Option<Numbers> {
    let row = text.lines().find(|line| line.ends_with("  all") || line.ends_with("threads more among them"))?;
    let mut columns = row.split_whitespace().map(|column| column.replace(',', "").parse::<u64>());
    let mut next = || columns.next()?.ok();
    Some([next()?, next()?, next()?, next()?])
}

/// Checks the invariant for a recording. Returns the number of lost events, if it can be read.
#[track_caller]
pub(crate) fn holds(path: &Path, what: &str) -> Option<u64> {
    let query = |json| Query::of(path, View { json, top: 5, ..View::default() });
    let style = Style::PLAIN;
    type Run<'a> = Box<dyn Fn(&mut Vec<u8>) -> bool + 'a>;
    let (text, json) = (query(false), query(true));
    let options = leaks::Options::default();
    let runs: [(&str, Run<'_>); 7] = [
        ("report", Box::new(|out| summary::report(&text, out, style).is_ok())),
        ("report --json", Box::new(|out| summary::report(&json, out, style).is_ok())),
        ("verify", Box::new(|out| verify::run(path, out, style).is_ok())),
        ("leaks", Box::new(|out| leaks::run(&text, &options, out, style).is_ok())),
        ("leaks --json", Box::new(|out| leaks::run(&json, &options, out, style).is_ok())),
        ("threads --json", Box::new(|out| threads::run(&json, out, style).is_ok())),
        ("timeline --json", Box::new(|out| timeline::run(&json, 10, false, out, style).is_ok())),
    ];
    let mut texts: Vec<(&str, String)> = Vec::new();
    for (name, run) in runs {
        let mut out = Vec::new();
        if run(&mut out) {
            texts.push((name, String::from_utf8(out).unwrap_or_else(|error| panic!("{what}: {name}: {error}"))));
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let paths = [path.to_path_buf()];
    if let Some(exporter) = export::exporter("html")
        && export::run(exporter, &paths, &export::Options::default(), Some(&page), false).is_ok()
    {
        let file = std::fs::read_to_string(&page).unwrap();
        let held = html::read(&file).unwrap_or_else(|| panic!("{what}: no page"));
        texts.push(("html", held.page.to_string()));
    }
    let names = |patterns: &[&str]| {
        let says = |(_, text): &&(&str, String)| patterns.iter().any(|pattern| text.contains(pattern));
        texts.iter().find(says).map(|(name, _)| *name)
    };
    if let Some(who) = names(&LOST).or_else(|| names(&DAMAGED)) {
        for (name, text) in &texts {
            assert!(!text.contains("none lost"), "{what}: {name} says \"none lost\", {who} names a loss\n{texts:#?}");
        }
    }
    let mut all: Vec<(&str, Numbers)> = Vec::new();
    let mut processes = 0;
    for (name, text) in &texts {
        // `verify` prints a table for each process, and none for all of them.
        if *name == "verify" && processes == 1 {
            all.extend(of_verify(text).map(|numbers| (*name, numbers)));
        }
        let value = match *name {
            "report --json" | "html" => serde_json::from_str::<Value>(text).unwrap(),
            _ => continue,
        };
        processes = value["processes"].as_array().map_or(0, Vec::len);
        let missing = if *name == "html" { &value["recordings"][0]["missing"] } else { &value["missing"] };
        let mut is_exact = missing.as_array().is_none_or(Vec::is_empty);
        for process in value["processes"].as_array().into_iter().flatten() {
            numbers(process, what);
            is_exact &= process["lost_is_exact"].as_bool().unwrap();
        }
        if let Some(who) = names(&DAMAGED) {
            assert!(!is_exact, "{what}: {name} calls its count exact, {who} names damage: {texts:#?}");
        }
        let totals = if *name == "html" { &value["recordings"][0]["totals"] } else { &value["totals"] };
        all.push((name, numbers(totals, what)));
    }
    for (name, numbers) in &all {
        assert_eq!(*numbers, all[0].1, "{what}: {name} and {} differ: {texts:#?}", all[0].0);
        assert!(
            numbers[2] > 0 || names(&LOST).is_none(),
            "{what}: {name} has 0, {:?} names a loss: {texts:#?}",
            names(&LOST)
        );
    }
    all.first().map(|(_, numbers)| numbers[2])
}

//! Reports of traces and profiles that the real mpatrol wrote, compared with the figures in the
//! README of the samples.

use heaptape_analyzer::report::{Query, View, leaks, summary};

use heaptape_analyzer::text::Style;
use heaptape_reports::{sites, threads, timeline};
use serde_json::Value;
use std::path::{Path, PathBuf};

fn sample(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/mpatrol").join(name)
}

fn query(name: &str) -> Query {
    Query::of(sample(name), View::json(1000))
}

fn value(out: &[u8]) -> Value {
    serde_json::from_slice(out).unwrap()
}

fn totals(name: &str) -> Value {
    let mut out = Vec::new();
    summary::report(&query(name), &mut out, Style::PLAIN).unwrap();
    value(&out)["totals"].clone()
}

#[test]
fn totals_of_traces_and_profiles() {
    // name, allocations of the profile, bytes, blocks left, bytes left
    for (name, allocs, bytes, left, left_bytes) in [
        ("basic", 26, 5376, 10, 1456),
        ("basic32", 26, 5376, 10, 1456),
        ("basic32-be", 26, 5376, 10, 1456),
        ("names", 420, 26580, 132, 5172),
        ("threads", 104, 11302, 10, 1766),
        ("recursion", 11, 469, 9, 402),
        ("deep", 7, 546, 6, 526),
    ] {
        for kind in ["mtrc", "mpt"] {
            let file = format!("{name}.{kind}");
            let totals = totals(&file);
            let found =
                ["allocs", "bytes_allocated", "live_blocks", "live_bytes"].map(|field| totals[field].as_u64().unwrap());
            assert_eq!(found, [allocs, bytes, left, left_bytes], "{file}");
        }
    }
    let sizes = totals("sizes.mtrc");
    assert_eq!((&sizes["allocs"], &sizes["bytes_allocated"]), (&17.into(), &111105.into()));
    let resized = totals("realloc.mtrc");
    assert_eq!((&resized["live_blocks"], &resized["live_bytes"]), (&2.into(), &48.into()));
}

/// The leaks of a profile have function names, those of a trace have function names and lines.
#[test]
fn leaks_name_their_functions() {
    let mut out = Vec::new();
    leaks::run(&query("basic.mpt"), &leaks::Options::default(), &mut out, Style::PLAIN).unwrap();
    let answer = value(&out);
    let leaks = answer["leaks"].as_array().unwrap();
    let found: Vec<(String, u64, u64)> = leaks
        .iter()
        .map(|leak| {
            let functions = leak["stack"].as_array().unwrap().iter().map(|frame| frame["function"].as_str().unwrap());
            let first: Vec<&str> = functions.take(2).collect();
            (first.join("<"), leak["blocks"].as_u64().unwrap(), leak["bytes"].as_u64().unwrap())
        })
        .collect();
    for expected in [("grow<build_index", 1, 1000), ("dup_line<parse_config", 3, 72)] {
        let expected = (expected.0.to_string(), expected.1, expected.2);
        assert!(found.contains(&expected), "{expected:?} in {found:?}");
    }
    let cached: u64 = found.iter().filter(|(name, ..)| name.starts_with("cache_fill<main")).map(|row| row.1).sum();
    assert_eq!(cached, 6);

    let mut out = Vec::new();
    leaks::run(&query("names.mtrc"), &leaks::Options::default(), &mut out, Style::PLAIN).unwrap();
    let answer = value(&out);
    let leaks = answer["leaks"].as_array().unwrap();
    assert_eq!(leaks.iter().map(|leak| leak["blocks"].as_u64().unwrap()).sum::<u64>(), 132);
    for leak in leaks {
        let frame = &leak["stack"][0];
        let number: u64 = frame["function"].as_str().unwrap().strip_prefix("worker_").unwrap().parse().unwrap();
        assert_eq!((number % 5, frame["line"].as_u64().unwrap() / 10), (0, number), "{frame}");
        assert!(frame["file"].as_str().unwrap().starts_with("mod"), "{frame}");
    }
}

#[test]
fn threads_sites_and_timeline_of_a_trace() {
    let mut out = Vec::new();
    threads::run(&query("threads.mtrc"), &mut out, Style::PLAIN).unwrap();
    let rows = value(&out)["processes"][0]["threads"].clone();
    // Threads are numbered from 1 if the trace has addresses instead of numbers.
    assert!(rows.as_array().unwrap().iter().all(|row| row["number"].as_u64().unwrap() < 10), "{rows}");
    let frees: u64 = rows.as_array().unwrap().iter().map(|row| row["frees"].as_u64().unwrap()).sum();
    assert_eq!(frees, 94);

    let mut out = Vec::new();
    sites::run(&query("usedebug.mtrc"), &mut out, Style::PLAIN).unwrap();
    let rows = value(&out)["processes"][0]["sites"].clone();
    assert_eq!(rows.as_array().unwrap().iter().map(|row| row["allocs"].as_u64().unwrap()).sum::<u64>(), 11);

    let mut out = Vec::new();
    timeline::run(&query("basic.mtrc"), 4, false, &mut out, Style::PLAIN).unwrap();
    let slices = value(&out)["processes"][0]["slices"].clone();
    assert_eq!(slices[3]["live_bytes"], 1456);
    assert_eq!(slices[0]["at"]["event"], 0);
}

/// Each hand-made file results in a report or an error within the limits of the test.
#[test]
fn edge_cases_are_reported_or_rejected() {
    let mut read = 0;
    for entry in std::fs::read_dir(sample("edge")).unwrap() {
        let path = entry.unwrap().path();
        let mut out = Vec::new();
        if summary::report(&Query::of(&path, View::json(0)), &mut out, Style::PLAIN).is_ok() {
            read += 1;
            serde_json::from_slice::<Value>(&out).unwrap();
        }
    }
    assert!(read > 10, "{read}");
}

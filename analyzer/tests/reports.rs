//! What the reports print for a small recording, word for word, and what JSON holds.
//! `BLESS=1 cargo test -p heaptape-analyzer reports` accepts what is printed now.

use crate::made;

use heaptape_analyzer::event::{Bound, Range};
use heaptape_analyzer::report::{self, Outcome, Query, View, leaks, summary, verify};
use heaptape_analyzer::symbols::{Detail, Symbolizer};
use heaptape_analyzer::text::Style;
use heaptape_analyzer::unpack;
use heaptape_formats::mptl::Profile;
use heaptape_formats::recording::{RECORDING, Recording};
use heaptape_formats::tape::{self, Codec};
use heaptape_reports::{lifetimes, peak, sites, sizes, temporary, threads, timeline};
use made::{Options, Step};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A program of ten seconds: a leak that grows (site 5), a burst at the start (site 4), a cache
/// that is full (site 6), a buffer that is resized again and again (site 7), and short-lived blocks
/// on another thread (site 3).
fn steps() -> Vec<Step> {
    let (mut steps, mut index) = (Vec::new(), 0);
    let second = 1_000_000_000;
    let mut alloc = |steps: &mut Vec<Step>, size, site, thread, tick| {
        index += 1;
        steps.push(Step::Alloc { index, size, site, thread, tick });
        index
    };
    for at in 0..10 {
        alloc(&mut steps, 1000, 4, 1, 200 + at);
    }
    let buffer = alloc(&mut steps, 16, 7, 1, 300);
    let mut cache = std::collections::VecDeque::new();
    for round in 0..200u64 {
        let tick = 1000 + round * second / 20;
        if round % 5 == 0 {
            alloc(&mut steps, 64, 5, 1, tick);
        }
        cache.push_back(alloc(&mut steps, 500, 6, 1, tick + 10));
        if cache.len() > 20 {
            let index = cache.pop_front().unwrap();
            steps.push(Step::Free { index, thread: 1, tick: tick + 20 });
        }
        let index = alloc(&mut steps, 100 + round % 3, 3, 2, tick + 30);
        steps.push(Step::Free { index, thread: 2, tick: tick + 1_000_030 });
        if round % 40 == 39 {
            steps.push(Step::Resize {
                index: buffer,
                size: 16 << (round / 40 + 1),
                site: 7,
                thread: 1,
                tick: tick + 2_000_000,
            });
        }
    }
    steps.push(Step::Unmatched { address: 0xdead_beef, thread: 2, tick: 10 * second });
    steps
}

fn recording() -> (tempfile::TempDir, PathBuf) {
    made::recording(&steps(), &Options { chunk_events: 100, ..Options::default() })
}

fn query(path: &Path, json: bool) -> Query {
    Query::of(path, View { json, top: 10, ..View::default() })
}

type Run = dyn Fn(&Query, &mut Vec<u8>) -> Result<Outcome, report::Error>;

fn questions() -> Vec<(&'static str, Box<Run>)> {
    let style = Style::PLAIN;
    vec![
        ("report", Box::new(move |a, out| summary::report(a, out, style))),
        ("leaks", Box::new(move |a, out| leaks::run(a, &leaks::Options::default(), out, style))),
        ("peak", Box::new(move |a, out| peak::run(a, out, style))),
        ("sites", Box::new(move |a, out| sites::run(a, out, style))),
        ("sizes", Box::new(move |a, out| sizes::run(a, out, style))),
        ("lifetimes", Box::new(move |a, out| lifetimes::run(a, out, style))),
        ("temporary", Box::new(move |a, out| temporary::run(a, 1, out, style))),
        ("timeline", Box::new(move |a, out| timeline::run(a, 10, false, out, style))),
        ("threads", Box::new(move |a, out| threads::run(a, out, style))),
        ("verify", Box::new(move |a, out| verify::run(&a.scope.paths[0], out, style))),
    ]
}

#[test]
fn reports_print_what_was_blessed() {
    let (_dir, path) = recording();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/reports");
    for (name, run) in questions() {
        for json in [false, true] {
            if name == "verify" && json {
                continue;
            }
            let mut out = Vec::new();
            assert_eq!(run(&query(&path, json), &mut out).unwrap(), Outcome::Complete, "{name}");
            let text = String::from_utf8(out).unwrap().replace(&*path.to_string_lossy(), "DIR");
            let file = golden.join(format!("{name}.{}", if json { "json" } else { "txt" }));
            if std::env::var_os("BLESS").is_some() {
                std::fs::create_dir_all(&golden).unwrap();
                std::fs::write(&file, &text).unwrap();
            }
            let blessed = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            assert!(text == blessed, "{name}: printed\n{text}\nblessed\n{blessed}");
        }
    }
}

fn json(run: &Run, query: &Query) -> Value {
    let mut out = Vec::new();
    let mut query = query.clone();
    query.view.json = true;
    run(&query, &mut out).unwrap();
    serde_json::from_slice(&out).unwrap()
}

#[test]
fn report_json_has_the_promised_fields() {
    let (_dir, path) = recording();
    let (_, run) = &questions()[0];
    let value = json(run, &query(&path, true));
    let process = &value["processes"][0];
    let truth = made::truth(&steps()).totals;
    let expected = [
        ("pid", 4711),
        ("ppid", 1),
        ("allocs", truth.allocs),
        ("resizes", truth.resizes),
        ("frees", truth.frees),
        ("bytes_allocated", truth.bytes_allocated),
        ("live_blocks", truth.live_blocks),
        ("live_bytes", truth.live_bytes),
        ("peak_bytes", truth.peak_bytes),
        ("peak_blocks", truth.peak_blocks),
        ("emitted_events", truth.allocs + truth.resizes + truth.frees),
        ("recorded_events", truth.allocs + truth.resizes + truth.frees),
        ("lost_events", 0),
        ("inherited_blocks", 0),
        ("inherited_bytes", 0),
        ("unknown_frees", 1),
    ];
    for (field, number) in expected {
        assert_eq!(process[field], number, "{field}");
        assert!(field.ends_with("pid") || value["totals"][field] == number, "{field}");
    }
    assert_eq!(process["exe"], "/usr/bin/made");
    assert_eq!(process["complete"], true);
    assert_eq!(process["exit"]["code"], 3);
}

#[test]
fn verdicts_of_plain_cases() {
    let (_dir, path) = recording();
    let (_, run) = &questions()[1];
    let value = json(run, &query(&path, true));
    let leaks = value["leaks"].as_array().unwrap();
    let verdict = |address: &str| {
        let leak = leaks.iter().find(|leak| leak["stack"][0]["function"] == address);
        leak.map(|leak| leak["verdict"].as_str().unwrap().to_string())
    };
    assert_eq!(verdict("0x5000").as_deref(), Some("growing"));
    assert_eq!(verdict("0x4000").as_deref(), Some("one-time"));
    assert_eq!(verdict("0x6000").as_deref(), Some("bounded-cache"));
    assert_eq!(verdict("0x7000").as_deref(), Some("container-growth"));
    assert_eq!(leaks[0]["stack"][0]["function"], "0x5000");
    assert_eq!(leaks[0]["process"], 4711);
    let truth = made::truth(&steps()).totals;
    assert_eq!(
        (&value["total"]["bytes"], &value["total"]["blocks"]),
        (&truth.live_bytes.into(), &truth.live_blocks.into())
    );
}

/// When more events are lost than a stack has survivors, their frees may be among them.
#[test]
fn losses_make_verdicts_uncertain() {
    let losses = vec![tape::Loss { thread: 1, events: 6, from_tick: 1_000_000, to_tick: 9_000_000_000 }];
    let (_dir, path) = made::recording(&steps(), &Options { chunk_events: 100, losses, ..Options::default() });
    let (_, run) = &questions()[1];
    let value = json(run, &query(&path, true));
    for leak in value["leaks"].as_array().unwrap() {
        // Blocks that were allocated after the gap cannot have been freed in it.
        let first = leak["evidence"]["first"]["time_ns"].as_u64().unwrap();
        let uncertain = leak["blocks"].as_u64().unwrap() <= 6 && first < 9_000_000_000 - 100;
        assert_eq!(leak["verdict"] == "uncertain", uncertain, "{leak}");
    }
    assert_eq!(value["processes"][0]["complete"], false);
    let mut out = Vec::new();
    assert_eq!(verify::run(&path, &mut out, Style::PLAIN).unwrap(), Outcome::Incomplete);
    let (_, run) = &questions()[0];
    assert_eq!(json(run, &query(&path, true))["totals"]["lost_events"], 6);
}

/// What was lost may be what leaked.
#[test]
fn nothing_leaked_is_said_of_what_was_recorded_only() {
    let steps =
        [Step::Alloc { index: 1, size: 500, site: 2, thread: 1, tick: 5 }, Step::Free { index: 1, thread: 1, tick: 9 }];
    let first_line = |losses, runs_on: bool| {
        let (dir, _) = made::recording(&steps, &Options { losses, runs_on, ..Options::default() });
        let about = dir.path().join(RECORDING);
        let mut value: Recording = serde_json::from_slice(&std::fs::read(&about).unwrap()).unwrap();
        // As the daemon leaves it: it goes on.
        (value.processes[0].exit, value.ended_unix_ns) = (None, None);
        std::fs::write(&about, serde_json::to_vec(&value).unwrap()).unwrap();
        let path = dir.path().to_path_buf();
        let mut out = Vec::new();
        leaks::run(&query(&path, false), &leaks::Options::default(), &mut out, Style::PLAIN).unwrap();
        String::from_utf8(out).unwrap().lines().next().map(str::to_owned)
    };
    assert_eq!(first_line(Vec::new(), false).as_deref(), Some("nothing leaked"));
    assert_eq!(first_line(Vec::new(), true).as_deref(), Some("nothing leaked so far"));
    let lost = first_line(vec![tape::Loss { thread: 1, events: 6, from_tick: 5, to_tick: 9 }], false);
    assert_eq!(lost.as_deref(), Some("nothing leaked in what was recorded, which is not all"));
}

#[test]
fn parts_of_a_run_are_counted_alone() {
    let (_dir, path) = recording();
    let range = Range { from: Some("2s".parse().unwrap()), to: Some(Bound::Share(0.5)) };
    let mut query = query(&path, true);
    query.scope.range = range;
    let within: Vec<Step> =
        steps().into_iter().filter(|step| (2_000_000_100..=5_000_000_049).contains(&step.tick())).collect();
    let allocs = within.iter().filter(|step| matches!(step, Step::Alloc { .. } | Step::Resize { .. })).count() as u64;
    let questions = questions();
    let value = json(&questions[4].1, &query);
    assert_eq!(value["processes"][0]["allocs"], allocs);
    let value = json(&questions[3].1, &query);
    let sum: u64 =
        value["processes"][0]["sites"].as_array().unwrap().iter().map(|row| row["allocs"].as_u64().unwrap()).sum();
    assert_eq!(sum, allocs);
    let value = json(&questions[7].1, &query);
    let slices = value["processes"][0]["slices"].as_array().unwrap();
    let sum: u64 = slices.iter().map(|row| row["allocs"].as_u64().unwrap()).sum();
    assert_eq!(sum, allocs);
    let before: Vec<Step> = steps().into_iter().take_while(|step| step.tick() < 5_000_000_050).collect();
    assert_eq!(slices.last().unwrap()["live_bytes"], made::truth(&before).totals.live_bytes);
}

#[test]
fn a_profile_answers_what_it_can() {
    let (_dir, path) = recording();
    let profile = path.join("4711.made/profile.mptl");
    let questions = questions();
    let value = json(&questions[0].1, &query(&profile, true));
    let truth = made::truth(&steps()).totals;
    assert_eq!(value["totals"]["live_bytes"], truth.live_bytes);
    let value = json(&questions[1].1, &query(&profile, true));
    assert_eq!(value["leaks"][0]["verdict"], "uncertain");
    let error = (questions[2].1)(&query(&profile, true), &mut Vec::new()).unwrap_err();
    assert!(error.to_string().contains("profile"), "{error}");
    let trace = path.join("4711.made/trace.mtrc");
    let value = json(&questions[0].1, &query(&trace, true));
    assert_eq!(value["totals"]["peak_bytes"], truth.peak_bytes);
}

#[test]
fn profiles_keep_their_numbers_when_they_get_names() {
    let (_dir, path) = recording();
    let profile = path.join("4711.made/profile.mptl");
    let before = Profile::read(&std::fs::read(&profile).unwrap()).unwrap().0;
    report::name_profile(
        &heaptape_analyzer::open(&path).unwrap(),
        report::PLAIN_LIMIT,
        &mut Symbolizer::new(Detail::Quick),
    )
    .unwrap();
    let after = Profile::read(&std::fs::read(&profile).unwrap()).unwrap().0;
    assert_eq!((&before.data, &before.bins), (&after.data, &after.bins));
    assert_eq!(before.sites, after.sites);
}

#[test]
fn a_large_profile_is_packed_and_read_as_before() {
    let options = Options { chunk_events: 100, codec: Codec::Zstd, ..Options::default() };
    let (_dir, path) = made::recording(&steps(), &options);
    let folder = path.join("4711.made");
    let before = Profile::read(&std::fs::read(folder.join("profile.mptl")).unwrap()).unwrap().0;
    report::name_profile(&heaptape_analyzer::open(&path).unwrap(), 0, &mut Symbolizer::new(Detail::Quick)).unwrap();
    assert!(!folder.join("profile.mptl").exists());
    let packed = unpack::open(&folder.join("profile.mptl.zst")).unwrap();
    assert_eq!(Profile::read(&packed.bytes).unwrap().0, before);
    let mut text = Vec::new();
    assert!(
        matches!(verify::run(&path, &mut text, Style::PLAIN), Ok(Outcome::Complete)),
        "{}",
        String::from_utf8_lossy(&text)
    );
    // Without the tape, only the profile has the stacks.
    std::fs::remove_file(folder.join("events.tape")).unwrap();
    let opened = heaptape_analyzer::open(&path).unwrap();
    assert_eq!(
        opened.processes[0].sums.as_ref().map(|sums| sums.0.live_blocks),
        Some(made::truth(&steps()).totals.live_blocks)
    );
}

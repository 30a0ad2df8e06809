//! A million events: the answers of the commands equal a plain replay of the trace and the columns
//! of the tape, to the last byte.

use heaptape_formats::mtrc::layout::{ALLOC, FREE, RESIZE};
use heaptape_formats::recording::TAPE;
use heaptape_formats::{Format, sniff};
use heaptape_tests::plain::{self, PlainEvent};
use heaptape_tests::recording::heaptape;
use heaptape_tests::test_env;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Default)]
struct Truth {
    allocs: u64,
    resizes: u64,
    frees: u64,
    bytes: u64,
    live: HashMap<u64, (u64, u32)>,
    live_bytes: u64,
    peak_bytes: u64,
    peak_blocks: u64,
    moved: u64,
    copied: u64,
    /// Site -> allocations, bytes, frees, freed bytes.
    sites: BTreeMap<u32, [u64; 4]>,
    /// Thread -> allocations, resizes, frees.
    threads: BTreeMap<u64, [u64; 3]>,
}

fn truth(events: &[PlainEvent]) -> Truth {
    let mut truth = Truth::default();
    let mut addresses: HashMap<u64, u64> = HashMap::new();
    for &PlainEvent { tag, index, address, size, thread, site, .. } in events {
        let t = &mut truth;
        match tag {
            ALLOC => {
                (t.allocs, t.bytes, t.live_bytes) = (t.allocs + 1, t.bytes + size, t.live_bytes + size);
                assert!(t.live.insert(index, (size, site)).is_none());
                addresses.insert(index, address);
                let row = t.sites.entry(site).or_default();
                (row[0], row[1]) = (row[0] + 1, row[1] + size);
                t.threads.entry(thread).or_default()[0] += 1;
            }
            RESIZE => {
                let (old, old_site) = t.live.insert(index, (size, site)).expect("a live block");
                if addresses.insert(index, address) != Some(address) {
                    (t.moved, t.copied) = (t.moved + 1, t.copied + old.min(size));
                }
                (t.resizes, t.bytes, t.live_bytes) = (t.resizes + 1, t.bytes + size, t.live_bytes + size - old);
                let row = t.sites.entry(old_site).or_default();
                (row[2], row[3]) = (row[2] + 1, row[3] + old);
                let row = t.sites.entry(site).or_default();
                (row[0], row[1]) = (row[0] + 1, row[1] + size);
                t.threads.entry(thread).or_default()[1] += 1;
            }
            _ => {
                let (old, site) = t.live.remove(&index).expect("a live block");
                (t.frees, t.live_bytes) = (t.frees + 1, t.live_bytes - old);
                let row = t.sites.entry(site).or_default();
                (row[2], row[3]) = (row[2] + 1, row[3] + old);
                t.threads.entry(thread).or_default()[2] += 1;
            }
        }
        t.peak_bytes = t.peak_bytes.max(t.live_bytes);
        t.peak_blocks = t.peak_blocks.max(t.live.len() as u64);
    }
    truth
}

fn ask(arguments: &[&str], folder: &Path) -> Value {
    let output = heaptape(arguments.iter().map(OsStr::new).chain([OsStr::new("--json"), folder.as_os_str()])).success();
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn made(events: &str, live: &str) -> (tempfile::TempDir, PathBuf, Vec<PlainEvent>) {
    let directory = test_env::folder();
    let folder = directory.path().join("r");
    let made = Command::new(env!("CARGO_BIN_EXE_make-recording")).arg(events).arg(&folder).arg(live).status();
    assert!(made.expect("the generator").success());
    let process_folder = folder.join("4711.made");
    assert_eq!(sniff::format(&fs::read(process_folder.join(TAPE)).expect("the tape")[..16]), Some(Format::Tape));
    let events = plain::events(&process_folder);
    (directory, folder, events)
}

/// The rows of a list of numbers, in order of size.
fn rows<const N: usize>(list: &Value, fields: [&str; N]) -> Vec<[u64; N]> {
    let rows = list.as_array().expect("a list").iter();
    let mut rows: Vec<[u64; N]> = rows.map(|row| fields.map(|field| row[field].as_u64().expect("a number"))).collect();
    rows.sort_unstable();
    rows
}

fn sorted<const N: usize>(rows: impl IntoIterator<Item = [u64; N]>) -> Vec<[u64; N]> {
    let mut rows: Vec<[u64; N]> = rows.into_iter().collect();
    rows.sort_unstable();
    rows
}

/// Options that list each site separately.
const EACH_SITE: [&str; 4] = ["--by", "stack", "--top", "100000"];

fn ask_each(command: &str, folder: &Path) -> Value {
    let answer = ask(&[&[command][..], &EACH_SITE].concat(), folder);
    answer["processes"][0].clone()
}

#[test]
fn totals_of_a_million_events_equal_a_plain_replay() {
    let (_directory, folder, events) = made("1e6", "20000");
    let truth = truth(&events);
    let answer = ask(&["report"], &folder);
    let process = &answer["processes"][0];
    for (field, wanted) in [
        ("allocs", truth.allocs),
        ("resizes", truth.resizes),
        ("frees", truth.frees),
        ("bytes_allocated", truth.bytes),
        ("live_blocks", truth.live.len() as u64),
        ("live_bytes", truth.live_bytes),
        ("peak_bytes", truth.peak_bytes),
        ("peak_blocks", truth.peak_blocks),
    ] {
        assert_eq!(process[field], wanted, "{field}");
    }
    let answer = ask(&["peak"], &folder);
    assert_eq!(answer["processes"][0]["peak_bytes"], truth.peak_bytes, "a pass over the events");
    assert_eq!(answer["processes"][0]["most_blocks"], truth.peak_blocks);
    let answer = ask(&["leaks"], &folder);
    let mut leaks: BTreeMap<u32, [u64; 2]> = BTreeMap::new();
    for (size, site) in truth.live.values() {
        let row = leaks.entry(*site).or_default();
        *row = [row[0] + 1, row[1] + size];
    }
    assert_eq!(rows(&answer["leaks"], ["blocks", "bytes"]), sorted(leaks.into_values()), "live blocks of each site");
    let answer = ask(&["realloc"], &folder);
    let resizes = &answer["processes"][0];
    let found = ["resizes", "moved", "copied_bytes"].map(|field| resizes[field].as_u64().expect("a number"));
    assert_eq!(found, [truth.resizes, truth.moved, truth.copied]);
    let answer = ask(&["threads"], &folder);
    for row in answer["processes"][0]["threads"].as_array().expect("a list") {
        let found = ["allocs", "resizes", "frees"].map(|field| row[field].as_u64().expect("a number"));
        assert_eq!(found, truth.threads[&row["number"].as_u64().expect("a number")]);
    }
    // A range by event numbers, so that the answer comes from the events, not from the sums of the
    // recorder.
    let answer = ask(&[&["sites", "--from", "0"][..], &EACH_SITE].concat(), &folder);
    let found = rows(&answer["processes"][0]["sites"], ["allocs", "bytes", "frees", "freed_bytes"]);
    assert_eq!(found, sorted(truth.sites.into_values()), "sums of each site");
}

/// A live block in the replay.
#[derive(Clone, Copy)]
struct Block {
    address: u64,
    size: u64,
    site: u32,
    thread: u64,
    allocated_at: u64,
}

#[test]
fn sizes_lifetimes_and_fragmentation_of_a_million_events_equal_a_plain_replay() {
    let (_directory, folder, events) = made("1e6", "20000");
    let mut live: HashMap<u64, Block> = HashMap::new();
    // Class of size -> allocations, bytes, live blocks, live bytes, bytes of rounding.
    let mut classes: BTreeMap<u32, [u64; 5]> = BTreeMap::new();
    let class = |size: u64| u64::BITS - size.leading_zeros();
    // Site -> died, sum of lifetimes, longest.
    let mut lives: BTreeMap<u32, [u64; 3]> = BTreeMap::new();
    // Site -> temporary, bytes, ended by a resize; and how many of all allocations.
    let mut temporary: BTreeMap<u32, [u64; 3]> = BTreeMap::new();
    let mut latest: HashMap<u64, Option<u64>> = HashMap::new();
    for &PlainEvent { tag, index, address, size, thread, site, tick } in &events {
        let old = live.remove(&index);
        assert_eq!(old.is_some(), tag != ALLOC);
        if let Some(old) = old {
            let row = classes.get_mut(&class(old.size)).expect("a class");
            (row[2], row[3]) = (row[2] - 1, row[3] - old.size);
            if latest.get(&thread) == Some(&Some(index)) && old.thread == thread {
                let row = temporary.entry(old.site).or_default();
                *row = [row[0] + 1, row[1] + old.size, row[2] + u64::from(tag == RESIZE)];
            }
            if tag == FREE {
                let row = lives.entry(old.site).or_default();
                *row = [row[0] + 1, row[1] + tick - old.allocated_at, row[2].max(tick - old.allocated_at)];
            }
        }
        latest.insert(thread, (tag != FREE).then_some(index));
        if tag != FREE {
            let allocated_at = old.map_or(tick, |old| old.allocated_at);
            live.insert(index, Block { address, size, site, thread, allocated_at });
            let row = classes.entry(class(size)).or_default();
            let usable = ((size + 8).next_multiple_of(16)).max(32) - 8;
            *row = [row[0] + 1, row[1] + size, row[2] + 1, row[3] + size, row[4] + usable - size];
        }
    }

    let answer = ask(&["sizes"], &folder);
    let fields = ["allocs", "bytes", "live_blocks", "live_bytes", "rounding_bytes"];
    assert_eq!(rows(&answer["processes"][0]["classes"], fields), sorted(classes.into_values()));

    let answer = ask_each("lifetimes", &folder);
    let wanted = sorted(lives.values().map(|&[died, sum, longest]| [died, sum / died, longest]));
    assert_eq!(rows(&answer["sites"], ["died", "mean", "longest"]), wanted);
    let all = lives.values().fold([0, 0], |all, row| [all[0] + row[0], all[1] + row[1]]);
    let found = ["died", "mean", "live"].map(|field| answer[field].as_u64().expect("a number"));
    assert_eq!(found, [all[0], all[1] / all[0], live.len() as u64]);

    let answer = ask(&[&["temporary", "--within", "0"], &EACH_SITE[..]].concat(), &folder)["processes"][0].clone();
    assert_eq!(rows(&answer["sites"], ["temporary", "bytes", "ended_by_resize"]), sorted(temporary.into_values()));

    let answer = ask_each("fragmentation", &folder);
    // Page -> live bytes in it, and of each site: live bytes, and blocks that begin there.
    let mut pages: BTreeMap<u64, (u64, BTreeMap<u32, [u64; 2]>)> = BTreeMap::new();
    for block in live.values() {
        let end = block.address + block.size.max(1);
        for page in block.address / 4096..=(end - 1) / 4096 {
            let inside = end.min((page + 1) * 4096) - block.address.max(page * 4096);
            let (bytes, sites) = pages.entry(page).or_default();
            *bytes += inside;
            let row = sites.entry(block.site).or_default();
            *row = [row[0] + inside, row[1] + u64::from(page == block.address / 4096)];
        }
    }
    let mut pinned: BTreeMap<u32, [u64; 3]> = BTreeMap::new();
    let mut tenths = [0u64; 11];
    for (bytes, sites) in pages.values() {
        tenths[(bytes * 10 / 4096).min(10) as usize] += 1;
        for (&site, [inside, blocks]) in sites.iter().filter(|_| *bytes < 1024) {
            let row = pinned.entry(site).or_default();
            *row = [row[0] + 4096 * inside / bytes, row[1] + blocks, row[2] + inside];
        }
    }
    assert_eq!(answer["pages"], pages.len());
    assert_eq!(answer["pages_by_tenth"], serde_json::json!(tenths));
    assert_eq!(rows(&answer["sites"], ["pinned_bytes", "blocks", "live_bytes"]), sorted(pinned.into_values()));
}

#[test]
fn timeline_of_a_million_events_equals_a_plain_replay() {
    let (_directory, folder, events) = made("1e6", "20000");
    let slices = |arguments: &[&str]| {
        let answer = ask(&[&["timeline", "--slices", "37"][..], arguments].concat(), &folder);
        let rows = answer["processes"][0]["slices"].as_array().expect("a list").clone();
        let of = |row: &Value, field: &str| row[field].as_u64();
        let fields = ["live_bytes", "live_blocks", "most_bytes", "allocs", "bytes", "frees"];
        let numbers = |row: &Value| fields.map(|field| of(row, field).expect("a number"));
        let position = |row: &Value| of(&row["at"], "event").or(of(&row["at"], "time_ns")).expect("a position");
        rows.iter().map(|row| (position(row), numbers(row))).collect::<Vec<_>>()
    };
    let start = 1000;
    type Position = fn(usize, &PlainEvent) -> u64;
    let by_time: Position = |_, event| event.tick - 1000;
    let by_event: Position = |number, _| number as u64;
    assert_eq!(events[0].tick, start + 100, "the first tick of the generator");
    for (arguments, position, end) in
        [(&[][..], by_time, u64::MAX), (&["--from", "300000", "--to", "600001"][..], by_event, 600_001)]
    {
        let found = slices(arguments);
        assert_eq!(found.len(), 37);
        let (mut live, mut bytes) = (HashMap::new(), 0u64);
        let mut at = events.iter().enumerate().peekable();
        let mut wanted = Vec::new();
        for (number, &(from, _)) in found.iter().enumerate() {
            let end = found.get(number + 1).map_or(end, |next| next.0);
            let mut row = [0u64; 6];
            let mut inside = false;
            while let Some((number, event)) = at.next_if(|(number, event)| position(*number, event) < end) {
                if !inside && position(number, event) >= from {
                    (inside, row[2]) = (true, bytes);
                }
                let old: Option<u64> = match event.tag {
                    FREE => live.remove(&event.index),
                    _ => live.insert(event.index, event.size),
                };
                bytes = bytes + event.size - old.unwrap_or(0);
                if inside {
                    row[2] = row[2].max(bytes);
                    row[3] += u64::from(event.tag != FREE);
                    row[4] += event.size;
                    row[5] += u64::from(event.tag == FREE);
                }
            }
            row[0] = bytes;
            row[1] = live.len() as u64;
            wanted.push((from, row));
        }
        assert_eq!(found, wanted, "{arguments:?}");
    }
}

//! A million events: what the questions answer is what a plain replay of the trace and the tape's
//! columns gives, to the last byte.

use heaptape_formats::mtrc::layout::{ALLOC, FREE, RESIZE};
use heaptape_formats::recording::TAPE;
use heaptape_formats::{Format, sniff};
use heaptape_tests::plain::{self, Happened};
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

fn truth(events: &[Happened]) -> Truth {
    let mut truth = Truth::default();
    let mut addresses: HashMap<u64, u64> = HashMap::new();
    for &Happened { letter, index, address, size, thread, site, .. } in events {
        let t = &mut truth;
        match letter {
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

fn ask(words: &[&str], folder: &Path) -> Value {
    let said = heaptape(words.iter().map(OsStr::new).chain([OsStr::new("--json"), folder.as_os_str()])).success();
    serde_json::from_slice(&said.stdout).expect("JSON")
}

fn made(events: &str, live: &str) -> (tempfile::TempDir, PathBuf, Vec<Happened>) {
    let place = test_env::folder();
    let folder = place.path().join("r");
    let made = Command::new(env!("CARGO_BIN_EXE_make-recording")).arg(events).arg(&folder).arg(live).status();
    assert!(made.expect("the generator").success());
    let image = folder.join("4711.made");
    assert_eq!(sniff::format(&fs::read(image.join(TAPE)).expect("the tape")[..16]), Some(Format::Tape));
    let events = plain::events(&image);
    (place, folder, events)
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

/// All sites, each by itself.
const EACH_SITE: [&str; 4] = ["--by", "stack", "--top", "100000"];

fn ask_each(word: &str, folder: &Path) -> Value {
    let said = ask(&[&[word][..], &EACH_SITE].concat(), folder);
    said["processes"][0].clone()
}

#[test]
fn a_million_events_are_answered_as_a_plain_replay_answers_them() {
    let (_place, folder, events) = made("1e6", "20000");
    let truth = truth(&events);
    let said = ask(&["report"], &folder);
    let process = &said["processes"][0];
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
    let said = ask(&["peak"], &folder);
    assert_eq!(said["processes"][0]["peak_bytes"], truth.peak_bytes, "a pass over the events");
    assert_eq!(said["processes"][0]["most_blocks"], truth.peak_blocks);
    let said = ask(&["leaks"], &folder);
    let mut leaks: BTreeMap<u32, [u64; 2]> = BTreeMap::new();
    for (size, site) in truth.live.values() {
        let row = leaks.entry(*site).or_default();
        *row = [row[0] + 1, row[1] + size];
    }
    assert_eq!(rows(&said["leaks"], ["blocks", "bytes"]), sorted(leaks.into_values()), "each site's survivors");
    let said = ask(&["realloc"], &folder);
    let resizes = &said["processes"][0];
    let found = ["resizes", "moved", "copied_bytes"].map(|field| resizes[field].as_u64().expect("a number"));
    assert_eq!(found, [truth.resizes, truth.moved, truth.copied]);
    let said = ask(&["threads"], &folder);
    for row in said["processes"][0]["threads"].as_array().expect("a list") {
        let found = ["allocs", "resizes", "frees"].map(|field| row[field].as_u64().expect("a number"));
        assert_eq!(found, truth.threads[&row["number"].as_u64().expect("a number")]);
    }
    // By event numbers, so that the passes over the events answer, and not the recorder's own sums.
    let said = ask(&[&["sites", "--from", "0"][..], &EACH_SITE].concat(), &folder);
    let found = rows(&said["processes"][0]["sites"], ["allocs", "bytes", "frees", "freed_bytes"]);
    assert_eq!(found, sorted(truth.sites.into_values()), "each site's sums");
}

/// What a block is known by while it lives.
#[derive(Clone, Copy)]
struct Block {
    address: u64,
    size: u64,
    site: u32,
    thread: u64,
    born: u64,
}

#[test]
fn sizes_lives_and_places_of_a_million_events_are_those_of_a_plain_replay() {
    let (_place, folder, events) = made("1e6", "20000");
    let mut live: HashMap<u64, Block> = HashMap::new();
    // Class of size -> allocations, bytes, live blocks, live bytes, bytes of rounding.
    let mut classes: BTreeMap<u32, [u64; 5]> = BTreeMap::new();
    let class = |size: u64| u64::BITS - size.leading_zeros();
    // Site -> died, sum of lifetimes, longest.
    let mut lives: BTreeMap<u32, [u64; 3]> = BTreeMap::new();
    // Site -> temporary, bytes, ended by a resize; and how many of all allocations.
    let mut temporary: BTreeMap<u32, [u64; 3]> = BTreeMap::new();
    let mut latest: HashMap<u64, Option<u64>> = HashMap::new();
    for &Happened { letter, index, address, size, thread, site, tick } in &events {
        let old = live.remove(&index);
        assert_eq!(old.is_some(), letter != ALLOC);
        if let Some(old) = old {
            let row = classes.get_mut(&class(old.size)).expect("a class");
            (row[2], row[3]) = (row[2] - 1, row[3] - old.size);
            if latest.get(&thread) == Some(&Some(index)) && old.thread == thread {
                let row = temporary.entry(old.site).or_default();
                *row = [row[0] + 1, row[1] + old.size, row[2] + u64::from(letter == RESIZE)];
            }
            if letter == FREE {
                let row = lives.entry(old.site).or_default();
                *row = [row[0] + 1, row[1] + tick - old.born, row[2].max(tick - old.born)];
            }
        }
        latest.insert(thread, (letter != FREE).then_some(index));
        if letter != FREE {
            let born = old.map_or(tick, |old| old.born);
            live.insert(index, Block { address, size, site, thread, born });
            let row = classes.entry(class(size)).or_default();
            let usable = ((size + 8).next_multiple_of(16)).max(32) - 8;
            *row = [row[0] + 1, row[1] + size, row[2] + 1, row[3] + size, row[4] + usable - size];
        }
    }

    let said = ask(&["sizes"], &folder);
    let fields = ["allocs", "bytes", "live_blocks", "live_bytes", "rounding_bytes"];
    assert_eq!(rows(&said["processes"][0]["classes"], fields), sorted(classes.into_values()));

    let said = ask_each("lifetimes", &folder);
    let wanted = sorted(lives.values().map(|&[died, sum, longest]| [died, sum / died, longest]));
    assert_eq!(rows(&said["sites"], ["died", "mean", "longest"]), wanted);
    let all = lives.values().fold([0, 0], |all, row| [all[0] + row[0], all[1] + row[1]]);
    let found = ["died", "mean", "live"].map(|field| said[field].as_u64().expect("a number"));
    assert_eq!(found, [all[0], all[1] / all[0], live.len() as u64]);

    let said = ask_each("temporary", &folder);
    assert_eq!(rows(&said["sites"], ["temporary", "bytes", "ended_by_resize"]), sorted(temporary.into_values()));

    let said = ask_each("fragmentation", &folder);
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
    assert_eq!(said["pages"], pages.len());
    assert_eq!(said["pages_by_tenth"], serde_json::json!(tenths));
    assert_eq!(rows(&said["sites"], ["pinned_bytes", "blocks", "live_bytes"]), sorted(pinned.into_values()));
}

#[test]
fn a_timeline_of_a_million_events_and_a_part_of_it_are_those_of_a_plain_replay() {
    let (_place, folder, events) = made("1e6", "20000");
    let slices = |words: &[&str]| {
        let said = ask(&[&["timeline", "--slices", "37"][..], words].concat(), &folder);
        let rows = said["processes"][0]["slices"].as_array().expect("a list").clone();
        let of = |row: &Value, field: &str| row[field].as_u64();
        let fields = ["live_bytes", "live_blocks", "most_bytes", "allocs", "bytes", "frees"];
        let numbers = |row: &Value| fields.map(|field| of(row, field).expect("a number"));
        let place = |row: &Value| of(&row["at"], "event").or(of(&row["at"], "time_ns")).expect("a place");
        rows.iter().map(|row| (place(row), numbers(row))).collect::<Vec<_>>()
    };
    let start = 1000;
    type Place = fn(usize, &Happened) -> u64;
    let by_time: Place = |_, event| event.tick - 1000;
    let by_event: Place = |number, _| number as u64;
    assert_eq!(events[0].tick, start + 100, "the generator's first moment");
    for (words, place, end) in
        [(&[][..], by_time, u64::MAX), (&["--from", "300000", "--to", "600001"][..], by_event, 600_001)]
    {
        let found = slices(words);
        assert_eq!(found.len(), 37);
        let (mut live, mut bytes) = (HashMap::new(), 0u64);
        let mut at = events.iter().enumerate().peekable();
        let mut wanted = Vec::new();
        for (number, &(from, _)) in found.iter().enumerate() {
            let end = found.get(number + 1).map_or(end, |next| next.0);
            let mut row = [0u64; 6];
            let mut inside = false;
            while let Some((number, event)) = at.next_if(|(number, event)| place(*number, event) < end) {
                if !inside && place(number, event) >= from {
                    (inside, row[2]) = (true, bytes);
                }
                let old: Option<u64> = match event.letter {
                    FREE => live.remove(&event.index),
                    _ => live.insert(event.index, event.size),
                };
                bytes = bytes + event.size - old.unwrap_or(0);
                if inside {
                    row[2] = row[2].max(bytes);
                    row[3] += u64::from(event.letter != FREE);
                    row[4] += event.size;
                    row[5] += u64::from(event.letter == FREE);
                }
            }
            row[0] = bytes;
            row[1] = live.len() as u64;
            wanted.push((from, row));
        }
        assert_eq!(found, wanted, "{words:?}");
    }
}

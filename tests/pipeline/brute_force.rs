//! A million events: what the questions answer is what a plain replay of the trace and the tape's columns gives, to the last byte.

use heaptape_formats::mtrc::{Record, Stream};
use heaptape_formats::recording::TAPE;
use heaptape_formats::tape::{self, COLUMN_SITES, Codec, Record as Said, Step};
use heaptape_formats::{Format, leb128, sniff};
use heaptape_tests::recording::heaptape;
use heaptape_tests::workshop;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::Path;
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

/// The sites of all allocations and resizes, in order, from the tape's columns.
fn sites(image: &Path) -> Vec<u32> {
    let bytes = fs::read(image.join(TAPE)).expect("the tape");
    let mut reader = tape::Reader::new(&bytes).expect("a tape");
    let mut sites = Vec::new();
    loop {
        match reader.step() {
            Step::Record(_, Said::Chunk(chunk)) => {
                let column = chunk.columns.iter().find(|column| column.kind == COLUMN_SITES).expect("sites");
                let codec = Codec::from_number(column.codec).expect("a codec");
                let plain = codec.unpack(&column.stored.0, column.plain_length as usize).expect("a column");
                let mut rest = &plain[..];
                while !rest.is_empty() {
                    let (site, size) = leb128::read(rest).expect("a number");
                    sites.push(site as u32);
                    rest = &rest[size..];
                }
            }
            Step::End(_) => return sites,
            _ => {}
        }
    }
}

fn truth(image: &Path) -> Truth {
    let mut sites = sites(image).into_iter();
    let file = File::open(image.join("trace.mtrc.zst")).expect("the trace");
    let mut stream = Stream::new(zstd::Decoder::new(file).expect("zstd")).expect("a trace");
    let mut truth = Truth::default();
    let mut addresses: HashMap<u64, u64> = HashMap::new();
    while let Some(record) = stream.next().expect("a record") {
        let t = &mut truth;
        match record {
            Record::Alloc { index, address, size, place } => {
                let site = sites.next().expect("a site");
                (t.allocs, t.bytes, t.live_bytes) = (t.allocs + 1, t.bytes + size, t.live_bytes + size);
                assert!(t.live.insert(index, (size, site)).is_none());
                addresses.insert(index, address);
                let row = t.sites.entry(site).or_default();
                (row[0], row[1]) = (row[0] + 1, row[1] + size);
                t.threads.entry(place.thread).or_default()[0] += 1;
            }
            Record::Resize { index, address, size, place } => {
                let site = sites.next().expect("a site");
                let (old, old_site) = t.live.insert(index, (size, site)).expect("a live block");
                if addresses.insert(index, address) != Some(address) {
                    (t.moved, t.copied) = (t.moved + 1, t.copied + old.min(size));
                }
                (t.resizes, t.bytes, t.live_bytes) = (t.resizes + 1, t.bytes + size, t.live_bytes + size - old);
                let row = t.sites.entry(old_site).or_default();
                (row[2], row[3]) = (row[2] + 1, row[3] + old);
                let row = t.sites.entry(site).or_default();
                (row[0], row[1]) = (row[0] + 1, row[1] + size);
                t.threads.entry(place.thread).or_default()[1] += 1;
            }
            Record::Free { index, place } => {
                let (old, site) = t.live.remove(&index).expect("a live block");
                (t.frees, t.live_bytes) = (t.frees + 1, t.live_bytes - old);
                let row = t.sites.entry(site).or_default();
                (row[2], row[3]) = (row[2] + 1, row[3] + old);
                t.threads.entry(place.thread).or_default()[2] += 1;
            }
            Record::Heap { .. } | Record::Internal { .. } => {}
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

#[test]
fn a_million_events_are_answered_as_a_plain_replay_answers_them() {
    let place = workshop::folder();
    let folder = place.path().join("r");
    let made = Command::new(env!("CARGO_BIN_EXE_make-recording")).args(["1e6"]).arg(&folder).arg("20000").status();
    assert!(made.expect("the generator").success());
    let image = folder.join("4711.made");
    assert_eq!(sniff::format(&fs::read(image.join(TAPE)).expect("the tape")[..16]), Some(Format::Tape));
    let truth = truth(&image);
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
    let mut wanted: Vec<[u64; 2]> = leaks.into_values().collect();
    let rows = said["leaks"].as_array().expect("a list").iter();
    let mut found: Vec<[u64; 2]> =
        rows.map(|row| [&row["blocks"], &row["bytes"]].map(|n| n.as_u64().expect("a number"))).collect();
    wanted.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, wanted, "each site's survivors");
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
    let said = ask(&["sites", "--from", "0", "--by", "stack", "--top", "100000"], &folder);
    let rows = said["processes"][0]["sites"].as_array().expect("a list").iter();
    let fields = ["allocs", "bytes", "frees", "freed_bytes"];
    let mut found: Vec<[u64; 4]> = rows.map(|row| fields.map(|field| row[field].as_u64().expect("a number"))).collect();
    let mut wanted: Vec<[u64; 4]> = truth.sites.into_values().collect();
    wanted.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, wanted, "each site's sums");
}

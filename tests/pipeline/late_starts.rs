//! A report on a range late in a long run starts at a summary that the recorder wrote. The answers
//! equal a plain replay of every event, and those of the same recording without the columns that
//! make the late start possible.

use heaptape_formats::mtrc::layout::FREE;
use heaptape_formats::recording::TAPE;
use heaptape_formats::tape::{COLUMN_PREVIOUS, Record, Writer};
use heaptape_tests::plain::{self, PlainEvent};
use heaptape_tests::recording::heaptape;
use heaptape_tests::{Program, Recording, Target};
use serde_json::Value;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// Arguments for 1.3 million events of three threads, which is more than between two summaries.
const ARGUMENTS: [&str; 4] = ["5", "240000", "2", "3"];

fn ask(arguments: &[&str], folder: &Path) -> Value {
    let arguments = arguments.iter().map(OsStr::new).chain([OsStr::new("--json"), folder.as_os_str()]);
    serde_json::from_slice(&heaptape(arguments).success().stdout).expect("JSON")
}

fn process_folder(recording: &Recording) -> PathBuf {
    let tape = recording.files(TAPE).pop().expect("one process");
    tape.parent().expect("a folder").to_path_buf()
}

/// Copies the recording without the columns of freed blocks.
fn forgetful(recording: &Recording) -> PathBuf {
    let folder = recording.folder.with_extension("forgetful");
    let from = process_folder(recording);
    let to = folder.join(from.file_name().expect("a name"));
    fs::create_dir_all(&to).expect("a folder");
    fs::copy(recording.folder.join("recording.json"), folder.join("recording.json")).expect("a copy");
    for entry in fs::read_dir(&from).expect("the process").flatten() {
        fs::copy(entry.path(), to.join(entry.file_name())).expect("a copy");
    }
    let (mut bytes, mut writer) = (Vec::new(), Writer::default());
    Writer::file_header(&mut bytes);
    let (mut removed, mut summaries) = (0, 0);
    for mut record in plain::tape(&from) {
        if let Record::Chunk(chunk) = &mut record {
            let before = chunk.columns.len();
            chunk.columns.retain(|column| column.kind != COLUMN_PREVIOUS);
            removed += before - chunk.columns.len();
        }
        summaries += usize::from(matches!(record, Record::Summary(_)));
        writer.record(&record, &mut bytes);
    }
    assert!(removed >= 10 && summaries >= 2, "{removed} columns, {summaries} summaries");
    fs::write(to.join(TAPE), bytes).expect("a tape");
    folder
}

/// Live blocks and bytes, and those of each site.
#[derive(Clone, Default)]
struct Live {
    blocks: HashMap<u64, (u64, u32)>,
    bytes: u64,
    sites: HashMap<u32, (u64, u64)>,
}

impl Live {
    fn step(&mut self, event: &PlainEvent) {
        let old = match event.tag {
            FREE => self.blocks.remove(&event.index),
            _ => self.blocks.insert(event.index, (event.size, event.site)),
        };
        if let Some((size, site)) = old {
            let row = self.sites.get_mut(&site).expect("it allocated");
            *row = (row.0 - size, row.1 - 1);
            self.bytes -= size;
        }
        if event.tag != FREE {
            let row = self.sites.entry(event.site).or_default();
            *row = (row.0 + event.size, row.1 + 1);
            self.bytes += event.size;
        }
    }
}

fn number(of: &Value, field: &str) -> u64 {
    of[field].as_u64().unwrap_or_else(|| panic!("a number in {field}: {of}"))
}

#[test]
fn reports_that_start_late_in_a_run_equal_a_plain_replay() {
    let recording = Program::new(Target::program("shares.c").build()).args(ARGUMENTS).recorded().success().complete();
    let forgetful = forgetful(&recording);
    let events = plain::events(&process_folder(&recording));
    assert!(events.len() > 1_250_000, "{}", events.len());
    let count = events.len();
    for (from, to) in [(count * 9 / 10, count * 91 / 100), (1_200_000, count), (600_000, 700_000)] {
        let mut live = Live::default();
        events[..from].iter().for_each(|event| live.step(event));
        let (mut peak, mut most_blocks, mut most) = (live.clone(), live.blocks.len(), live.bytes);
        // The event that reached the peak, and the first one after it.
        let (mut at, mut after) = (from, from);
        for (event, number) in events[from..to].iter().zip(from..) {
            live.step(event);
            most_blocks = most_blocks.max(live.blocks.len());
            if live.bytes > most {
                (most, at, after) = (live.bytes, number, number + 1);
            }
        }
        events[from..after].iter().for_each(|event| peak.step(event));
        assert_eq!(peak.bytes, most);
        let range = ["--from", &from.to_string(), "--to", &to.to_string()];
        let answer = ask(&[&["peak", "--by", "stack", "--top", "100000"][..], &range].concat(), &recording.folder);
        let answer = &answer["processes"][0];
        let found = ["peak_bytes", "peak_blocks", "most_blocks"].map(|field| number(answer, field));
        assert_eq!(found, [most, peak.blocks.len() as u64, most_blocks as u64]);
        assert_eq!(number(&answer["at"], "event"), at as u64);
        let held: u64 = answer["holders"].as_array().expect("a list").iter().map(|row| number(row, "bytes")).sum();
        assert_eq!(held, most, "every byte has a site");
        let answer = ask(&[&["timeline", "--slices", "9"][..], &range].concat(), &recording.folder);
        let slices = answer["processes"][0]["slices"].as_array().expect("a list").clone();
        let last = slices.last().expect("a slice");
        assert_eq!((number(last, "live_bytes"), number(last, "live_blocks")), (live.bytes, live.blocks.len() as u64));
        let highest = slices.iter().map(|slice| number(slice, "most_bytes")).max();
        assert_eq!(highest, Some(most));
    }
    let (early, late) = ("95.5%", "96.5%");
    for arguments in [
        &["peak", "--from", early, "--to", late, "--by", "stack", "--top", "100000"][..],
        &["peak", "--from", "1200000"],
        &["timeline", "--from", early, "--to", late, "--slices", "50"],
        &["timeline", "--from", "98%", "--by", "stack"],
        &["diff", "--from", early, "--to", late],
        &["diff", "--from", "1100000", "--to", "1250000"],
    ] {
        let found = ask(arguments, &recording.folder).to_string();
        let wanted = ask(arguments, &forgetful).to_string();
        assert_eq!(found, wanted, "{arguments:?}");
    }
    fs::remove_dir_all(forgetful).expect("it goes");
}

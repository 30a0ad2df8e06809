//! A report on a part of a long run starts in its middle, by what the recorder wrote there: the
//! answers are those of a plain replay of every event, and those of the same recording without what
//! makes it possible.

use heaptape_formats::mtrc::layout::FREE;
use heaptape_formats::recording::TAPE;
use heaptape_formats::tape::{COLUMN_PREVIOUS, Record, Writer};
use heaptape_tests::plain::{self, Happened};
use heaptape_tests::recording::heaptape;
use heaptape_tests::{Program, Recording, Target};
use serde_json::Value;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// Some 1.3 million events of three threads: more than what lies between two summaries.
const WORDS: [&str; 4] = ["5", "240000", "2", "3"];

fn ask(words: &[&str], folder: &Path) -> Value {
    let words = words.iter().map(OsStr::new).chain([OsStr::new("--json"), folder.as_os_str()]);
    serde_json::from_slice(&heaptape(words).success().stdout).expect("JSON")
}

fn image(recording: &Recording) -> PathBuf {
    let tape = recording.files(TAPE).pop().expect("one image");
    tape.parent().expect("a folder").to_path_buf()
}

/// The same files, but that no chunk says what its events gave back.
fn forgetful(recording: &Recording) -> PathBuf {
    let folder = recording.folder.with_extension("forgetful");
    let from = image(recording);
    let to = folder.join(from.file_name().expect("a name"));
    fs::create_dir_all(&to).expect("a folder");
    fs::copy(recording.folder.join("recording.json"), folder.join("recording.json")).expect("a copy");
    for entry in fs::read_dir(&from).expect("the image").flatten() {
        fs::copy(entry.path(), to.join(entry.file_name())).expect("a copy");
    }
    let (mut bytes, mut writer) = (Vec::new(), Writer::default());
    Writer::file_header(&mut bytes);
    let (mut told, mut summaries) = (0, 0);
    for mut record in plain::tape(&from) {
        if let Record::Chunk(chunk) = &mut record {
            let before = chunk.columns.len();
            chunk.columns.retain(|column| column.kind != COLUMN_PREVIOUS);
            told += before - chunk.columns.len();
        }
        summaries += usize::from(matches!(record, Record::Summary(_)));
        writer.record(&record, &mut bytes);
    }
    assert!(told >= 10 && summaries >= 2, "{told} chunks tell it, and there are {summaries} summaries");
    fs::write(to.join(TAPE), bytes).expect("a tape");
    folder
}

/// Live bytes and blocks, and each site's bytes.
#[derive(Clone, Default)]
struct Live {
    blocks: HashMap<u64, (u64, u32)>,
    bytes: u64,
    sites: HashMap<u32, (u64, u64)>,
}

impl Live {
    fn step(&mut self, event: &Happened) {
        let old = match event.letter {
            FREE => self.blocks.remove(&event.index),
            _ => self.blocks.insert(event.index, (event.size, event.site)),
        };
        if let Some((size, site)) = old {
            let row = self.sites.get_mut(&site).expect("it allocated");
            *row = (row.0 - size, row.1 - 1);
            self.bytes -= size;
        }
        if event.letter != FREE {
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
fn of_a_long_run_are_what_a_plain_replay_says() {
    let recording = Program::new(Target::program("shares.c").build()).args(WORDS).recorded().success().whole();
    let forgetful = forgetful(&recording);
    let events = plain::events(&image(&recording));
    assert!(events.len() > 1_250_000, "{}", events.len());
    let count = events.len();
    for (from, to) in [(count * 9 / 10, count * 91 / 100), (1_200_000, count), (600_000, 700_000)] {
        let mut live = Live::default();
        events[..from].iter().for_each(|event| live.step(event));
        let (mut peak, mut most_blocks, mut most) = (live.clone(), live.blocks.len(), live.bytes);
        // Of the event that made it, and of the first one behind that.
        let (mut at, mut behind) = (from, from);
        for (event, number) in events[from..to].iter().zip(from..) {
            live.step(event);
            most_blocks = most_blocks.max(live.blocks.len());
            if live.bytes > most {
                (most, at, behind) = (live.bytes, number, number + 1);
            }
        }
        events[from..behind].iter().for_each(|event| peak.step(event));
        assert_eq!(peak.bytes, most);
        let range = ["--from", &from.to_string(), "--to", &to.to_string()];
        let said = ask(&[&["peak", "--by", "stack", "--top", "100000"][..], &range].concat(), &recording.folder);
        let said = &said["processes"][0];
        let found = ["peak_bytes", "peak_blocks", "most_blocks"].map(|field| number(said, field));
        assert_eq!(found, [most, peak.blocks.len() as u64, most_blocks as u64]);
        assert_eq!(number(&said["at"], "event"), at as u64);
        let held: u64 = said["holders"].as_array().expect("a list").iter().map(|row| number(row, "bytes")).sum();
        assert_eq!(held, most, "all of it is somebody's");
        let said = ask(&[&["timeline", "--slices", "9"][..], &range].concat(), &recording.folder);
        let slices = said["processes"][0]["slices"].as_array().expect("a list").clone();
        let last = slices.last().expect("a slice");
        assert_eq!((number(last, "live_bytes"), number(last, "live_blocks")), (live.bytes, live.blocks.len() as u64));
        let highest = slices.iter().map(|slice| number(slice, "most_bytes")).max();
        assert_eq!(highest, Some(most));
    }
    let (early, late) = ("95.5%", "96.5%");
    for words in [
        &["peak", "--from", early, "--to", late, "--by", "stack", "--top", "100000"][..],
        &["peak", "--from", "1200000"],
        &["timeline", "--from", early, "--to", late, "--slices", "50"],
        &["timeline", "--from", "98%", "--by", "stack"],
        &["diff", "--from", early, "--to", late],
        &["diff", "--from", "1100000", "--to", "1250000"],
    ] {
        let found = ask(words, &recording.folder).to_string();
        let wanted = ask(words, &forgetful).to_string();
        assert_eq!(found, wanted, "{words:?}");
    }
    fs::remove_dir_all(forgetful).expect("it goes");
}

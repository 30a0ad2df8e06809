//! Cut and flipped recordings: what is readable is read, what is missing is said, nothing panics.

use crate::made;

use heaptape_analyzer::Missing;
use heaptape_analyzer::event::{Event, Span};
use heaptape_analyzer::model::totals::Totals;
use heaptape_analyzer::report::{self, Query, View, leaks, verify};
use heaptape_analyzer::text::Style;
use heaptape_analyzer::{Progress, open, replay};
use heaptape_formats::recording::{RECORDING, SYMBOLS, TAPE};
use heaptape_formats::tape::Codec;
use made::{Files, Options, Step, program, truth};
use std::path::{Path, PathBuf};

fn steps() -> Vec<Step> {
    let mut state = 7u64;
    let mut roll = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as u32
    };
    let rolls: Vec<_> =
        (0..150).map(|_| (roll() as u8, roll() as u16 % 5000, roll() as u8, roll() as u8, roll() as u8)).collect();
    program(&rolls)
}

struct Read {
    events: Vec<Event>,
    totals: heaptape_formats::tape::Totals,
    missing: Vec<Missing>,
}

/// Everything that a reader of a recording does; none when nothing can be read.
fn read(path: &Path) -> Option<Read> {
    let recording = open(path).ok()?;
    let process = recording.processes.first()?;
    let mut events = Vec::new();
    process.for_each(Span::ALL, &Progress::silent("test"), &mut |batch| events.extend_from_slice(batch));
    let mut totals = Totals::default();
    let outcome = replay(process, Span::ALL, &Progress::silent("test"), &mut totals);
    let mut missing = recording.missing.clone();
    missing.extend(process.missing.clone());
    missing.extend(outcome.missing);
    let query = Query::of(path, View::json(5));
    let mut out = Vec::new();
    let _ = leaks::run(&query, &leaks::Options::default(), &mut out, Style::PLAIN);
    let _ = report::summary::report(&Query::of(path, View::text(0)), &mut out, Style::PLAIN);
    let _ = verify::run(path, &mut out, Style::PLAIN);
    Some(Read { events, totals: totals.finish(None), missing })
}

fn written(files: &Files, codec: Codec) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    made::write(dir.path(), files, codec);
    let path = dir.path().to_path_buf();
    (dir, path)
}

/// What identifies an event whether or not its column values are known.
fn key(event: &Event) -> (u64, u64, u64) {
    (event.index, event.address, event.size)
}

#[test]
fn cut_anywhere_gives_what_is_before_the_cut() {
    for codec in [Codec::Plain, Codec::Zstd, Codec::Lz4] {
        let options = Options { codec, ..Options::default() };
        let files = made::files(&steps(), &options);
        let (_dir, path) = written(&files, codec);
        let whole = read(&path).unwrap();
        assert!(whole.missing.is_empty(), "{:?}", whole.missing);
        let without_unmatched: Vec<_> = whole.events.iter().filter(|event| event.index != 0).map(key).collect();
        for cut in (0..files.tape.len()).step_by(61) {
            let (_dir, path) = written(&Files { tape: files.tape[..cut].to_vec(), ..files.clone() }, codec);
            let Some(found) = read(&path) else { panic!("nothing readable with the tape cut at {cut}") };
            assert!(!found.missing.is_empty(), "cut at {cut} and not noticed");
            let keys: Vec<_> = found.events.iter().filter(|event| event.index != 0).map(key).collect();
            assert!(without_unmatched.starts_with(&keys), "the tape cut at {cut}");
            // The trace is complete: the events after the last commit are salvaged.
            assert_eq!(keys.len(), without_unmatched.len(), "the tape cut at {cut}, {codec:?}");
        }
        for cut in (0..files.trace.len()).step_by(31) {
            let (_dir, path) = written(&Files { trace: files.trace[..cut].to_vec(), ..files.clone() }, codec);
            let found = read(&path).unwrap();
            let end_only = cut >= files.trace.len() - 24 && found.events.len() == whole.events.len();
            assert!(end_only || !found.missing.is_empty(), "the trace cut at {cut} and not noticed");
            let keys: Vec<_> = found.events.iter().map(key).collect();
            let all: Vec<_> = whole.events.iter().map(key).collect();
            assert!(all.starts_with(&keys), "the trace cut at {cut}");
        }
    }
}

#[test]
fn a_flipped_byte_is_noticed_or_changes_nothing() {
    let options = Options { codec: Codec::Zstd, ..Options::default() };
    let steps = steps();
    let files = made::files(&steps, &options);
    let expected = truth(&steps).totals;
    for offset in (0..files.tape.len()).step_by(17) {
        let mut torn = files.clone();
        torn.tape[offset] ^= 1 << (offset % 8);
        let (_dir, path) = written(&torn, options.codec);
        let Some(found) = read(&path) else { continue };
        assert!(found.totals == expected || !found.missing.is_empty(), "tape byte {offset}");
    }
    for offset in (0..files.trace.len()).step_by(13) {
        let mut torn = files.clone();
        torn.trace[offset] ^= 1 << (offset % 8);
        let (_dir, path) = written(&torn, options.codec);
        let found = read(&path).unwrap();
        assert!(found.totals == expected || !found.missing.is_empty(), "trace byte {offset}");
    }
}

#[test]
fn missing_files_leave_what_the_others_say() {
    let options = Options::default();
    let steps = steps();
    let files = made::files(&steps, &options);
    let expected = truth(&steps).totals;

    let (_dir, path) = written(&files, options.codec);
    std::fs::remove_file(path.join("4711.made").join(TAPE)).unwrap();
    let found = read(&path).unwrap();
    assert_eq!((found.totals.allocs >= expected.allocs, found.totals.resizes), (true, expected.resizes));
    assert!(matches!(&found.missing[..], [Missing::File { name, .. }] if name == TAPE), "{:?}", found.missing);

    let (_dir, path) = written(&files, options.codec);
    std::fs::remove_file(path.join("4711.made/trace.mtrc")).unwrap();
    let recording = open(&path).unwrap();
    assert_eq!(recording.processes[0].ready_sums().unwrap().totals, expected);
    assert!(!recording.is_complete());

    let (_dir, path) = written(&files, options.codec);
    std::fs::remove_file(path.join("4711.made/trace.mtrc")).unwrap();
    std::fs::remove_file(path.join("4711.made").join(TAPE)).unwrap();
    let recording = open(&path).unwrap();
    let sums = recording.processes[0].ready_sums().unwrap().totals;
    assert_eq!((sums.allocs, sums.live_blocks), (expected.allocs + expected.resizes, expected.live_blocks));

    let (_dir, path) = written(&files, options.codec);
    std::fs::write(path.join(RECORDING), "{\"format\": \"heaptape rec").unwrap();
    let found = read(&path).unwrap();
    assert_eq!(found.totals, expected);
    assert!(matches!(&found.missing[..], [Missing::File { name, .. }] if name == RECORDING));

    let empty = tempfile::tempdir().unwrap();
    assert!(open(empty.path()).is_err());
    std::fs::write(empty.path().join("text"), "hello").unwrap();
    assert!(open(&empty.path().join("text")).is_err());
    assert!(open(&empty.path().join("nowhere")).is_err());
}

/// A recording must not lead its reader out of its directory.
#[test]
fn folder_names_stay_inside() {
    let files = made::files(&steps(), &Options::default());
    let (_dir, path) = written(&files, Codec::Plain);
    let text = std::fs::read_to_string(path.join(RECORDING)).unwrap();
    for name in ["../4711.made", "/etc", "..", "4711.made/../4711.made", ""] {
        std::fs::write(
            path.join(RECORDING),
            text.replace("\"folder\": \"4711.made\"", &format!("\"folder\": \"{name}\"")),
        )
        .unwrap();
        let recording = open(&path).unwrap();
        let refused =
            |missing: &Missing| matches!(missing, Missing::File { why, .. } if why == "not the name of a folder");
        assert!(recording.missing.iter().any(refused), "{name}");
    }
}

/// A chunk whose announced size is far beyond what can be.
#[test]
fn hostile_sizes_take_no_memory() {
    use heaptape_formats::tape::{Chunk, Column, Record, Sites, Writer, field::Text};
    let mut tape = Vec::new();
    let mut writer = Writer::default();
    Writer::file_header(&mut tape);
    writer.record(&Record::Sites(Sites { first: u32::MAX, sites: vec![Default::default()] }), &mut tape);
    let zeros = vec![0u8; 12 << 20];
    let mut stored = Vec::new();
    Codec::Zstd.pack(&zeros, 1, &mut stored).unwrap();
    for plain_length in [u64::from(u32::MAX), 1 << 40, zeros.len() as u64] {
        let column = Column { kind: 1, codec: 2, plain_length: plain_length as u32, stored: Text(stored.clone()) };
        let chunk = Chunk {
            number: 1,
            codec: 2,
            stored_length: stored.len() as u64,
            plain_length,
            checksum: heaptape_formats::tape::codec::checksum(&stored),
            events: u64::MAX,
            columns: vec![column],
            ..Chunk::default()
        };
        writer.record(&Record::Chunk(chunk), &mut tape);
    }
    let files = Files { tape, trace: stored, profile: Vec::new() };
    let (_dir, path) = written(&files, Codec::Zstd);
    let found = read(&path).unwrap();
    assert!(found.events.is_empty());
    assert!(!found.missing.is_empty());
}

/// A pipe in the place of a file of the recording has no content to wait for.
#[test]
fn pipes_in_a_recording_are_not_waited_for() {
    let files = made::files(&steps(), &Options::default());
    for name in [RECORDING, TAPE, SYMBOLS, "events.journal.0"] {
        let (dir, path) = written(&files, Codec::Plain);
        let folder = match name {
            RECORDING => path.clone(),
            _ => std::fs::read_dir(&path)
                .unwrap()
                .flatten()
                .map(|entry| entry.path())
                .find(|path| path.is_dir())
                .unwrap(),
        };
        let _ = std::fs::remove_file(folder.join(name));
        assert!(std::process::Command::new("mkfifo").arg(folder.join(name)).status().unwrap().success());
        let (done, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let events = read(&path).map_or(0, |read| read.events.len());
            let _ = done.send(events);
        });
        let events = ended.recv_timeout(std::time::Duration::from_secs(20));
        assert!(events.is_ok_and(|events| events > 0), "{name}: {events:?}");
        drop(dir);
    }
}

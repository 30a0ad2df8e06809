//! Recordings that earlier releases wrote must be read for ever: `tests/golden/tape`. Two readers
//! count their events, this crate and `tests/tape/read_tape.py`, which was written from
//! docs/tape.md alone. Both must count what the frozen expectation says.

use heaptape_analyzer::event::Span;
use heaptape_analyzer::model::totals::Totals;
use heaptape_analyzer::{Accounting, Process};
use heaptape_analyzer::{Missing, Progress, open, replay};
use heaptape_formats::recording::TAPE;
use heaptape_formats::tape::{Record, Step, Stream};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/tape")
}

/// Returns the folders of all recordings and their expectations.
fn recordings() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for version in std::fs::read_dir(golden()).unwrap() {
        for entry in std::fs::read_dir(version.unwrap().path()).into_iter().flatten() {
            let folder = entry.unwrap().path();
            if folder.is_dir() {
                let expected = std::fs::read_to_string(folder.with_extension("expected.txt")).unwrap();
                found.push((folder, expected));
            }
        }
    }
    found.sort();
    assert!(found.len() >= 12, "recordings are missing");
    found
}

/// Returns the number of records of each kind in a tape.
fn kinds(tape: &Path) -> BTreeMap<&'static str, u64> {
    let file = File::open(tape).unwrap();
    let mut stream = Stream::new(&file).unwrap();
    let mut kinds = BTreeMap::new();
    loop {
        let kind = match stream.step().unwrap() {
            Step::End(_) => return kinds,
            Step::Unknown(..) | Step::Damage(..) => panic!("{}: damaged or unknown", tape.display()),
            Step::Record(_, record) => match record {
                Record::Process(_) => "process",
                Record::Module(_) => "module",
                Record::ModuleGone(_) => "module gone",
                Record::Sites(_) => "sites",
                Record::Thread(_) => "thread",
                Record::Chunk(_) => "chunk",
                Record::Accounts(_) => "accounts",
                Record::Loss(_) => "loss",
                Record::Clock(_) => "clock",
                Record::Summary(_) => "summary",
                Record::End(_) => "end",
                Record::Note(_) => "note",
                Record::Mark(_) => "mark",
                Record::Residency(_) => "residency",
                Record::Division(_) => "division",
                Record::Mappings(_) => "mappings",
                Record::References(_) => "references",
                Record::ReferenceBlocks(_) => "reference blocks",
                Record::ReferenceEdges(_) => "reference edges",
                Record::ReferenceRoots(_) => "reference roots",
                Record::ReferenceOffsets(_) => "reference offsets",
                Record::ReferencesEnd(_) => "references end",
                Record::Inherited(_) => "inherited",
                Record::Segment(_) => "segment",
                Record::History(_) => "history",
                Record::Code(_) => "code",
                Record::Symbols(_) => "symbols",
                Record::HistoryErrors(_) => "history errors",
            },
        };
        *kinds.entry(kind).or_insert(0) += 1;
    }
}

/// Returns the counts of a process in the form of the expectations.
fn counts(process: &Process) -> String {
    let mut totals = Totals::default();
    let outcome = replay(process, Span::ALL, &Progress::new("counting"), &mut totals);
    let totals = match process.ready_sums() {
        Some(summary) if !process.has_events() => summary.totals,
        _ => totals.finish(process.tape.inherited.as_ref()),
    };
    let missing = [&process.missing[..], &outcome.missing[..]].concat();
    let all = Accounting::of(process, &totals, &missing, Some(&outcome.recorded)).all();
    let mut text = format!("process {}\n", process.about.folder);
    for (kind, count) in kinds(&process.path.join(TAPE)) {
        writeln!(text, "  records {kind} {count}").unwrap();
    }
    for (name, value) in [
        ("allocs", totals.allocs),
        ("resizes", totals.resizes),
        ("frees", totals.frees),
        ("bytes_allocated", totals.bytes_allocated),
        ("live_blocks", totals.live_blocks),
        ("live_bytes", totals.live_bytes),
        ("peak_bytes", totals.peak_bytes),
        ("peak_blocks", totals.peak_blocks),
        ("peak_tick", totals.peak_tick),
        ("unknown_frees", totals.unknown_frees),
        ("inherited_blocks", totals.inherited_blocks),
        ("inherited_bytes", totals.inherited_bytes),
        ("implied_frees", totals.implied_frees),
        ("emitted", all.emitted),
        ("recorded", all.recorded),
        ("lost", all.lost),
        ("sampled_out", all.sampled_out),
    ] {
        writeln!(text, "  {name} {value}").unwrap();
    }
    if process.tape.mappings.is_known() {
        let sums = process.tape.mappings.sums;
        let (mapped, reserved, inherited) = (sums.mapped_bytes, sums.reserved_bytes, sums.inherited_bytes);
        writeln!(text, "  mapped_bytes {mapped}\n  reserved_bytes {reserved}\n  inherited_mapped_bytes {inherited}")
            .unwrap();
    }
    text
}

#[test]
fn frozen_recordings_are_read_with_the_expected_counts() {
    for (folder, expected) in recordings() {
        let mut recording = open(&folder).unwrap();
        recording.processes.sort_by_key(|process| process.about.folder.clone());
        let found: String = recording.processes.iter().map(counts).collect();
        assert_eq!(found, expected, "{}", folder.display());
        let is_killed = folder.ends_with("killed");
        let hides = recording.processes.iter().flat_map(|process| &process.missing).any(|one| *one == Missing::NoEnd);
        assert_eq!(hides, is_killed, "{}", folder.display());
    }
}

/// What `heaptape rss` said when it was recorded: 1.90 MiB, 5.95 KiB of it in live blocks, 204 KiB
/// that never was a block, and 1.47 MiB of files.
#[test]
fn divided_memory_is_as_the_recorder_stored_it() {
    let recording = open(&golden().join("v1/divided")).unwrap();
    let tape = File::open(recording.processes[0].path.join(TAPE)).unwrap();
    let (mut stream, mut bills) = (Stream::new(&tape).unwrap(), Vec::new());
    loop {
        match stream.step().unwrap() {
            Step::End(_) => break,
            Step::Record(_, Record::Division(division)) => bills.push(division.uses.bill),
            _ => {}
        }
    }
    let newest = bills.last().unwrap();
    assert_eq!((newest.live, newest.slack, newest.held, newest.free_pages), (6_096, 32, 2_064, 0));
    assert_eq!((newest.never_block, newest.files, newest.written), (208_896, 1_544_192, 49_152));
    assert_eq!((newest.stacks, newest.heaptape, newest.sum()), (16_384, 212_992, 1_990_656));
}

/// What the program printed when it was recorded.
#[test]
fn reserved_and_returned_memory_is_what_the_program_printed() {
    let mut recording = open(&golden().join("v1/reserved")).unwrap();
    recording.processes.sort_by_key(|process| process.about.folder.clone());
    let sums = recording.processes[0].tape.mappings.sums;
    assert_eq!((sums.mapped_bytes, sums.reserved_bytes), (491_520, 241_664));
    assert_eq!((sums.returned_bytes, sums.returned_calls), (20_480, 2));
    let mut kinds = BTreeMap::<u8, u64>::new();
    recording.processes[0].mapping_events(&mut |event| *kinds.entry(event.kind).or_default() += 1);
    assert!(kinds.get(&6) > Some(&0) && kinds.get(&7) == Some(&2), "{kinds:?}");
}

#[test]
fn independent_reader_counts_the_same() {
    let script = golden().join("../../tape/read_tape.py");
    for (folder, expected) in recordings() {
        let mut processes: Vec<PathBuf> = std::fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.join(TAPE).is_file())
            .collect();
        processes.sort();
        let output = Command::new("python3").arg(&script).args(processes).output().expect("python3");
        let text = String::from_utf8(output.stdout).unwrap();
        // Without a summary the time of the peak is that of an event, which we interpolate.
        let is_killed = folder.ends_with("killed");
        let is_compared = |line: &&str| !(line.starts_with("  !") || is_killed && line.starts_with("  peak_tick "));
        let lines = |text: &str| text.lines().filter(is_compared).map(|line| format!("{line}\n")).collect::<String>();
        assert_eq!(lines(&text), lines(&expected), "{}: {}", folder.display(), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.success(), !is_killed, "{}: {text}", folder.display());
    }
}

/// The program is not there any more: names come from `symbols.tape`.
#[test]
fn frozen_recordings_name_their_functions() {
    for (folder, _) in recordings().into_iter().filter(|(folder, _)| !folder.ends_with("killed")) {
        let recording = open(&folder).unwrap();
        let mut text = Vec::new();
        for process in &recording.processes {
            let stream = std::fs::read(process.path.join("symbols.tape")).unwrap();
            let mut reader = heaptape_formats::tape::Reader::new(&stream).unwrap();
            while let Step::Record(_, record) = reader.step() {
                if let Record::Symbols(symbols) = record {
                    let table = heaptape_formats::tape::SymbolTable::unpack(&symbols).unwrap();
                    text.extend(table.texts.iter().map(|text| text.lossy().into_owned()));
                }
            }
        }
        let names = ["child", "keep_two", "map_pages"];
        assert!(text.iter().any(|name| names.contains(&name.as_str())), "{}: {text:?}", folder.display());
    }
}

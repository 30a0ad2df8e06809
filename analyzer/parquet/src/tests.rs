//! Tables of mpatrol's traces are read again and compared with the summary.

use crate::export::{Partition, date_of, write_process};
use crate::ids;
use heaptape_analyzer::event::Range;
use heaptape_analyzer::sums;
use heaptape_analyzer::{Module, Site, Stacks};
use heaptape_analyzer::{Progress, open};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};
use std::path::{Path, PathBuf};

fn rows(file: &Path) -> Vec<Row> {
    let reader = SerializedFileReader::new(std::fs::File::open(file).unwrap()).unwrap();
    reader.get_row_iter(None).unwrap().map(Result::unwrap).collect()
}

fn number(row: &Row, name: &str) -> i64 {
    match row.get_column_iter().find(|column| column.0 == name).unwrap().1 {
        Field::Long(value) => *value,
        Field::Int(value) => (*value).into(),
        other => panic!("{name}: {other:?}"),
    }
}

fn is(row: &Row, name: &str, text: &str) -> bool {
    row.get_column_iter().any(|column| column.0 == name && *column.1 == Field::Str(text.into()))
}

#[test]
fn tables_add_up_to_the_summary() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/mpatrol");
    let mut done = 0;
    for entry in std::fs::read_dir(golden).unwrap().flatten() {
        let Ok(recording) = open(&entry.path()) else { continue };
        let Some(one) = recording.processes.iter().find(|process| process.has_events() && process.tape.events > 0)
        else {
            continue;
        };
        let out = tempfile::tempdir().unwrap();
        let written = write_process(one, &Range::ALL, &Partition::of(&recording, &entry.path()), out.path()).unwrap();
        let of = |table: &str| -> PathBuf {
            let found = written.files.iter().find(|file| file.starts_with(out.path().join(table)));
            found.unwrap_or_else(|| panic!("no {table} in {:?}", written.files)).clone()
        };
        let truth = sums(one, &Progress::new("")).totals;
        let events = rows(&of("events"));
        let count = |kind: &str| events.iter().filter(|row| is(row, "kind", kind)).count() as u64;
        assert_eq!([count("alloc"), count("resize"), count("free")], [truth.allocs, truth.resizes, truth.frees]);
        let freed = events.iter().filter(|row| is(row, "kind", "free"));
        assert!(freed.clone().all(|row| number(row, "address") != 0) && freed.count() as u64 == truth.frees);
        let taken = events.iter().filter(|row| is(row, "kind", "alloc") || is(row, "kind", "resize"));
        assert_eq!(taken.map(|row| number(row, "size")).sum::<i64>() as u64, truth.bytes_allocated);
        let allocations = rows(&of("allocations"));
        let lives = |row: &&Row| row.get_column_iter().any(|column| column.0 == "died_ns" && *column.1 == Field::Null);
        assert_eq!(allocations.iter().filter(lives).count() as u64, truth.live_blocks);
        assert_eq!(
            allocations.iter().filter(lives).map(|row| number(row, "size")).sum::<i64>() as u64,
            truth.live_bytes
        );
        assert_sites(&of("sites"), &truth);
        let stacks: Vec<i64> = rows(&of("stacks")).iter().map(|row| number(row, "stack")).collect();
        assert!(events.iter().map(|row| number(row, "stack")).all(|stack| stack == 0 || stacks.contains(&stack)));
        done += 1;
    }
    assert!(done > 3, "{done} traces");
}

/// Compares the rows of call sites with the totals of their process.
fn assert_sites(file: &Path, truth: &heaptape_formats::tape::Totals) {
    let sites = rows(file);
    let sum = |name: &str| sites.iter().map(|row| number(row, name)).sum::<i64>() as u64;
    assert_eq!(
        [sum("live_bytes"), sum("live_blocks"), sum("allocated_bytes"), sum("allocations")],
        [truth.live_bytes, truth.live_blocks, truth.bytes_allocated, truth.allocs + truth.resizes]
    );
}

#[test]
fn profiles_have_call_sites_and_no_events() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/tape/v1/profile");
    let recording = open(&golden).unwrap();
    let process = recording.processes.iter().find(|process| !process.has_events()).unwrap();
    let out = tempfile::tempdir().unwrap();
    let written = write_process(process, &Range::ALL, &Partition::of(&recording, &golden), out.path()).unwrap();
    let of = |table: &str| written.files.iter().find(|file| file.starts_with(out.path().join(table)));
    assert!(of("events").is_none() && of("allocations").is_none(), "{:?}", written.files);
    assert_sites(of("sites").unwrap(), &sums(process, &Progress::new("")).totals);
    let stacks: Vec<i64> = rows(of("stacks").unwrap()).iter().map(|row| number(row, "stack")).collect();
    let sites = rows(of("sites").unwrap());
    assert!(sites.iter().map(|row| number(row, "stack")).all(|stack| stack == 0 || stacks.contains(&stack)));
    assert!(!sites.is_empty() && sites.iter().all(|row| number(row, "moment_ns") >= number(row, "counted_ns")));
}

/// The segment says how many blocks are older than it; with their events they are allocations.
#[test]
fn blocks_of_earlier_segments_are_marked() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/tape/v1/trace");
    for carried in [0, 3] {
        let mut recording = open(&golden).unwrap();
        let partition = Partition::of(&recording, &golden);
        let process = &mut recording.processes[0];
        process.tape.segment =
            Some(heaptape_formats::tape::Segment { carried, ..heaptape_formats::tape::Segment::default() });
        let out = tempfile::tempdir().unwrap();
        let written = write_process(process, &Range::ALL, &partition, out.path()).unwrap();
        let file = written.files.iter().find(|file| file.starts_with(out.path().join("allocations"))).unwrap();
        let allocations = rows(file);
        let marked: Vec<&Row> = allocations.iter().filter(|row| number(row, "carried") == 1).collect();
        assert_eq!(marked.len() as u64, carried);
        assert!(allocations.len() > 3);
        // They are the first ones.
        let last = marked.iter().map(|row| number(row, "born_ns")).max().unwrap_or(0);
        assert!(allocations.iter().all(|row| number(row, "carried") == 1 || number(row, "born_ns") >= last));
    }
}

/// Two processes with the same pid and name: of two hosts of one name, or of two boots.
#[test]
fn files_of_processes_are_kept_apart() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/tape/v1/trace");
    let out = tempfile::tempdir().unwrap();
    let mut files = std::collections::HashSet::new();
    for boot in ["one", "two"] {
        let mut recording = open(&golden).unwrap();
        let partition = Partition::of(&recording, &golden);
        let process = &mut recording.processes[0];
        let segment = heaptape_formats::tape::Segment {
            boot: heaptape_formats::tape::field::Text(boot.into()),
            ..heaptape_formats::tape::Segment::default()
        };
        process.tape.segment = Some(segment);
        files.extend(write_process(process, &Range::ALL, &partition, out.path()).unwrap().files);
    }
    assert_eq!(files.len(), 12);
}

/// These numbers are stored in the tables of users, so they must not change.
#[test]
fn numbers_of_stacks_never_change() {
    let mut stacks = Stacks::default();
    let module = |start, bias| Module {
        start,
        end: start + 0x1000,
        bias,
        path: b"/bin/x".to_vec(),
        build_id: vec![1, 2, 3],
        ..Module::default()
    };
    stacks.modules = vec![module(0x1000, 0x1000), module(0x9000, 0x9000)];
    stacks.push(Site { parent: 0, module: 1, address: 0x1234, ..Site::default() });
    stacks.push(Site { parent: 1, module: 1, address: 0x1678, ..Site::default() });
    // The same program at other addresses.
    stacks.push(Site { parent: 0, module: 2, address: 0x9234, ..Site::default() });
    stacks.push(Site { parent: 3, module: 2, address: 0x9678, ..Site::default() });
    let ids = ids::of(&stacks);
    assert_eq!(ids[1], ids[3]);
    assert_eq!(ids[2], ids[4]);
    assert!(ids[1..].iter().all(|ids| ids.0 > 0 && ids.1 > 0));
    assert_eq!(ids[2], (5_135_292_875_946_809_521, 3_920_239_208_998_794_395));
}

#[test]
fn days_are_those_of_the_calendar() {
    let days =
        [(0, "1970-01-01"), (951_782_400, "2000-02-29"), (1_795_219_200, "2026-11-21"), (4_107_542_399, "2100-02-28")];
    for (seconds, day) in days {
        assert_eq!(date_of(seconds), day);
    }
}

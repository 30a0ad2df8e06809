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
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/mpatrol");
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
        let taken = events.iter().filter(|row| is(row, "kind", "alloc") || is(row, "kind", "resize"));
        assert_eq!(taken.map(|row| number(row, "size")).sum::<i64>() as u64, truth.bytes_allocated);
        let allocations = rows(&of("allocations"));
        let lives = |row: &&Row| row.get_column_iter().any(|column| column.0 == "died_ns" && *column.1 == Field::Null);
        assert_eq!(allocations.iter().filter(lives).count() as u64, truth.live_blocks);
        assert_eq!(
            allocations.iter().filter(lives).map(|row| number(row, "size")).sum::<i64>() as u64,
            truth.live_bytes
        );
        let stacks: Vec<i64> = rows(&of("stacks")).iter().map(|row| number(row, "stack")).collect();
        assert!(events.iter().map(|row| number(row, "stack")).all(|stack| stack == 0 || stacks.contains(&stack)));
        done += 1;
    }
    assert!(done > 3, "{done} traces");
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

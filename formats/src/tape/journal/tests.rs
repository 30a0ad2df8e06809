//! Tests of the journal's files, from their bytes.

use super::*;
use crate::tape::{Clock, Loss, Process};

fn framed(records: &[Record]) -> Vec<u8> {
    let mut out = Vec::new();
    records.iter().for_each(|record| Writer::default().record(record, &mut out));
    out
}

/// Adds an entry. `plain` is what it adds to the trace, after `before` bytes of earlier
/// entries.
fn add(number: u32, entry: u32, is_whole: bool, (before, plain): (u64, &[u8]), records: &[Record], out: &mut Vec<u8>) {
    let plain_length = before + plain.len() as u64;
    let chunk = Chunk { number, events: u64::from(entry) + 1, plain_length, ..Chunk::default() };
    let positions = vec![Position { slot: 1, tail: u64::from(100 * number + entry), ..Position::default() }];
    let records = Text(framed(records));
    let mut entry = Entry { chunk, number: entry, is_whole, positions, records, ..Entry::default() };
    let trace = mtrc::Columns::of(plain);
    let added = parts(trace.each_ref().map(Vec::as_slice), [b"e", b"", b"", b"", b"", b""]);
    write(&mut entry, added, out);
}

fn tape(folder: &Path, records: &[Record]) -> File {
    let mut bytes = Vec::new();
    Writer::file_header(&mut bytes);
    bytes.extend(framed(records));
    std::fs::write(folder.join("events.tape"), bytes).unwrap();
    File::open(folder.join("events.tape")).unwrap()
}

fn committed(number: u32) -> Record {
    Record::Chunk(Chunk { number, stored_offset: 10, stored_length: 5, ..Chunk::default() })
}

fn loss(events: u64) -> Record {
    Record::Loss(Loss { thread: 1, events, ..Loss::default() })
}

#[test]
fn entries_after_the_last_commit_become_a_chunk() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    let mut bytes = Vec::new();
    add(2, 0, true, (0, b"abc"), &[loss(3)], &mut bytes);
    add(2, 1, true, (3, b"de"), &[loss(4)], &mut bytes);
    // An entry of an older chunk.
    add(1, 2, true, (0, b"old"), &[], &mut bytes);
    std::fs::write(path(folder, 3), &bytes).unwrap();
    assert!(exists(folder) && !exists(&folder.join("x")));
    assert_eq!(positions(folder)[0].tail, 201);
    // The recorder had written the first gap when it was killed.
    let tape_file = tape(folder, &[Record::Process(Process::default()), loss(3), committed(1), loss(3)]);
    let missing = Missing::of(Some(&tape_file), &open_chunks(folder)).unwrap().unwrap();
    assert_eq!((missing.trace_at, &missing.trace[..]), (15, &b"abcde"[..]));
    let length = tape_file.length().unwrap();
    let whole = Splice::new(Some(tape_file), missing.tape_at, missing.tape);
    assert!(whole.length().unwrap() > length && missing.tape_at == length);
    let mut stream = Stream::new(&whole).unwrap();
    let mut found = Vec::new();
    while let Step::Record(_, record) = stream.step().unwrap() {
        found.push(record);
    }
    let Some(Record::Chunk(chunk)) = found.pop() else { panic!("{found:?}") };
    assert_eq!(found[3..], [loss(3), loss(4)]);
    assert_eq!((chunk.number, chunk.events, chunk.stored_offset, chunk.stored_length), (2, 2, 15, 5));
    let kinds: Vec<u8> = chunk.columns.iter().map(|column| column.kind).collect();
    assert_eq!((kinds, &chunk.columns[0].stored.0[..]), (vec![COLUMN_ENTRIES, COLUMN_PREVIOUS], &b"ee"[..]));
}

#[test]
fn nothing_is_missing_from_a_tape_that_has_the_chunk_or_its_end() {
    let temporary = tempfile::tempdir().unwrap();
    let mut bytes = Vec::new();
    add(1, 0, true, (0, b"abc"), &[], &mut bytes);
    std::fs::write(path(temporary.path(), 0), &bytes).unwrap();
    let open = open_chunks(temporary.path());
    let end = Record::End(crate::tape::End::default());
    for records in [vec![committed(1)], vec![committed(4)], vec![end]] {
        assert_eq!(Missing::of(Some(&tape(temporary.path(), &records)), &open).unwrap(), None);
    }
    let clock = [Record::Clock(Clock::default())];
    assert!(Missing::of(Some(&tape(temporary.path(), &clock)), &open).unwrap().is_some());
    assert!(Missing::of(None, &open).unwrap().unwrap().tape.starts_with(&crate::tape::FILE_MAGIC));
    assert_eq!(Missing::of(None, &[]).unwrap(), None);
}

/// The recorder was killed when it had created the tape, or written a part of its header.
#[test]
fn a_tape_without_its_header_is_replaced() {
    let temporary = tempfile::tempdir().unwrap();
    let mut bytes = Vec::new();
    add(1, 0, true, (0, b"abc"), &[loss(3)], &mut bytes);
    std::fs::write(path(temporary.path(), 0), &bytes).unwrap();
    let open = open_chunks(temporary.path());
    let none = Missing::of(None, &open).unwrap();
    let whole = tape(temporary.path(), &[]);
    for length in (0..FILE_HEADER_LEN as u64).rev() {
        let file = File::options().write(true).open(temporary.path().join(TAPE)).unwrap();
        file.set_len(length).unwrap();
        assert_eq!(Missing::of(Some(&whole), &open).unwrap(), none, "{length} bytes");
    }
}

#[test]
fn an_entry_that_needs_a_later_one_does_not_count_alone() {
    let temporary = tempfile::tempdir().unwrap();
    let (mut first, mut second) = (Vec::new(), Vec::new());
    add(1, 0, true, (0, b"a"), &[], &mut first);
    add(1, 1, false, (1, b"b"), &[], &mut first);
    add(2, 0, true, (0, b"c"), &[], &mut second);
    std::fs::write(path(temporary.path(), 1), &first).unwrap();
    let trace = || Missing::of(None, &open_chunks(temporary.path())).unwrap().unwrap().trace;
    assert_eq!((trace(), positions(temporary.path())[0].tail), (b"a".to_vec(), 100));
    std::fs::write(path(temporary.path(), 0), &second).unwrap();
    assert_eq!((trace(), positions(temporary.path())[0].tail), (b"abc".to_vec(), 200));
}

#[test]
fn torn_and_damaged_entries_end_the_file() {
    let mut bytes = Vec::new();
    add(1, 0, true, (0, b"first"), &[loss(1)], &mut bytes);
    let first = bytes.len();
    add(1, 1, true, (5, b"second"), &[], &mut bytes);
    let entries = |bytes: &[u8]| Open::read(bytes).map_or(0, |open| open.entries.len());
    for at in 0..=bytes.len() {
        let expected = usize::from(at >= first) + usize::from(at >= bytes.len());
        assert_eq!(entries(&bytes[..at]), expected, "cut at {at}");
        let mut damaged = bytes.clone();
        if let Some(byte) = damaged.get_mut(at) {
            *byte ^= 0x20;
            assert_eq!(entries(&damaged), usize::from(at >= first), "flipped at {at}");
        }
    }
}

/// Calls that wait are a chunk of their own after the open one, or in its place if it is empty.
/// Those of an earlier entry have been applied since.
#[test]
fn waiting_calls_of_the_last_entry_count() {
    let temporary = tempfile::tempdir().unwrap();
    let waiting = |plain: &[u8], lost| {
        let trace = mtrc::Columns::of(plain);
        let chunk = Chunk { events: 7, plain_length: plain.len() as u64, ..Chunk::default() };
        let accounts = vec![Account { recorded: 9 - lost, lost, ..Account::default() }];
        let parts = parts(trace.each_ref().map(Vec::as_slice), [b"w", b"", b"", b"", b"", b""]);
        Waiting::new(chunk, &parts, accounts)
    };
    let entry = |number, plain: &[u8], waits: Option<&[u8]>, out: &mut Vec<u8>| {
        let chunk = Chunk { number: 4, plain_length: plain.len() as u64, ..Chunk::default() };
        let mut records = framed(&[loss(3 + u64::from(number))]);
        waits.iter().for_each(|plain| waiting(plain, 0).put_frame(&mut records));
        let accounts = waiting(b"", 2).accounts;
        let mut entry = Entry { chunk, number, is_whole: true, records: Text(records), accounts, ..Entry::default() };
        let added = mtrc::Columns::of(if number == 0 { plain } else { b"" });
        write(&mut entry, parts(added.each_ref().map(Vec::as_slice), [b"", b"", b"", b"", b"", b""]), out);
    };
    for (plain, waits, expected) in [
        (&b"abc"[..], Some(&b"de"[..]), vec![(4, 0, 3), (5, 3, 2)]),
        (b"", Some(b"de"), vec![(4, 0, 2)]),
        (b"abc", None, vec![(4, 0, 3)]),
    ] {
        let mut bytes = Vec::new();
        entry(0, plain, Some(b"old"), &mut bytes);
        entry(1, plain, waits, &mut bytes);
        std::fs::write(path(temporary.path(), 0), &bytes).unwrap();
        let missing = Missing::of(None, &open_chunks(temporary.path())).unwrap().unwrap();
        assert_eq!(missing.trace, [plain, waits.unwrap_or_default()].concat());
        let whole = Splice::<File>::new(None, 0, missing.tape);
        let (mut stream, mut chunks, mut accounts, mut losses) = (Stream::new(&whole).unwrap(), vec![], vec![], 0);
        loop {
            match stream.step().unwrap() {
                Step::Record(_, Record::Chunk(chunk)) => {
                    chunks.push((chunk.number, chunk.stored_offset, chunk.stored_length));
                }
                Step::Record(_, Record::Accounts(all)) => accounts.extend(all.accounts),
                Step::Record(_, Record::Loss(_)) => losses += 1,
                Step::End(_) => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((chunks, losses), (expected, 2));
        assert_eq!(accounts[0].lost, if waits.is_some() { 0 } else { 2 });
    }
}

/// Any bytes with valid checksums are read without a panic, and no offset makes a long file.
#[test]
fn hostile_entries_are_bounded() {
    let temporary = tempfile::tempdir().unwrap();
    let hostile = Chunk { number: 1, stored_offset: u64::MAX, stored_length: u64::MAX, ..Chunk::default() };
    let tape_file = tape(temporary.path(), &[Record::Chunk(hostile)]);
    let mut bytes = Vec::new();
    add(2, 0, true, (0, b"abc"), &[loss(1)], &mut bytes);
    let (mut entry, added, _) = entry(&bytes).unwrap();
    let (chunk, trace) = (Chunk { plain_length: 2, ..Chunk::default() }, mtrc::Columns::of(b"de"));
    let waits = parts(trace.each_ref().map(Vec::as_slice), [b"w", b"", b"", b"", b"", b""]);
    Waiting::new(chunk, &waits, Vec::new()).put_frame(&mut entry.records.0);
    let mut rest = added;
    let added = std::array::from_fn(|part| rest.split_off(..entry.added[part] as usize).unwrap());
    let mut bytes = Vec::new();
    write(&mut entry, added, &mut bytes);
    for at in HEAD..bytes.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut changed = bytes.clone();
            changed[at] = value;
            let sum = crc32fast::hash(&changed[HEAD..]);
            changed[8..HEAD].copy_from_slice(&sum.to_le_bytes());
            let open: Vec<Open> = Open::read(&changed).into_iter().collect();
            for tape in [None, Some(&tape_file)] {
                let Some(missing) = Missing::of(tape.map(|tape| tape as &dyn Source), &open).unwrap() else { continue };
                let trace = Splice::<File>::new(None, missing.trace_at, missing.trace);
                assert!(trace.length().unwrap() <= changed.len() as u64, "byte {at} is {value}");
            }
        }
    }
}

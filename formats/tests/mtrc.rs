//! MTRC: files of the real library come back byte for byte; hostile bytes end in an ending or an
//! error, never worse.

use heaptape_formats::mtrc::{self, Block, Location, Options, Reader, Record, Stream, Window, Writer};
use heaptape_formats::{Abi, Ending};
use proptest::collection::vec;
use proptest::prelude::*;
use std::fs;
use std::path::PathBuf;

fn samples() -> Vec<(String, Vec<u8>)> {
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/mpatrol");
    let mut found = Vec::new();
    for folder in [golden.clone(), golden.join("edge")] {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "mtrc") {
                found.push((path.file_name().unwrap().to_string_lossy().into_owned(), fs::read(&path).unwrap()));
            }
        }
    }
    found.sort();
    assert!(found.len() > 30);
    found
}

/// Reads to the end and returns the number of records.
fn count(mut reader: Reader) -> usize {
    let mut count = 0;
    while let Ok(Some(_)) = reader.next() {
        count += 1;
    }
    count
}

/// Reads to the end and returns the records as text and the ending.
fn read_all(mut reader: Reader) -> (Vec<String>, Option<Ending>) {
    let mut records = Vec::new();
    while let Ok(Some(record)) = reader.next() {
        records.push(format!("{record:?}"));
    }
    (records, reader.ending())
}

fn stream_all(bytes: &[u8]) -> (Vec<String>, Option<Ending>) {
    let mut records = Vec::new();
    let Ok(mut stream) = Stream::new(bytes) else { return (records, None) };
    while let Ok(Some(record)) = stream.next() {
        records.push(format!("{record:?}"));
    }
    (records, stream.ending())
}

#[test]
fn the_writer_chooses_as_the_real_library_did() {
    for (name, bytes) in samples().into_iter().filter(|(name, _)| !name.contains("edge")) {
        let Ok(mut reader) = Reader::new(&bytes) else { continue };
        let header = reader.header();
        let mut writer = Writer::new(Options { header, padding: false });
        let mut out = Vec::new();
        writer.header(&mut out);
        while let Ok(Some(record)) = reader.next() {
            writer.record(&mut out, &record);
        }
        if reader.ending() != Some(Ending::Complete) {
            continue;
        }
        writer.end(&mut out);
        assert_eq!(writer.offset(), out.len() as u64);
        // These files are made by hand. They have overlong numbers, slots that the library does not
        // choose, or bytes after the end.
        let by_hand =
            ["overlong.mtrc", "name1024.mtrc", "name32.mtrc", "nameundef.mtrc", "trail.mtrc", "straddle5.mtrc"];
        assert_eq!(out == bytes, !by_hand.contains(&name.as_str()), "{name}");
    }
}

#[test]
fn every_sample_is_rewritten_byte_for_byte() {
    let mut rewritten = 0;
    for (name, bytes) in samples() {
        match mtrc::rewrite(&bytes) {
            Ok(out) => {
                assert!(out == bytes, "{name}");
                rewritten += 1;
            }
            Err(_) => {
                assert!(["M2", "name33", "noend", "unk.", "ver10600"].iter().any(|bad| name.starts_with(bad)), "{name}")
            }
        }
    }
    assert!(rewritten > 25);
}

#[test]
fn a_stream_reads_what_the_reader_reads() {
    for (name, bytes) in samples() {
        let Ok(reader) = Reader::new(&bytes) else { continue };
        assert_eq!(read_all(reader), stream_all(&bytes), "{name}");
    }
}

#[test]
fn cut_anywhere_the_records_before_are_read() {
    for (name, bytes) in samples().into_iter().filter(|(_, bytes)| bytes.len() < 1000) {
        let Ok(whole) = Reader::new(&bytes) else { continue };
        let length = whole.header().len();
        let (all, ending) = read_all(whole);
        for cut in 0..bytes.len() {
            let Ok(reader) = Reader::new(&bytes[..cut]) else {
                assert!(cut < length, "{name} at {cut}");
                continue;
            };
            let (some, cut_ending) = read_all(reader);
            assert_eq!(some[..], all[..some.len()], "{name} at {cut}");
            if ending == Some(Ending::Complete) && !name.starts_with("trail") {
                assert!(
                    matches!(cut_ending, Some(Ending::Truncated { offset, .. }) if offset <= cut as u64),
                    "{name} at {cut}"
                );
            }
        }
    }
}

#[test]
fn a_flipped_byte_never_panics() {
    for (_, bytes) in samples().into_iter().filter(|(_, bytes)| bytes.len() < 700) {
        for at in 0..bytes.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut bytes = bytes.clone();
                bytes[at] ^= flip;
                if let Ok(reader) = Reader::new(&bytes) {
                    assert!(count(reader) <= bytes.len());
                }
                let _ = mtrc::rewrite(&bytes);
            }
        }
    }
}

#[test]
fn chunks_are_read_alone_and_together() {
    let (mut writer, mut chunks) = (Writer::new(Options::default()), vec![Vec::new()]);
    writer.header(&mut chunks[0]);
    let mut starts = vec![20u64];
    for chunk in 0..3u64 {
        let mut out = Vec::new();
        writer.new_chunk();
        for event in 0..50u64 {
            let name = format!("f{}", event % 40);
            let location = Location { thread: chunk, function: Some(name.as_bytes()), file: Some(b"a.c"), line: event };
            writer.alloc(
                &mut out,
                Block { index: chunk * 50 + event, address: 0x7f00_0000_0000 + event, size: event },
                &location,
            );
        }
        starts.push(starts[chunk as usize] + out.len() as u64);
        chunks.push(out);
    }
    let mut end = Vec::new();
    writer.end(&mut end);
    let whole: Vec<u8> = chunks.iter().flatten().chain(&end).copied().collect();
    let (all, ending) = read_all(Reader::new(&whole).unwrap());
    assert_eq!(ending, Some(Ending::Complete));
    for chunk in 0..3 {
        let bytes = &chunks[chunk + 1];
        let (some, ending) = read_all(Reader::chunk(Default::default(), bytes, starts[chunk]));
        assert_eq!((&some[..], ending), (&all[chunk * 50..][..50], Some(Ending::Complete)));
        let (_, ending) = read_all(Reader::chunk(Default::default(), &bytes[..bytes.len() - 1], starts[chunk]));
        assert!(matches!(ending, Some(Ending::Truncated { field: "line", offset }) if offset > starts[chunk]));
    }
}

/// Walks a file as mpatrol's own reader would: its window must hold every number.
fn real_reader_fails_at(bytes: &[u8]) -> Option<u64> {
    let mut reader = Reader::new(bytes).unwrap();
    let header = reader.header();
    let mut window = Window::after(&header);
    while let Some((_, raw)) = reader.next_raw().unwrap() {
        let shape = mtrc::Shape::of(raw, header.has_location()).unwrap();
        let location = raw[0] != b'H' && raw[0] != b'I' && header.has_location();
        let numbers: Vec<usize> =
            shape.widths.iter().map(|&width| usize::from(width)).filter(|&width| width > 0).collect();
        let total: usize = numbers.iter().sum();
        let names = raw.len() - 1 - total;
        window.byte();
        for (at, &width) in numbers.iter().enumerate() {
            if location && at + 1 == numbers.len() {
                (0..names).for_each(|_| window.byte());
            }
            let before = window.offset;
            if !window.number(width) && window.edge < bytes.len() as u64 {
                return Some(before);
            }
        }
    }
    None
}

#[test]
fn the_window_model_knows_the_samples() {
    for (name, bytes) in samples() {
        match name.as_str() {
            "straddle5.mtrc" => assert!(real_reader_fails_at(&bytes).is_some()),
            "straddle4.mtrc" | "names.mtrc" | "threads.mtrc" => {
                assert_eq!(real_reader_fails_at(&bytes), None, "{name}")
            }
            _ => {}
        }
    }
}

#[test]
fn padding_keeps_every_number_inside_the_window() {
    let mut seed = 7u64;
    let mut random = move || {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        seed >> 33
    };
    let (mut unpadded_fails, mut added) = (0, 0);
    for run in 0..60 {
        let mut events = Vec::new();
        for index in 0..3000u64 {
            let address = 0x5500_0000_0000 + (random() << 4);
            let most = if run % 7 == 0 { 1 << 31 } else { 3000 };
            let size = (random() % most) << if run % 5 == 0 { 5 } else { 0 };
            let thread = if run % 3 == 0 { 0x7f12_3456_7000 + random() % 9 } else { random() % 300 };
            events.push((random() % 4, index, address, size, thread, random() % 50));
        }
        let encode = |padding| {
            let (mut out, mut writer) = (Vec::new(), Writer::new(Options { padding, ..Options::default() }));
            writer.header(&mut out);
            for &(kind, index, address, size, thread, name) in &events {
                let text = format!("function_{name}");
                let function = (run % 2 == 0 && name < 40).then_some(text.as_bytes());
                let location = Location { function, line: name * 9, ..Location::thread(thread) };
                match kind {
                    0 => writer.heap(&mut out, address, size),
                    1 => writer.free(&mut out, index, &location),
                    _ => writer.alloc(&mut out, Block { index, address, size }, &location),
                }
            }
            writer.end(&mut out);
            assert_eq!(writer.offset(), out.len() as u64);
            out
        };
        let (plain, padded) = (encode(false), encode(true));
        unpadded_fails += usize::from(real_reader_fails_at(&plain).is_some());
        added += padded.len() - plain.len();
        assert_eq!(real_reader_fails_at(&padded), None, "run {run}");
        assert_eq!(read_all(Reader::new(&plain).unwrap()).0, read_all(Reader::new(&padded).unwrap()).0);
    }
    assert!(unpadded_fails > 30 && added < 60 * 200, "{unpadded_fails} {added}");
}

#[test]
fn all_flavours_and_old_versions_are_written_and_read() {
    for abi in Abi::ALL {
        for version in [10300, 10404, 10405, 10501, 10599] {
            let header = mtrc::Header { abi, version };
            let (mut out, mut writer) = (Vec::new(), Writer::new(Options { header, padding: true }));
            writer.header(&mut out);
            writer.alloc(
                &mut out,
                Block { index: 1, address: u64::MAX, size: u64::MAX },
                &Location { line: u64::MAX, ..Location::thread(u64::MAX) },
            );
            writer.free(&mut out, u64::MAX, &Location::thread(0));
            writer.end(&mut out);
            let mut reader = Reader::new(&out).unwrap();
            assert_eq!(reader.header(), header);
            let old = version < 10405;
            let thread = if old { 0 } else { u64::MAX };
            let location = Location { line: thread, ..Location::thread(thread) };
            assert_eq!(
                reader.next().unwrap(),
                Some(Record::Alloc { index: 1, address: u64::MAX, size: u64::MAX, location })
            );
            assert_eq!(reader.next().unwrap(), Some(Record::Free { index: u64::MAX, location: Location::thread(0) }));
            assert_eq!(reader.next().unwrap(), None);
            assert_eq!(reader.ending(), Some(Ending::Complete));
        }
    }
}

#[test]
fn random_bytes_behind_a_header_end_somewhere() {
    let header = &b"MTRC\x01\0\0\0\0\0\0\0\x05\x29\0\0\0\0\0\0"[..];
    proptest!(ProptestConfig::with_cases(300), |(bytes in vec(prop_oneof![any::<u8>(), Just(b'A'), Just(b'F'), Just(0u8), 0x80..0xa4u8], 0..400))| {
        let bytes = [header, &bytes].concat();
        let (records, ending) = read_all(Reader::new(&bytes).unwrap());
        prop_assert_eq!(stream_all(&bytes), (records, ending));
        if let Ok(rewritten) = mtrc::rewrite(&bytes) {
            prop_assert_eq!(rewritten, bytes.clone());
        }
        let mut text = Vec::new();
        mtrc::dump(&bytes, &mut text).unwrap();
        prop_assert!(text.is_ascii());
    });
}

/// `HEAPTAPE_BLESS=1` accepts what is printed now.
#[test]
fn dumps_stay_as_they_are() {
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/mpatrol");
    for name in ["edge/worked.mtrc", "edge/ver10404.mtrc", "edge/noend.mtrc", "edge/name33.mtrc", "usedebug.mtrc"] {
        let mut text = Vec::new();
        mtrc::dump(&fs::read(golden.join(name)).unwrap(), &mut text).unwrap();
        let expected = golden.join(format!("{name}.dump"));
        if std::env::var_os("HEAPTAPE_BLESS").is_some() {
            fs::write(&expected, &text).unwrap();
        }
        assert_eq!(String::from_utf8(text).unwrap(), fs::read_to_string(expected).unwrap(), "{name}");
    }
}

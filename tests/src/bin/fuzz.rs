//! Feeds mutated golden files to the readers: `fuzz SECONDS [SEED]` to each for its share of the
//! seconds, `fuzz READER COUNT [SEED]` that number of inputs to one of them. A panic aborts the
//! process; the note in the kept folder names the seed and the round, which make the same bytes
//! again.
#![forbid(unsafe_code)]

use heaptape_analyzer::SavedTable;
use heaptape_analyzer::symbols::{ObjectFile, Style, demangle, demangle_in};
use heaptape_analyzer::{convert, import, unpack};
use heaptape_compat::{mleak, mprof, mptrace};
use heaptape_formats::perf_map::{Line, UnnamedAddresses};
use heaptape_formats::tape::journal;
use heaptape_formats::{
    Ending, Format, dcpi, dhat, gmon, heap_text, heaptrack, leak_log, massif, mptl, mtrc, pprof, tape,
};
use heaptape_tests::test_env;
use nix::time::ClockId;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A sink that takes a limited number of bytes: a small file may ask for a long dump, but not for
/// ever.
struct Sink(u64);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len() as u64).ok_or(std::io::ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 33) as usize % limit.max(1)
    }
}

/// All files below the golden folder that are not too large to be tried often.
fn seeds(folder: &Path, found: &mut Vec<(PathBuf, Vec<u8>)>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            seeds(&path, found);
        } else if let Ok(bytes) = fs::read(&path)
            && bytes.len() <= 64 << 10
            && !bytes.is_empty()
        {
            found.push((path, bytes));
        }
    }
}

/// A few changes of the kinds that break parsers: cuts, flips, numbers at the edge, repeats,
/// splices.
fn mutate(random: &mut Random, bytes: &mut Vec<u8>, other: &[u8]) {
    const EDGES: [u64; 8] = [0, 1, 0x7f, 0x80, 0xffff_ffff, 0x7fff_ffff_ffff_ffff, 0x8000_0000_0000_0000, u64::MAX];
    for _ in 0..=random.below(6) {
        let at = random.below(bytes.len());
        match random.below(7) {
            0 => bytes.truncate(at),
            1 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
            2 if !bytes.is_empty() => bytes[at] = random.next() as u8,
            3 => {
                let edge = EDGES[random.below(EDGES.len())].to_le_bytes();
                let end = (at + [1, 2, 4, 8][random.below(4)]).min(bytes.len());
                bytes[at..end].iter_mut().zip(edge).for_each(|(slot, byte)| *slot = byte);
            }
            4 => {
                let end = (at + random.below(64)).min(bytes.len());
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
            5 => {
                let end = (at + random.below(64)).min(bytes.len());
                bytes.drain(at..end);
            }
            _ => {
                let from = random.below(other.len());
                let piece = other[from..(from + random.below(64)).min(other.len())].to_vec();
                bytes.splice(at..at, piece);
            }
        }
    }
}

/// A reader of bytes of any kind.
type Reader = fn(&[u8], &mut Sink);

/// Every reader, the folders below tests/golden with files that it reads, and how it is fed.
const READERS: [(&str, &[&str], Reader); 14] = [
    ("mtrc", &["mpatrol", "export"], |bytes, sink| {
        drop(mtrc::dump(bytes, sink));
        drop(mtrc::rewrite(bytes));
        if let Ok(walked) = mtrc::validate(bytes) {
            // What is kept of a stream must read without an error.
            let kept = &bytes[..walked.bytes as usize];
            assert!(mtrc::validate(kept).is_ok_and(|again| again.ending.is_ok() && again.bytes == walked.bytes));
        }
    }),
    ("mptl", &["mpatrol"], |bytes, sink| {
        drop(mptl::dump(bytes, sink));
        if let Ok((profile, _)) = mptl::Profile::read(bytes) {
            profile.write(&mut Vec::new());
        }
        if let Ok(walked) = mptl::validate(bytes) {
            let again = mptl::validate(&bytes[..bytes.len().min(walked.bytes as usize)]);
            assert!(again.is_ok_and(|again| again.ending.is_ok()));
            // Piece by piece and as a whole say the same of what is whole.
            let whole = mptl::Profile::read(bytes);
            match (walked.ending, &whole) {
                (Ok(Ending::Complete), Err(error)) => assert!(mptl::needs_whole_file(error), "{error}"),
                (ending, Ok((_, Ending::Complete))) => assert_eq!(ending, Ok(Ending::Complete)),
                (Ok(Ending::Complete), whole) => panic!("whole, and yet {whole:?}"),
                _ => {}
            }
        }
    }),
    ("gmon", &["gmon"], |bytes, sink| {
        if let Ok(file) = gmon::read(bytes, gmon::Hints::default()) {
            drop(gmon::dump(&file, sink));
            drop(gmon::write(&file));
            drop(gmon::Union::default().add(&file));
        }
    }),
    ("dcpi", &["dcpi"], |bytes, sink| {
        drop(dcpi::dump(bytes, None, sink));
        drop(dcpi::read(bytes).map(|profile| dcpi::write(&profile)));
    }),
    ("tape", &["tape"], |bytes, sink| {
        drop(tape::dump(bytes, sink));
        drop(heaptape_analyzer::read_tape(bytes));
        let mut stream = tape::Reader::new(bytes);
        while let Ok(tape::Step::Record(_, record)) = stream.as_mut().map(tape::Reader::step) {
            if let tape::Record::Symbols(symbols) = record {
                let mut table = SavedTable::default();
                table.add(&symbols);
                drop((table.find(0x1010), table.lines(0x1010)));
            }
        }
    }),
    ("journal", &[], |bytes, _| {
        // As they are, and with the checksum of the first entry made right.
        let mut sealed = bytes.to_vec();
        if let Some((head, payload)) = sealed.split_at_mut_checked(journal::HEAD) {
            head[4..8].copy_from_slice(&(payload.len() as u32).to_le_bytes());
            head[8..].copy_from_slice(&crc32fast::hash(payload).to_le_bytes());
        }
        for bytes in [bytes, &sealed] {
            let open: Vec<journal::Open> = journal::Open::read(bytes).into_iter().collect();
            if let Ok(Some(missing)) = journal::Missing::of(None, &open) {
                drop(heaptape_analyzer::read_tape(&missing.tape[..]));
            }
        }
    }),
    ("columns", &[], |bytes, sink| {
        // A file of columns, and its columns alone.
        let limit = 1 << 20;
        drop(tape::Codec::Columns.reader(bytes).and_then(|plain| std::io::copy(&mut plain.take(limit), sink)));
        drop(mtrc::restore(bytes, bytes.len(), &mut Vec::new()));
        if let Ok(mut items) = mtrc::Items::new(bytes) {
            while let Ok(Some(_)) = items.next() {}
        }
    }),
    ("object", &["gmon/exe", "dcpi/views"], |bytes, _| {
        let Ok(file) = ObjectFile::parse(bytes) else { return };
        drop((file.build_id(), file.binutils_symbols(), file.functions(&file.text_sections())));
        let Some(lines) = file.lines() else { return };
        let text = file.text();
        let bounds = lines.function_bounds(text.clone());
        for address in lines.within(text).iter().map(|start| start.address).chain(bounds).take(200) {
            drop((lines.at(address), lines.linker_name(address), lines.has_function(address)));
        }
    }),
    ("names", &["names"], |bytes, _| {
        for name in String::from_utf8_lossy(bytes).split(char::is_whitespace) {
            drop((demangle(name.as_bytes()), demangle_in(Style::Binutils, name)));
        }
    }),
    ("perf-map", &["perf-map"], |bytes, _| {
        let mut unnamed: UnnamedAddresses = (0..64).map(|step| 0x7f65_7802_2900 + step * 0x800).collect();
        for line in bytes.split(|byte| *byte == b'\n').rev().filter_map(Line::read) {
            unnamed.take(line.start, line.length);
        }
    }),
    ("import", &["import"], |bytes, sink| {
        let Some(format) = heaptape_formats::sniff::format(bytes).filter(|format| import::is_supported(*format)) else {
            return;
        };
        drop(import::from_bytes(format, bytes));
        drop(match format {
            Format::Pprof => pprof::dump(bytes, sink),
            Format::Heaptrack => heaptrack::dump(bytes, sink),
            Format::Dhat => dhat::dump(bytes, sink),
            Format::HeapText => heap_text::dump(bytes, sink),
            Format::LeakLog => leak_log::dump(bytes, sink),
            _ => massif::dump(bytes, sink),
        });
    }),
    ("unpack", &["mpatrol", "dcpi", "gmon"], |bytes, _| {
        let limit = unpack::Limit { floor: 1 << 20, ratio: 200 };
        drop(unpack::unpack("input".into(), bytes.to_vec(), limit));
    }),
    ("convert", &["mpatrol", "dcpi", "gmon"], |bytes, _| {
        let limit = unpack::Limit { floor: 1 << 20, ratio: 200 };
        let Ok(opened) = unpack::unpack("input".into(), bytes.to_vec(), limit) else { return };
        let Some(format) = opened.format else { return };
        for to in [Format::Mptl, Format::Gmon, Format::Dcpi] {
            drop(convert::convert(format, to, std::slice::from_ref(&opened), &convert::ConvertOptions::default()));
        }
    }),
    ("views", &["mpatrol"], |bytes, sink| match heaptape_formats::sniff::format(bytes) {
        Some(Format::Mptl) => {
            if let Ok((profile, _)) = mptl::Profile::read(bytes) {
                let options = mprof::Options { call_graph: true, stack_depth: 0, ..mprof::Options::default() };
                drop(mprof::view(&profile, &options, sink));
                drop(mprof::graph(&profile, &options, "input", sink));
            }
        }
        Some(Format::Mtrc) => {
            let Ok(mut stream) = mtrc::Stream::new(bytes) else { return };
            let options = mptrace::Options { verbose: true, source: true, address_bytes: 8 };
            let mut complaints = Sink(64 << 20);
            let Ok(mut view) = mptrace::View::new(options, sink, &mut complaints) else { return };
            while let Ok(Some(record)) = stream.next() {
                if view.record(&record).is_err() {
                    return;
                }
            }
            drop(view.finish());
        }
        _ => drop(mleak::view(bytes, &mleak::Options::default(), sink)),
    }),
];

const FORMATS: [(Format, &str); 11] = [
    (Format::Mtrc, "mtrc"),
    (Format::Mptl, "mptl"),
    (Format::Gmon, "gmon"),
    (Format::Dcpi, "dcpi"),
    (Format::Tape, "tape"),
    (Format::Pprof, "import"),
    (Format::Heaptrack, "import"),
    (Format::Dhat, "import"),
    (Format::Massif, "import"),
    (Format::HeapText, "import"),
    (Format::LeakLog, "import"),
];

/// Seconds that all readers together are fed when nothing else is said.
const USUAL_SECONDS: u64 = 60;
/// Inputs to one reader when nothing else is said.
const USUAL_ROUNDS: u64 = 300_000;
const USUAL_SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// When a reader has had enough.
#[derive(Clone, Copy)]
enum Until {
    Rounds(u64),
    Seconds(f64),
}

/// Returns the CPU time of this process: other programs make no reader slow.
fn cpu_time() -> Duration {
    ClockId::CLOCK_PROCESS_CPUTIME_ID.now().expect("the clock of the process").into()
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, usual: u64| {
        arguments.get(at).map_or(usual, |word| word.parse().expect("a number or a reader's name"))
    };
    match arguments.first().and_then(|word| READERS.iter().find(|reader| reader.0 == word)) {
        Some(reader) => feed(reader, Until::Rounds(number(1, USUAL_ROUNDS)), number(2, USUAL_SEED)),
        None => {
            let each = number(0, USUAL_SECONDS) as f64 / READERS.len() as f64;
            READERS.iter().for_each(|reader| feed(reader, Until::Seconds(each), number(1, USUAL_SEED)));
        }
    }
}

/// The files that a reader's inputs are made from: those of its formats, or all when it takes any.
fn seeds_of(name: &str, folders: &[&str]) -> Vec<(PathBuf, Vec<u8>)> {
    let golden = test_env::root().join("tests/golden");
    let mut files = Vec::new();
    folders.iter().for_each(|folder| seeds(&golden.join(folder), &mut files));
    let formats: Vec<Format> = FORMATS.iter().filter(|format| format.1 == name).map(|format| format.0).collect();
    if !formats.is_empty() {
        files.retain(|(_, bytes)| {
            heaptape_formats::sniff::format(bytes).is_some_and(|format| formats.contains(&format))
        });
    }
    if name == "tape" {
        // Converted in code: the format is our own, and tests make its recordings.
        files.push((PathBuf::from("made.tape"), made_tape()));
    }
    if name == "columns" {
        files.push((PathBuf::from("made.columns"), made_columns()));
    }
    if name == "names" {
        // Those of the table, a few in each file.
        let table = fs::read(golden.join("names/cpp.txt.gz")).expect("the table of names");
        let table = unpack::unpack("names".into(), table, unpack::Limit::DEFAULT).expect("text").bytes;
        let lines: Vec<&[u8]> =
            table.split(|byte| *byte == b'\n').filter_map(|line| line.split(|byte| *byte == b'\t').next()).collect();
        files = lines.chunks(4).map(|lines| (PathBuf::from("cpp.txt.gz"), lines.join(&b'\n'))).collect();
    }
    if name == "journal" {
        files.push((PathBuf::from("made.journal"), made_journal()));
    }
    files.sort();
    assert!(!files.is_empty(), "there are no golden files");
    files
}

/// Feeds one reader. Errors are what most of these bytes deserve; only a panic or a hang is a
/// failure.
fn feed((name, folders, reader): &(&str, &[&str], Reader), until: Until, seed: u64) {
    let files = seeds_of(name, folders);
    let note = test_env::kept().join(format!("fuzz-last-round-{name}"));
    let (start, mut rounds, mut slowest) = (Instant::now(), 0u64, Duration::ZERO);
    let goes_on = |rounds: u64| match until {
        Until::Rounds(most) => rounds < most,
        Until::Seconds(most) => start.elapsed().as_secs_f64() < most,
    };
    while goes_on(rounds) {
        let mut random = Random(seed.wrapping_add(rounds.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1);
        random.next();
        let (path, seed_bytes) = &files[random.below(files.len())];
        let other = &files[random.below(files.len())].1;
        let mut bytes = seed_bytes.clone();
        mutate(&mut random, &mut bytes, other);
        if *name == "unpack" {
            bytes = packed(&mut random, bytes);
        }
        if rounds.is_multiple_of(64) {
            fs::write(&note, format!("{name} seed {seed} round {rounds} and the 63 after it\n")).ok();
        }
        let one = cpu_time();
        let mut sink = Sink(64 << 20);
        reader(&bytes, &mut sink);
        let took = cpu_time() - one;
        assert!(took < Duration::from_secs(2), "round {rounds} of seed {seed} took {took:?}: {}", path.display());
        slowest = slowest.max(took);
        rounds += 1;
    }
    let (elapsed, count) = (start.elapsed().as_secs_f64(), files.len());
    let rate = rounds as f64 / elapsed;
    println!(
        "fuzz {name}: {rounds} rounds in {elapsed:.0} s ({rate:.0} a second) over {count} golden files, slowest {slowest:?}, seed {seed}"
    );
}

/// The same bytes packed, and the packing damaged.
fn packed(random: &mut Random, bytes: Vec<u8>) -> Vec<u8> {
    let codec = [tape::Codec::Plain, tape::Codec::Zstd, tape::Codec::Lz4][random.below(3)];
    let mut packed = Vec::new();
    if codec.pack(&bytes, 1, &mut packed).is_err() {
        return bytes;
    }
    if random.below(2) == 0 {
        mutate(random, &mut packed, &bytes);
    }
    packed
}

/// A trace as a file of columns.
fn made_columns() -> Vec<u8> {
    let (mut writer, mut plain, mut out) = (mtrc::Writer::new(mtrc::Options::default()), Vec::new(), Vec::new());
    writer.header(&mut plain);
    for index in 1..200 {
        writer.alloc(
            &mut plain,
            mtrc::Block { index, address: 0x1000 * index, size: 8 * index },
            &mtrc::Location::thread(index % 3),
        );
        writer.free(&mut plain, index, &mtrc::Location::thread(1));
    }
    writer.end(&mut plain);
    tape::Codec::Columns.pack(&plain, 1, &mut out).expect("it is packed");
    out
}

/// A journal file with two entries.
fn made_journal() -> Vec<u8> {
    let mut out = Vec::new();
    let trace = mtrc::Columns::of(b"trace");
    for number in 0..2 {
        let mut records = Vec::new();
        tape::Writer::default().record(&tape::Record::Loss(tape::Loss::default()), &mut records);
        let mut entry = journal::Entry {
            chunk: tape::Chunk {
                number: 1,
                events: 2,
                plain_length: 5 * (1 + u64::from(number)),
                ..tape::Chunk::default()
            },
            number,
            is_whole: true,
            positions: vec![journal::Position::default()],
            records: tape::field::Text(records),
            accounts: vec![tape::Account::default()],
            ..journal::Entry::default()
        };
        let added = journal::parts(trace.each_ref().map(Vec::as_slice), [b"e", b"t", b"s", b"w", b"u", b"p"]);
        journal::write(&mut entry, added, &mut out);
    }
    out
}

/// A tape with a record of each kind, most fields at their defaults.
fn made_tape() -> Vec<u8> {
    let mut out = Vec::new();
    tape::Writer::file_header(&mut out);
    let mut writer = tape::Writer::default();
    let site = |number: u32| tape::Site { parent: number / 2, address: 0x1000 * u64::from(number), flags: 0 };
    let column = tape::Column {
        kind: tape::COLUMN_ENTRIES,
        codec: 0,
        plain_length: 4,
        stored: tape::field::Text(vec![1, 1, 20, 20]),
    };
    let records = [
        tape::Record::Process(tape::Process {
            pid: 7,
            exe: "/bin/program".into(),
            argv: vec!["program".into()],
            ..Default::default()
        }),
        tape::Record::Module(tape::Module {
            number: 1,
            start: 0x1000,
            end: 0x9000,
            path: "/bin/program".into(),
            ..Default::default()
        }),
        tape::Record::Sites(tape::Sites { first: 1, sites: (1..9).map(site).collect() }),
        tape::Record::Thread(tape::Thread { number: 1, tid: 7, name: "main".into(), ..Default::default() }),
        tape::Record::Chunk(tape::Chunk {
            number: 1,
            events: 4,
            allocations: 2,
            columns: vec![column],
            ..Default::default()
        }),
        tape::Record::Loss(tape::Loss { thread: 1, events: 3, ..Default::default() }),
        tape::Record::Clock(tape::Clock::default()),
        tape::Record::Accounts(tape::Accounts {
            accounts: vec![tape::Account { thread: 1, emitted: 7, ..Default::default() }],
        }),
        tape::Record::Summary(tape::Summary {
            sites: vec![tape::SiteSums { site: 1, ..Default::default() }],
            ..Default::default()
        }),
        tape::Record::History(tape::History {
            ticks: (1..9).collect(),
            sites: vec![tape::SiteHistory { site: 1, blocks: vec![1; 8], bytes: vec![7; 8] }],
            live_blocks: tape::field::Added(vec![2; 8]),
            live_bytes: tape::field::Added(vec![9; 8]),
        }),
        tape::Record::Code(tape::Code {
            ranges: vec![tape::CodeRange { start: 0x1000, length: 0x80, name: "JS:*f /x.js:1:2".into() }],
        }),
        tape::Record::Symbols(symbols()),
        tape::Record::Note(tape::Note { text: "a note".into(), ..Default::default() }),
        tape::Record::Inherited(tape::Inherited { parent: "6.program".into(), ..Default::default() }),
        tape::Record::Segment(tape::Segment { begins: tape::SEGMENT_CARRIED, carried: 1, ..Default::default() }),
        tape::Record::ModuleGone(tape::ModuleGone { number: 1 }),
        tape::Record::Residency(residency()),
        tape::Record::Division(division()),
        tape::Record::Mappings(mappings()),
        tape::Record::End(tape::End { reason: tape::END_EXITED, ..Default::default() }),
    ];
    for record in records {
        writer.record(&record, &mut out);
    }
    out
}

/// Returns a snapshot of pages with runs of each kind.
fn residency() -> tape::Residency {
    let mut runs = tape::PageRuns::default();
    for (number, kind) in
        [tape::PageKind::Anonymous, tape::PageKind::File, tape::PageKind::Zero].into_iter().enumerate()
    {
        let first = 16 + 4 * number as u64;
        runs.push(tape::PageRun { first, pages: 2, kind, is_huge: number == 1 });
    }
    let mapping = tape::Mapping { gap: 16 << 12, length: 64 << 12, kind: tape::MAPPING_FILE, name: 1 };
    let (names, mappings) = (vec!["/usr/bin/program".into()], vec![mapping]);
    let mut record = tape::Residency { method: tape::PAGES_SCAN, names, mappings, ..Default::default() };
    runs.pack_into(&mut record).unwrap_or_else(|error| panic!("runs: {error}"));
    record
}

/// Returns a division with a row of each kind.
fn division() -> tape::Division {
    tape::Division {
        allocator: tape::ALLOCATOR_GLIBC,
        blocks: 3,
        uses: Box::new(tape::DividedUses {
            bill: tape::Bill { live: 100, held: 4000, ..Default::default() },
            ..Default::default()
        }),
        heaps: vec![tape::DividedHeap { kind: tape::HEAP_MAIN, address: 16 << 12, live: 100, ..Default::default() }],
        sites: vec![tape::DividedSite { site: 1, pinned: 4000, blocks: 3, ..Default::default() }],
        never_blocks: vec![tape::DividedRange { gap: 20 << 12, length: 4096, bytes: 4096 }],
        ..Default::default()
    }
}

/// Returns calls that map memory, unmap some of it and move it.
fn mappings() -> tape::Mappings {
    let call = |kind, address, size| tape::MappingEvent { kind, address, size, ..Default::default() };
    let events = vec![
        call(tape::MAPPING_EVENT_MAP, 0x10000, 0x8000),
        call(tape::MAPPING_EVENT_UNMAP, 0x12000, 0x1000),
        call(tape::MAPPING_EVENT_MOVE, 0x10000, 0x2000),
        call(tape::MAPPING_EVENT_MOVED, 0x40000, 0x4000),
        call(tape::MAPPING_EVENT_FAILED, 0, 0),
    ];
    tape::Mappings { first_name: 1, names: vec!["/usr/bin/program".into()], events, ..Default::default() }
}

/// Names of a module, not packed, so that changes of their bytes reach the reader of the table.
fn symbols() -> tape::Symbols {
    use tape::field::Field;
    let goes = |from, address| tape::SymbolTargets { from, targets: vec![tape::SymbolTarget { symbol: 0, address }] };
    let table = tape::SymbolTable {
        texts: vec!["main".into(), "/src/main.c".into()],
        functions: vec![tape::SymbolFunction { start: 0x1000, length: 64, symbol: 1 }],
        addresses: vec![tape::SymbolAddress {
            address: 0x1010,
            frames: vec![tape::SymbolFrame { symbol: 1, file: 2, line: 7 }],
        }],
        calls: tape::field::Added(vec![goes(0x1010, 0x1000)]),
        jumps: tape::field::Added(vec![goes(0x1000, 0)]),
        exports: tape::field::Added(vec![tape::SymbolTarget { symbol: 1, address: 0x1000 }]),
    };
    let mut plain = Vec::new();
    table.put(&mut plain);
    tape::Symbols {
        path: "/bin/program".into(),
        build_id: "id".into(),
        file_bytes: 9000,
        lines: tape::LINES_READ,
        codec: tape::Codec::Plain as u8,
        plain_length: plain.len() as u32,
        stored: tape::field::Text(plain),
        ..tape::Symbols::default()
    }
}

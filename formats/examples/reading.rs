//! Speed of the readers, each against a plain read of the same file in the same round:
//! `scripts/bench reading`.
//!
//! Files are made by the project's own writers: a trace of 10 M events as the recorder writes it, a
//! profile of a million call sites, a gmon.out with histograms and arcs, a DCPI profile of a large
//! image. The best of five rounds: other programs only ever add.

use heaptape_formats::dcpi::{self, Builder as DcpiBuilder, HeaderFields};
use heaptape_formats::gmon::{self, Arc, Gmon, Hints, Histograms, Record as GmonRecord, Unit};
use heaptape_formats::mptl::{Bins, Builder as MptlBuilder, Profile, layout};
use heaptape_formats::mtrc::{Block, Location, Options, Reader, Record, Writer};
use heaptape_formats::{Abi, Result};
use std::fs;
use std::hint::black_box;
use std::io::Read;
use std::path::Path;
use std::time::Instant;

const ROUNDS: usize = 5;
const EVENTS: u64 = 10_000_000;
const CHUNK: u64 = 16_384;
const SITES: u64 = 1_000_000;
const TEXT: u64 = 0x40_0000;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 20
    }
}

fn trace(random: &mut Random) -> Vec<u8> {
    let mut writer = Writer::new(Options::default());
    let mut out = Vec::new();
    writer.header(&mut out);
    for event in 0..EVENTS {
        if event % CHUNK == 0 {
            writer.new_chunk();
        }
        let location = Location::thread(1);
        let (address, size) = (0x5555_0000_0000 + (random.next() & 0xff_ffff) * 16, random.next() & 0xfff);
        match event % 8 {
            0 => writer.resize(&mut out, Block { index: event, address, size }, &location),
            1 | 2 | 4 | 6 => writer.alloc(&mut out, Block { index: event, address, size }, &location),
            _ => writer.free(&mut out, event / 2, &location),
        }
    }
    out
}

fn read_trace(bytes: &[u8]) -> Result<u64> {
    let mut reader = Reader::new(bytes)?;
    let mut sum = 0;
    while let Some(record) = reader.next()? {
        sum ^= match record {
            Record::Alloc { index, address, size, location } => index ^ address ^ size ^ location.thread,
            Record::Resize { index, address, size, .. } => index ^ address ^ size,
            Record::Free { index, .. } => index,
            Record::Heap { .. } | Record::Internal { .. } => 0,
        };
    }
    Ok(sum)
}

fn profile(random: &mut Random) -> Vec<u8> {
    let mut builder = MptlBuilder::new(layout::BOUNDS, Bins::new(layout::BINS));
    let symbols: Vec<_> = (0..20_000).map(|n: u64| builder.symbol(TEXT + n * 64, format!("f{n}").as_bytes())).collect();
    for site in 0..SITES {
        let symbol = symbols[random.next() as usize % symbols.len()];
        let index = builder.site(random.next() % (site + 1), TEXT + (random.next() & 0xff_ffff), Some(symbol));
        builder.alloc(index, random.next() & 0xfff);
    }
    let mut out = Vec::new();
    builder.build().write(&mut out);
    out
}

fn gprof(random: &mut Random) -> Result<Vec<u8>> {
    let mut gmon = Gmon::new(Abi::LE64);
    let bins = 8 << 20;
    for _ in 0..2 {
        let counts = (0..bins).map(|_| random.next() as u16).collect();
        gmon.records.push(Histograms::one(TEXT, TEXT + 4 * bins, Unit::counted("bytes", b'b'), counts).record());
    }
    let arcs = (0..SITES).map(|_| Arc { from: TEXT + random.next() % bins, to: TEXT + random.next() % bins, count: 7 });
    gmon.records.push(GmonRecord::Arcs(arcs.collect()));
    gmon::write(&gmon)
}

fn dcpi(random: &mut Random) -> Result<Vec<u8>> {
    let head = HeaderFields {
        image: "00112233",
        event: "alloc-bytes",
        platform: "host",
        tsize: 1 << 28,
        ..HeaderFields::default()
    };
    let mut builder = DcpiBuilder::new(&head)?;
    let mut address = 0;
    for _ in 0..4 * SITES {
        address += 1 + random.next() % 8;
        builder.add(address, 1 + (random.next() & 0xff));
    }
    Ok(builder.finish()?.bytes)
}

/// Reads the file plainly, then with its reader; prints the best of the rounds.
fn measure(name: &str, path: &Path, events: Option<u64>, mut read: impl FnMut(&[u8])) {
    let (mut plain, mut ours) = (f64::MAX, f64::MAX);
    let mut bytes = Vec::new();
    for _ in 0..ROUNDS {
        bytes.clear();
        let start = Instant::now();
        fs::File::open(path).and_then(|mut file| file.read_to_end(&mut bytes)).expect("the file was just written");
        plain = plain.min(start.elapsed().as_secs_f64());
        let start = Instant::now();
        read(&bytes);
        ours = ours.min(start.elapsed().as_secs_f64());
    }
    let megabytes = bytes.len() as f64 / 1e6;
    let events = events.map_or(String::from("-"), |events| format!("{:.0}", events as f64 / ours / 1e6));
    let (rate, plain_rate, times) = (megabytes / ours, megabytes / plain, ours / plain);
    println!("| {name} | {megabytes:.0} | {events} | {rate:.0} | {plain_rate:.0} | {times:.2} |");
}

fn main() -> Result<()> {
    let random = &mut Random(1);
    let folder = std::env::temp_dir().join(format!("heaptape-reading-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a temporary folder");
    let write = |name: &str, bytes: Vec<u8>| {
        let path = folder.join(name);
        fs::write(&path, bytes).expect("room for the file");
        path
    };
    println!("| format | MB | M events/s | MB/s | plain read, MB/s | times a plain read |\n|---|---|---|---|---|---|");
    let path = write("trace.mtrc", trace(random));
    measure("MTRC", &path, Some(EVENTS), |bytes| {
        black_box(read_trace(bytes).expect("our own file"));
    });
    let path = write("profile.mptl", profile(random));
    measure("MPTL", &path, None, |bytes| drop(black_box(Profile::read(bytes).expect("our own file"))));
    let path = write("gmon.out", gprof(random)?);
    measure("gmon.out", &path, None, |bytes| {
        drop(black_box(gmon::read(bytes, Hints::default()).expect("our own file")))
    });
    let path = write("dcpi", dcpi(random)?);
    measure("DCPI", &path, None, |bytes| {
        let profile = dcpi::read(bytes).expect("our own file");
        black_box(profile.samples().fold(0, |sum: u64, (address, count)| sum ^ address ^ u64::from(count)));
    });
    fs::remove_dir_all(&folder).expect("the folder is ours");
    Ok(())
}

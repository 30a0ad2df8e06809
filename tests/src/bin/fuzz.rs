//! Feeds mutated golden files to every reader for some seconds: `fuzz SECONDS [SEED]`. A panic aborts the process; the line before it names
//! the seed and the round, which make the same bytes again.
#![forbid(unsafe_code)]

use heaptape_formats::{Format, dcpi, mptl, mtrc, tape};
use heaptape_tests::workshop;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A sink that takes no more than so many bytes: a small file may ask for a long dump, but not for ever.
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

/// A few changes of the kinds that break parsers: cuts, flips, numbers at the edge, repeats, splices.
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
                bytes[at..end].iter_mut().zip(edge).for_each(|(place, byte)| *place = byte);
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

/// By the reader of whatever the bytes look like.
fn read(bytes: &[u8], sink: &mut Sink) {
    match heaptape_formats::sniff::format(bytes) {
        Some(Format::Mtrc) => drop(mtrc::dump(bytes, sink)),
        Some(Format::Mptl) => drop(mptl::dump(bytes, sink)),
        Some(Format::Dcpi) => drop(dcpi::dump(bytes, None, sink)),
        Some(Format::Tape) => drop(tape::dump(bytes, sink)),
        _ => {}
    }
}

fn main() {
    let mut words = std::env::args().skip(1).map(|word| word.parse::<u64>().expect("a number"));
    let seconds = words.next().unwrap_or(60);
    let seed = words.next().unwrap_or(0x9e37_79b9_7f4a_7c15);
    let mut files = Vec::new();
    seeds(&workshop::root().join("tests/golden"), &mut files);
    files.sort();
    assert!(!files.is_empty(), "there are no golden files");
    let (start, mut rounds, mut slowest) = (Instant::now(), 0u64, Duration::ZERO);
    let note = workshop::kept().join("fuzz-last-round");
    while start.elapsed() < Duration::from_secs(seconds) {
        let mut random = Random(seed.wrapping_add(rounds.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1);
        random.next();
        let (path, seed_bytes) = &files[random.below(files.len())];
        let other = &files[random.below(files.len())].1;
        let mut bytes = seed_bytes.clone();
        mutate(&mut random, &mut bytes, other);
        if rounds % 64 == 0 {
            fs::write(&note, format!("seed {seed} round {rounds} and the 63 behind it\n")).ok();
        }
        let one = Instant::now();
        let mut sink = Sink(64 << 20);
        // Errors are what most of these bytes deserve; only a panic or a hang is a failure.
        read(&bytes, &mut sink);
        let took = one.elapsed();
        assert!(took < Duration::from_secs(2), "round {rounds} of seed {seed} took {took:?}: {}", path.display());
        slowest = slowest.max(took);
        rounds += 1;
    }
    println!("fuzz: {rounds} rounds over {} golden files, slowest {slowest:?}, seed {seed}", files.len());
}

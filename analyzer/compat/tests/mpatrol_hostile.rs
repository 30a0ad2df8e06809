//! The views of mpatrol's tools do not panic for any numbers that the readers accept.

use heaptape_compat::{mleak, mprof, mptrace};
use heaptape_formats::mptl::Profile;
use heaptape_formats::mtrc::{Location, Record};
use std::fs;
use std::path::Path;

fn golden(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/mpatrol").join(name)).unwrap()
}

/// A random number generator with a fixed seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 31
    }
}

fn show(profile: &Profile) {
    for bits in 0..16u8 {
        let options = mprof::Options {
            addresses: bits & 1 != 0,
            counts: bits & 2 != 0,
            leaks: bits & 4 != 0,
            stack_depth: usize::from(bits & 3),
            call_graph: bits & 8 != 0,
        };
        let mut out = Vec::new();
        mprof::view(profile, &options, &mut out).unwrap();
        mprof::graph(profile, &options, "a */ b", &mut out).unwrap();
        assert!(!out.is_empty());
    }
}

#[test]
fn profiles_with_a_flipped_byte_are_shown_or_rejected() {
    let bytes = golden("edge/tiny.mpt");
    let mut shown = 0;
    for at in 0..bytes.len() {
        for flip in [1, 0x80, 0xff] {
            let mut bytes = bytes.clone();
            bytes[at] ^= flip;
            if let Ok((profile, _)) = Profile::read(&bytes) {
                show(&profile);
                shown += 1;
            }
        }
    }
    assert!(shown > 500);
}

#[test]
fn profiles_truncated_anywhere_are_shown() {
    let bytes = golden("edge/tiny.mpt");
    (20..bytes.len()).for_each(|end| show(&Profile::read(&bytes[..end]).unwrap().0));
}

#[test]
fn totals_of_random_events_are_consistent() {
    let mut random = Random(1);
    let (mut out, mut complaints) = (Vec::new(), Vec::new());
    let options = mptrace::Options { verbose: true, source: true, address_bytes: 8 };
    let mut view = mptrace::View::new(options, &mut out, &mut complaints).unwrap();
    let mut live = std::collections::HashMap::new();
    let mut lost = (0u64, 0u128);
    for _ in 0..20_000 {
        let (index, address) = (random.next() % 300, random.next() << 31 | random.next());
        let size = if random.next().is_multiple_of(9) { u64::MAX } else { random.next() % 5000 };
        let location = Location { function: Some(b"\xff\"f"), ..Location::thread(random.next() % 3) };
        match random.next() % 8 {
            0..=2 => {
                if let Some(size) = live.insert(index, size) {
                    lost = (lost.0 + 1, lost.1 + u128::from(size));
                }
                view.record(&Record::Alloc { index, address, size, location }).unwrap();
            }
            3 => {
                live.entry(index).and_modify(|old| *old = size);
                view.record(&Record::Resize { index, address, size, location }).unwrap();
            }
            4..=5 => {
                live.remove(&index);
                view.record(&Record::Free { index, location }).unwrap();
            }
            6 => view.record(&Record::Heap { address, size }).unwrap(),
            _ => view.record(&Record::Internal { address, size }).unwrap(),
        }
    }
    view.finish().unwrap();
    // A block whose index was reused is never freed.
    let bytes: u128 = live.values().map(|&size| u128::from(size)).sum();
    let unfreed = format!("\nunfreed:   {} ({} bytes)\n", live.len() as u64 + lost.0, bytes + lost.1);
    assert!(String::from_utf8_lossy(&out).contains(&unfreed));
    assert!(complaints.len() > 1000);
}

#[test]
fn log_of_random_lines_is_read() {
    let log = golden("basic.log");
    let mut random = Random(2);
    for _ in 0..300 {
        let mut log = log.clone();
        for _ in 0..20 {
            let at = random.next() as usize % log.len();
            log[at] = random.next() as u8;
        }
        let mut out = Vec::new();
        mleak::view(&log[..], &mleak::Options::default(), &mut out).unwrap();
        assert!(out.starts_with(b"unfreed allocations: "));
    }
}

//! Counts of events that a target made itself (`programs/own.h`), and the same counts from the
//! bytes of a recording.

use crate::Recording;
use heaptape_formats::mtrc::{Record, Stream};
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

/// Counts of the events of one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Thread {
    /// Number of allocations.
    pub allocs: u64,
    /// Number of reallocations.
    pub resizes: u64,
    /// Number of frees.
    pub frees: u64,
    /// Sum of the requested bytes.
    pub bytes: u64,
    /// Sum of [`mix`] over the events.
    pub hash: u64,
}

impl Thread {
    fn add(&mut self, op: u64, address: u64, size: u64) {
        match op {
            1 => self.allocs += 1,
            2 => self.resizes += 1,
            _ => self.frees += 1,
        }
        self.bytes += size;
        self.hash = self.hash.wrapping_add(mix(op, address, size));
    }
}

/// Returns the hash of an event, as `own_mix` of `own.h` does. Operations are 1 for an allocation,
/// 2 for a reallocation (with its new address and size), 3 for a free.
pub const fn mix(op: u64, address: u64, size: u64) -> u64 {
    let x = (address ^ op << 60).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(size);
    let x = (x ^ x >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ x >> 32
}

/// Returns whether the target has begun to count.
pub fn has_begun(path: &Path) -> bool {
    let mut bytes = [0; 16];
    File::open(path).and_then(|mut file| file.read_exact(&mut bytes)).is_ok() && bytes[0] != 0 && bytes[8] != 0
}

/// Reads `struct own_file`: the threads in the order of their first event.
pub fn read(path: &Path) -> Vec<Thread> {
    const MAGIC: u64 = u64::from_le_bytes(*b"OWN1\0\0\0\0");
    let mut file = BufReader::new(File::open(path).expect("the target's own figures"));
    let mut word = || {
        let mut bytes = [0; 8];
        file.read_exact(&mut bytes).expect("a whole file");
        u64::from_le_bytes(bytes)
    };
    assert_eq!(word(), MAGIC, "{}: not a file of own figures", path.display());
    let used = word();
    (0..used)
        .map(|_| {
            let _tid = word();
            Thread { allocs: word(), resizes: word(), frees: word(), bytes: word(), hash: word() }
        })
        .collect()
}

/// Returns the sum of all threads.
pub fn sum(threads: &[Thread]) -> Thread {
    threads.iter().fold(Thread::default(), |sum, thread| Thread {
        allocs: sum.allocs + thread.allocs,
        resizes: sum.resizes + thread.resizes,
        frees: sum.frees + thread.frees,
        bytes: sum.bytes + thread.bytes,
        hash: sum.hash.wrapping_add(thread.hash),
    })
}

/// Opens `trace.mtrc` of a recording of one process.
#[track_caller]
fn trace(recording: &Recording) -> Stream<Box<dyn Read>> {
    let traces = recording.files("trace.mtrc");
    assert_eq!(traces.len(), 1, "one process was expected: {traces:?}");
    let file = File::open(&traces[0]).expect("the trace");
    let bytes: Box<dyn Read> = match traces[0].extension().and_then(|text| text.to_str()) {
        Some("zst") => Box::new(zstd::Decoder::new(file).expect("a zstd stream")),
        _ => Box::new(file),
    };
    Stream::new(bytes).expect("an MTRC header")
}

/// Returns the counts of each thread from `trace.mtrc`, for a recording of one process. Asserts
/// that no live block is allocated again, and that no block is freed twice.
#[track_caller]
pub fn recorded(recording: &Recording) -> Vec<Thread> {
    let mut stream = trace(recording);
    let mut threads: HashMap<u64, Thread> = HashMap::new();
    let mut live: HashMap<u64, u64> = HashMap::new();
    let mut owners: HashMap<u64, u64> = HashMap::new();
    while let Some(record) = stream.next().expect("a record") {
        match record {
            Record::Alloc { index, address, size, location } => {
                threads.entry(location.thread).or_default().add(1, address, size);
                live.insert(index, address);
                let before = owners.insert(address, index);
                assert!(before.is_none(), "{address:#x} allocated twice: allocations {before:?} and {index}");
            }
            Record::Resize { index, address, size, location } => {
                threads.entry(location.thread).or_default().add(2, address, size);
                let old =
                    live.insert(index, address).unwrap_or_else(|| panic!("resize of the unknown allocation {index}"));
                owners.remove(&old);
                let before = owners.insert(address, index);
                assert!(before.is_none(), "{address:#x} allocated twice: allocations {before:?} and {index}");
            }
            Record::Free { index, location } => {
                let old = live.remove(&index).unwrap_or_else(|| panic!("free of the unknown allocation {index}"));
                owners.remove(&old);
                threads.entry(location.thread).or_default().add(3, old, 0);
            }
            Record::Heap { .. } | Record::Internal { .. } => {}
        }
    }
    threads.into_values().collect()
}

/// What [`hands_round`] has found.
#[derive(Clone, Copy, Debug, Default)]
pub struct HandedRound {
    /// Number of allocations and frees of the passed addresses.
    pub events: u64,
    /// Number of these that are recorded before or after the next one of their kind. Where an
    /// address is passed on twice within the error of the timestamps, that order is possible, too.
    pub exchanged: u64,
}

/// Asserts that each allocation and each free of `programs/hands_round.c` is in the recording, that
/// allocations and frees of an address alternate, and that each allocation is by the thread that
/// made it. Counts those that are in another order than the real one.
#[track_caller]
pub fn hands_round(recording: &Recording, threads: u64, rounds: u64) -> HandedRound {
    const FIRST_SIZE: u64 = 64;
    const STEP: u64 = 4096;
    const NUMBERS: u64 = 1 << 19;
    let mut stream = trace(recording);
    let (mut pool, mut next) = (None, HashMap::<u64, u64>::new());
    // The address and step of each live allocation, and the number of each thread in the recording.
    let (mut live, mut numbers) = (HashMap::<u64, (u64, u64)>::new(), HashMap::<u64, u64>::new());
    let mut exchanged = 0;
    while let Some(record) = stream.next().expect("a record") {
        match record {
            Record::Alloc { index, address, size, location } if address % STEP == 0 && size >= FIRST_SIZE => {
                // The first allocation of the program is that of address 0, by the first thread.
                let pool = *pool.get_or_insert(address - address % (8 * STEP));
                let address = (address - pool) / STEP;
                let step = next.entry(address).or_default();
                let (found, wanted) = (size - FIRST_SIZE, *step / 2 % NUMBERS);
                // The next one and the one before, also where the numbers begin again.
                let ahead = found + 1 == wanted || (found == NUMBERS - 1 && wanted == 0);
                let behind = wanted + 1 == found || (wanted == NUMBERS - 1 && found == 0);
                assert!(found == wanted || ahead || behind, "allocation {found} of address {address}, not {wanted}");
                exchanged += u64::from(found != wanted);
                let real_step = *step + 2 * u64::from(behind) - 2 * u64::from(ahead);
                let known = *numbers.entry((real_step + address) % threads).or_insert(location.thread);
                assert_eq!(known, location.thread, "allocation {found} of address {address}, by {numbers:?}");
                live.insert(index, (address, *step));
                *step += 1;
            }
            Record::Free { index, location } => {
                let Some((address, step)) = live.remove(&index) else { continue };
                let next = next.entry(address).or_default();
                assert_eq!(*next, step + 1, "a free of address {address} is that of another allocation");
                // A free has no number. In the first steps its thread may not be known yet.
                let known = *numbers.entry((*next + address) % threads).or_insert(location.thread);
                exchanged += u64::from(known != location.thread);
                *next += 1;
            }
            _ => {}
        }
    }
    assert!(live.is_empty() && next.values().all(|steps| *steps == 2 * rounds), "{next:?} of {rounds} rounds");
    HandedRound { events: next.len() as u64 * 2 * rounds, exchanged }
}

/// Asserts that every thread with counts is in the recording with the same events. Threads without
/// counts (a main thread that only starts others) may be in it, too.
#[track_caller]
pub fn equal(own: &[Thread], recorded: &[Thread]) {
    let mut left = recorded.to_vec();
    for thread in own.iter().filter(|thread| thread.allocs + thread.frees != 0) {
        match left.iter().position(|found| found == thread) {
            Some(index) => drop(left.swap_remove(index)),
            None => panic!(
                "a thread's own figures are not in the recording\n======== own: {own:#?}\n======== recorded: {recorded:#?}"
            ),
        }
    }
}

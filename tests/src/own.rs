//! Counts of events that a target made itself (`programs/own.h`), and the same counts from the
//! bytes of a recording.

use crate::Recording;
use heaptape_formats::mtrc::{Record, Stream};
use heaptape_formats::tape::Codec;
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
    let codecs = [Codec::Columns, Codec::Zstd, Codec::Plain];
    let codec = codecs.into_iter().find(|codec| traces[0].to_string_lossy().ends_with(codec.suffix()));
    let file = File::open(&traces[0]).expect("the trace");
    Stream::new(codec.unwrap_or_default().reader(file).expect("a reader")).expect("an MTRC header")
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

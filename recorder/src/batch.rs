//! What travels from the drain to the digest: records in their final order, as they lay in the
//! rings, cut into runs of one thread.
//!
//! Code that copies records steps over them with [`Stamps`]; drain and digest use the same steps,
//! so both see the same stamps.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use wire::{Op, Record};

/// Records of one thread that follow each other in the order of all threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Thread number in the recording.
    pub thread: u32,
    /// How many records.
    pub records: u32,
    /// The thread's running stamp before the first.
    pub stamp: u64,
}

/// Ordered records of one session.
#[derive(Debug, Default)]
pub struct Batch {
    /// The records of all runs.
    pub records: Vec<Record>,
    /// The runs.
    pub runs: Vec<Run>,
    /// No event of the batch happened after this tick; stamps that say otherwise lie.
    pub limit: u64,
    /// Whether several threads are there: a free may then be seen before its allocation when clocks
    /// differ.
    pub many_threads: bool,
}

impl Batch {
    /// Forgets the records, keeps memory for as many as batches usually have.
    pub fn clear(&mut self) {
        const USUAL: usize = 1 << 15;
        self.records.clear();
        self.records.shrink_to(USUAL);
        self.runs.clear();
        self.runs.shrink_to(USUAL);
    }
}

/// Counts the records that were sent to the digests and not taken yet, so that many threads do not
/// make the recorder large.
#[derive(Clone, Debug)]
pub struct InFlight {
    records: Arc<AtomicUsize>,
    most: usize,
}

impl InFlight {
    /// Counts with a bound: 16 MiB of records, or a sixteenth of a limit on the recorder's own
    /// memory.
    pub fn new(memory_limit: Option<u64>) -> InFlight {
        const MOST: u64 = 16 << 20;
        const LEAST: u64 = 1 << 20;
        let bytes = memory_limit.map_or(MOST, |limit| (limit / 16).clamp(LEAST, MOST));
        InFlight { records: Arc::default(), most: bytes as usize / size_of::<Record>() }
    }

    /// Whether no more should be sent for now.
    pub fn is_full(&self) -> bool {
        self.records.load(Relaxed) >= self.most
    }

    /// Counts a batch of records that is sent.
    pub fn sent(&self, records: usize) {
        self.records.fetch_add(records, Relaxed);
    }

    /// Counts a batch of records that was received.
    pub fn taken(&self, records: usize) {
        self.records.fetch_sub(records, Relaxed);
    }
}

/// What one step over a record found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It belongs to the record behind it.
    Prefix,
    /// It is whole with the prefixes before it.
    Whole,
    /// No such record: the ring is broken.
    Unknown,
}

/// The running stamp of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamps {
    /// As the thread counts it.
    pub stamp: u64,
}

const PREFIX: u8 = 1;
const EVENT: u8 = 2;
const MARK: u8 = 3;

/// What each op number is: one load decides.
const KINDS: [u8; 64] = {
    let mut kinds = [0; 64];
    let mut number = 0;
    while number < 64 {
        let op = Op(number as u8);
        kinds[number] = if op.is_event() || op.0 == Op::RESIZE_BEGIN.0 || op.0 == Op::RESIZE_FAILED.0 {
            EVENT
        } else if op.0 == Op::TIMESTAMP.0 || op.0 == Op::EXTENDED.0 {
            PREFIX
        } else if op.0 == Op::DROPPED.0 || op.0 == Op::SAMPLE_INTERVAL.0 {
            MARK
        } else {
            0
        };
        number += 1;
    }
    kinds
};

impl Stamps {
    /// Steps over one record.
    #[inline(always)]
    pub fn step(&mut self, record: Record) -> Step {
        match KINDS[(record.head & 63) as usize] {
            EVENT => {
                self.stamp = self.stamp.wrapping_add(record.delta());
                Step::Whole
            }
            PREFIX => {
                if record.op() == Op::TIMESTAMP {
                    self.stamp = record.body;
                }
                Step::Prefix
            }
            MARK => Step::Whole,
            _ => Step::Unknown,
        }
    }
}

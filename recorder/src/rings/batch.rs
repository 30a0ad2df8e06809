//! The data that the drain sends to the digest: records in their final order, as they were in the
//! rings, in runs of one thread.
//!
//! Code that copies records steps over them with [`RunningTimestamp`]. Drain and digest use the
//! same steps, so both see the same timestamps.

use crate::heap::thread_number::ThreadNumber;
use formats::tape::journal::Position;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use wire::{Op, Record};

/// Consecutive records of one thread, in the order of all threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Number of the thread in the recording.
    pub thread: ThreadNumber,
    pub records: u32,
    /// The thread's running timestamp before the first record.
    pub timestamp: u64,
}

/// Ordered records of one session.
#[derive(Debug, Default)]
pub struct Batch {
    /// The records of all runs, in order.
    pub records: Vec<Record>,
    pub runs: Vec<Run>,
    /// No event of the batch happened before this tick: its rings were read until then, and were
    /// empty. Most events of a program with one thread have no timestamp of their own, and the last
    /// one may be old.
    pub floor: u64,
    /// No event of the batch happened after this tick. Later timestamps are wrong.
    pub limit: u64,
    /// Whether there are several threads. A free may then be seen before its allocation, when
    /// clocks differ.
    pub many_threads: bool,
    /// How far the rings are read with this batch; their space is released once its events are
    /// safe.
    pub positions: Vec<Position>,
}

impl Batch {
    /// Removes the records. Keeps memory for as many as batches usually have.
    pub fn clear(&mut self) {
        const USUAL_RECORDS: usize = 1 << 15;
        self.records.clear();
        self.records.shrink_to(USUAL_RECORDS);
        self.runs.clear();
        self.positions.clear();
        self.runs.shrink_to(USUAL_RECORDS);
    }
}

/// Counts the records that were sent to the digests and not received yet, so that many threads do
/// not make the recorder use much memory.
#[derive(Clone, Debug)]
pub(crate) struct InFlight {
    records: Arc<AtomicUsize>,
    /// Number of records that were received.
    received: Arc<AtomicUsize>,
    max_records: usize,
}

impl InFlight {
    /// Creates a counter with a limit of 16 MiB of records, or of a sixteenth of the limit on the
    /// recorder's own memory.
    pub(crate) fn new(memory_limit: Option<u64>) -> InFlight {
        const MAX_BYTES: u64 = 16 << 20;
        const MIN_BYTES: u64 = 1 << 20;
        let bytes = memory_limit.map_or(MAX_BYTES, |limit| (limit / 16).clamp(MIN_BYTES, MAX_BYTES));
        InFlight {
            records: Arc::default(),
            received: Arc::default(),
            max_records: bytes as usize / size_of::<Record>(),
        }
    }

    /// Returns whether no further batch should be sent for now.
    pub(crate) fn is_full(&self) -> bool {
        self.records.load(Relaxed) >= self.max_records
    }

    /// Counts a batch of records that is sent.
    pub(crate) fn sent(&self, records: usize) {
        self.records.fetch_add(records, Relaxed);
    }

    /// Counts a batch of records that was received.
    pub(crate) fn received(&self, records: usize) {
        self.records.fetch_sub(records, Relaxed);
        self.received.fetch_add(records, Relaxed);
    }

    /// Returns a number that changes whenever records were received.
    pub(crate) fn progress(&self) -> u64 {
        self.received.load(Relaxed) as u64
    }
}

/// The result of a step over one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The record belongs to the one after it.
    Prefix,
    /// The record, with the prefixes before it, is complete.
    Whole,
    /// The record is invalid: the ring is corrupt.
    Unknown,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RunningTimestamp {
    /// The timestamp of the last event, as the thread computes it.
    pub timestamp: u64,
}

const PREFIX: u8 = 1;
const EVENT: u8 = 2;
const MARK: u8 = 3;

/// The kind of each operation, so that one load decides.
const KINDS: [u8; 64] = {
    let mut kinds = [0; 64];
    let mut number = 0;
    while number < 64 {
        let op = Op(number as u8);
        let is_event = op.is_event() && !op.is_added();
        kinds[number] = if is_event || op.is_half_of_resize() || op.is_annotation() {
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

impl RunningTimestamp {
    #[inline(always)]
    pub(crate) fn step(&mut self, record: Record) -> Step {
        match KINDS[(record.head & 63) as usize] {
            EVENT => {
                self.timestamp = self.timestamp.wrapping_add(record.delta());
                Step::Whole
            }
            PREFIX => {
                if record.op() == Op::TIMESTAMP {
                    self.timestamp = record.body;
                }
                Step::Prefix
            }
            MARK => Step::Whole,
            _ => Step::Unknown,
        }
    }
}

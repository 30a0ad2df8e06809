//! The control record of a thread's slot: what the thread, the recorder and the owner write.

use super::Line;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// State of a slot that no thread owns.
pub const SLOT_FREE: u32 = 0;
/// State of a slot that a thread owns.
pub const SLOT_CLAIMED: u32 = 1;

/// The control record of one thread's ring, in four cache lines.
#[derive(Debug, Default)]
#[repr(C, align(256))]
pub struct SlotControl {
    /// Fields that the thread writes.
    pub producer: Line<ProducerState>,
    /// Fields that the recorder writes.
    pub consumer: Line<ConsumerState>,
    /// 1 while the thread waits for space; written by the thread.
    pub waiting: Line<AtomicU32>,
    /// Fields that are written when the slot is claimed and freed.
    pub owner: Line<OwnerState>,
}

/// What the thread publishes with each event.
#[derive(Debug, Default)]
#[repr(C)]
pub struct ProducerState {
    /// Number of records published since the area was created. Written with Release.
    pub head: AtomicU64,
    /// `head` after the record that is being timestamped, or `head` if there is none. Written
    /// before the timestamp is taken.
    pub reservation: AtomicU64,
    /// Number of events that happened on this slot, dropped ones included.
    pub emitted: AtomicU64,
    /// Number of events that were dropped for want of space in the ring.
    pub dropped: AtomicU64,
    /// Number of events that sampling skipped. They are not in `emitted`; the accounting adds them.
    pub sampled_out: AtomicU64,
    /// Number of deferred events (of signal handlers that interrupted a hook) that were dropped.
    /// They are in neither `emitted` nor `dropped`; the accounting adds them to both.
    pub deferred_dropped: AtomicU64,
}

/// What the recorder reports to the thread, and to the next recorder.
#[derive(Debug, Default)]
#[repr(C)]
pub struct ConsumerState {
    /// Number of records that the recorder has copied. Written with Release.
    pub tail: AtomicU64,
    /// What the next recorder must know of the records before a position. The mark whose position
    /// equals `tail` is valid; the other one is being written.
    pub marks: [TimestampMark; 2],
    /// For each mark, one more than the number of dropped events that the gap records before it
    /// report; 0 if that is not known.
    pub reported: [AtomicU64; 2],
    /// One more than the number of the owner's events that are in the recorder's files, and thus
    /// survive the recorder, with dropped ones; 0 if that is not known.
    pub kept: AtomicU64,
}

/// The timestamp of a thread at a position of its ring.
#[derive(Debug, Default)]
#[repr(C)]
pub struct TimestampMark {
    /// The position in the ring.
    pub tail: AtomicU64,
    /// The timestamp that the next tick difference counts from.
    pub timestamp: AtomicU64,
}

impl ConsumerState {
    /// Stores the timestamp, and the number of dropped events reported so far, for a position that
    /// is about to become the tail.
    #[inline]
    pub fn mark(&self, tail: u64, timestamp: u64, reported: u64) {
        let held = self.tail.load(Relaxed);
        let free = usize::from(self.marks[0].tail.load(Relaxed) == held);
        self.marks[free].timestamp.store(timestamp, Relaxed);
        self.reported[free].store(reported.wrapping_add(1), Relaxed);
        self.marks[free].tail.store(tail, Relaxed);
    }

    /// Returns the index of the mark at the tail.
    fn held(&self) -> Option<usize> {
        let tail = self.tail.load(Relaxed);
        self.marks.iter().position(|mark| mark.tail.load(Relaxed) == tail)
    }

    /// Returns the timestamp at the tail, or 0 if it is not known.
    pub fn timestamp(&self) -> u64 {
        self.held().map_or(0, |held| self.marks[held].timestamp.load(Relaxed))
    }

    /// Returns the number of dropped events that the gap records before the tail report, if it is
    /// known.
    pub fn reported(&self) -> Option<u64> {
        if self.tail.load(Relaxed) == 0 {
            return Some(0);
        }
        self.reported[self.held()?].load(Relaxed).checked_sub(1)
    }
}

/// The owner of the slot.
#[derive(Debug, Default)]
#[repr(C)]
pub struct OwnerState {
    /// [`SLOT_FREE`] or [`SLOT_CLAIMED`]. The thread claims the slot by compare-and-swap; the
    /// recorder frees it.
    pub state: AtomicU32,
    /// The kernel's id of the owning thread.
    pub tid: AtomicU32,
    /// Number of owners that this slot has had.
    pub epoch: AtomicU32,
}

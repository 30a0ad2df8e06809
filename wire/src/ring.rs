//! A ring of records in shared memory: one writer (a thread of the traced process), one reader (the
//! recorder).
//!
//! Positions count records since the area was made and never wrap (2^64 records are 1,800 years at
//! 10^10 a year's second). A record's place is its position modulo the capacity, a power of two.
//!
//! Orders: the writer's `head` store is Release, so the records (and the stack nodes that they
//! name) are visible before it; the reader's load is Acquire. The reader's `tail` store is Release
//! after its copy; the writer's load is Acquire, so it overwrites only what was copied. `intent` is
//! stored before the stamp is taken and read after a grace period (see [`Reader::poll`]).

use crate::{Record, SlotControl};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// The records of one ring.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    records: *mut Record,
    mask: u64,
}

// SAFETY: the pointer names shared memory; the single-writer single-reader rule is upheld by the
// slot's owner word (one thread claims a slot at a time) and by the recorder (one reader for each
// slot).
unsafe impl Send for Ring {}

impl Ring {
    /// # Safety
    /// `records` must be the start of `capacity` records that stay mapped while the ring is used;
    /// `capacity` a power of two.
    pub const unsafe fn new(records: *mut Record, capacity: u64) -> Ring {
        Ring { records, mask: capacity - 1 }
    }

    /// Records that fit.
    pub const fn capacity(&self) -> u64 {
        self.mask + 1
    }

    /// The first record's address, for opening the ring's pages.
    pub const fn start(&self) -> *mut Record {
        self.records
    }

    #[inline(always)]
    const fn record_at(&self, position: u64) -> *mut Record {
        // SAFETY: masked, so inside the ring.
        unsafe { self.records.add((position & self.mask) as usize) }
    }

    /// Stores a record that is not yet published. Only the owner of the slot calls it, for
    /// positions in `tail + capacity > position >= head`.
    #[inline(always)]
    pub fn put(&self, position: u64, record: Record) {
        // SAFETY: the place is inside the ring; the reader does not touch it before `head` passes
        // it, and has copied what was there.
        unsafe { self.record_at(position).write(record) }
    }
}

/// Why a ring can no longer be read: its writer is broken or hostile. The ring is closed, others
/// are unaffected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingError {
    /// `head` is lower than before.
    HeadDecreased,
    /// `head` is more than the capacity ahead of `tail`.
    HeadTooFar,
}

/// The recorder's end of one ring. Its own `tail` is private; the shared word is a copy for the
/// writer.
#[derive(Debug)]
pub struct Reader {
    ring: Ring,
    tail: u64,
}

/// What [`Reader::poll`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Poll {
    /// Records that can be copied.
    pub ready: u64,
    /// The writer has announced a record that it has not published: its stamp may be any time after
    /// the last published one.
    pub pending: bool,
}

impl Reader {
    /// Starts reading at position `tail` (0 for a new area; the shared word when a slot or a
    /// recorder is taken over).
    pub const fn new(ring: Ring, tail: u64) -> Reader {
        Reader { ring, tail }
    }

    /// Records that fit into the ring.
    pub const fn capacity(&self) -> u64 {
        self.ring.capacity()
    }

    /// Position of the next record.
    pub const fn tail(&self) -> u64 {
        self.tail
    }

    /// Looks how much is published. To learn that *everything stamped before tick T is published*
    /// the caller reads T, lets the writers' store buffers drain (any work of some microseconds),
    /// and polls: if nothing is pending, all stamps before T are in `ready`. `head` is read before
    /// `intent`: both only grow, so equality means that no stamp was being taken in between.
    pub fn poll(&self, control: &SlotControl) -> Result<Poll, RingError> {
        let head = control.producer.0.head.load(Acquire);
        let reservation = control.producer.0.reservation.load(Acquire);
        if head < self.tail {
            return Err(RingError::HeadDecreased);
        }
        let ready = head - self.tail;
        if ready > self.ring.capacity() {
            return Err(RingError::HeadTooFar);
        }
        Ok(Poll { ready, pending: reservation > head })
    }

    /// Hands `count` records (at most what `poll` found ready) to `sink` in one or two runs, copied
    /// from shared memory, and moves on. The writer may reuse the room only after
    /// [`Reader::release`].
    pub fn copy(&mut self, count: u64, mut sink: impl FnMut(&[Record])) {
        const RUN: usize = 256;
        let mut run = [Record::default(); RUN];
        let mut left = count;
        while left > 0 {
            let start = self.tail & self.ring.mask;
            let size = left.min(RUN as u64).min(self.ring.capacity() - start) as usize;
            for (index, record) in run[..size].iter_mut().enumerate() {
                // SAFETY: start + index is inside the ring. The writer is another process, perhaps
                // a hostile one, that may change the bytes meanwhile: a volatile read of plain
                // integers takes whatever is there, once, and the copy alone is judged.
                *record = unsafe { self.ring.record_at(start + index as u64).read_volatile() };
            }
            sink(&run[..size]);
            self.tail += size as u64;
            left -= size as u64;
        }
    }

    /// Tells the writer that everything copied so far may be overwritten. True when the writer
    /// waits for it and must be woken (futex on the low half of `tail`).
    pub fn release(&self, control: &SlotControl) -> bool {
        control.consumer.0.tail.store(self.tail, Release);
        core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
        control.waiting.0.load(Relaxed) != 0
    }
}

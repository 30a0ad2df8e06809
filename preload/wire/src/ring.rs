//! A ring of records in shared memory, with one writer (a thread of the traced process) and one
//! reader (the recorder).
//!
//! Positions count records since the area was created and never wrap (2^64 records take 1,800 years
//! at 3 * 10^8 records per second). The index of a record is its position modulo the capacity, a
//! power of two.
//!
//! Memory orders: the writer's `head` store is Release, so the records (and the stack nodes that
//! they refer to) are visible before it; the reader's load is Acquire. The reader's `tail` store is
//! Release, after its copy; the writer's load is Acquire, so it overwrites only what was copied.
//! `reservation` is stored before the timestamp is taken, and read after the barrier's delay (see
//! [`Reader::poll`]).

use crate::Record;
#[cfg(not(loom))]
use crate::SlotControl;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
#[cfg(not(loom))]
use core::sync::atomic::fence;
#[cfg(loom)]
use loom::sync::atomic::fence;
#[cfg(loom)]
use model::SlotControl;

/// The control record of the checks with loom, which has loom's atomics
/// (`preload/wire/tests/ring.rs`).
#[cfg(loom)]
pub mod model;

/// A record in the shared memory. In the checks with loom it reports access at the same time.
#[cfg(not(loom))]
type Cell = Record;
#[cfg(loom)]
type Cell = loom::cell::UnsafeCell<Record>;

/// A view of the records of one ring.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    records: *mut Cell,
    mask: u64,
}

// SAFETY: the pointer refers to shared memory. There is one writer, since one thread at a time
// claims a slot by its owner state, and one reader, since the recorder has one for each slot.
unsafe impl Send for Ring {}

impl Ring {
    /// Returns a view of a ring.
    ///
    /// # Safety
    /// `records` must point to the first of `capacity` records that stay mapped while the ring is
    /// used, and `capacity` must be a power of two.
    pub const unsafe fn new(records: *mut Cell, capacity: u64) -> Ring {
        Ring { records, mask: capacity - 1 }
    }

    /// Returns the number of records that the ring holds.
    pub const fn capacity(&self) -> u64 {
        self.mask + 1
    }

    /// Returns the address of the first record.
    pub const fn start(&self) -> *mut Cell {
        self.records
    }

    #[inline(always)]
    const fn record_at(&self, position: u64) -> *mut Cell {
        // SAFETY: masked, so inside the ring.
        unsafe { self.records.add((position & self.mask) as usize) }
    }

    /// Stores a record that is not published yet. Only the owner of the slot may call it, for
    /// positions in `tail + capacity > position >= head`.
    #[inline(always)]
    pub fn put(&self, position: u64, record: Record) {
        // SAFETY: the index is inside the ring. The reader does not access the record before `head`
        // passes it, and has copied the record that was there.
        #[cfg(not(loom))]
        unsafe {
            self.record_at(position).write(record)
        }
        // SAFETY: as above; loom checks it.
        #[cfg(loom)]
        unsafe {
            (*self.record_at(position)).with_mut(|cell| cell.write(record))
        }
    }

    /// Copies a record. Its bytes may be anything, but those of a published record are complete.
    #[inline(always)]
    fn get(&self, position: u64) -> Record {
        // SAFETY: the index is inside the ring. The writer is another process, possibly a hostile
        // one, that may change the bytes meanwhile. A volatile read of plain integers returns some
        // value, once, and only the copy is evaluated.
        #[cfg(not(loom))]
        unsafe {
            self.record_at(position).read_volatile()
        }
        // SAFETY: as above; loom checks that no honest writer changes the bytes meanwhile.
        #[cfg(loom)]
        unsafe {
            (*self.record_at(position)).with(|cell| cell.read())
        }
    }
}

/// Why a ring can no longer be read: its writer is broken or hostile. The ring is closed; others
/// are not affected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingError {
    /// `head` is lower than before.
    HeadDecreased,
    /// `head` is more than the capacity ahead of `tail`.
    HeadTooFar,
}

/// The recorder's end of one ring. The reader's own `tail` is private, and the shared one is a copy
/// for the writer.
#[derive(Debug)]
pub struct Reader {
    ring: Ring,
    tail: u64,
}

/// The result of [`Reader::poll`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Poll {
    /// Number of records that can be copied.
    pub ready: u64,
    /// Whether the writer has reserved a record that it has not published. Its timestamp may be any
    /// time after the last published one.
    pub pending: bool,
}

impl Reader {
    /// Starts reading at the position `tail`: 0 for a new area, or the shared value when a slot or
    /// another recorder's area is taken over.
    pub const fn new(ring: Ring, tail: u64) -> Reader {
        Reader { ring, tail }
    }

    /// Returns the number of records that the ring holds.
    pub const fn capacity(&self) -> u64 {
        self.ring.capacity()
    }

    /// Returns the position of the next record.
    pub const fn tail(&self) -> u64 {
        self.tail
    }

    /// Reads how much is published. To find out whether *all events with timestamps before tick T
    /// are published*, the caller reads T, lets the writers' store buffers drain (any work of some
    /// microseconds), and polls. If nothing is pending, all timestamps before T are in `ready`.
    /// `head` is read before `reservation`. Both only grow, so if they are equal, no timestamp was
    /// being taken in between.
    ///
    /// # Errors
    /// Returns an error if `head` is lower than before, or more than the capacity ahead of `tail`.
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

    /// Copies `count` records (at most `ready` of [`Reader::poll`]) from shared memory, passes them
    /// to `sink` in runs, and advances the reader. The writer may reuse the space only after
    /// [`Reader::release`].
    pub fn copy(&mut self, count: u64, mut sink: impl FnMut(&[Record])) {
        const RUN: usize = 256;
        let mut run = [Record::default(); RUN];
        let mut left = count;
        while left > 0 {
            let start = self.tail & self.ring.mask;
            let size = left.min(RUN as u64).min(self.ring.capacity() - start) as usize;
            for (index, record) in run[..size].iter_mut().enumerate() {
                *record = self.ring.get(start + index as u64);
            }
            sink(&run[..size]);
            self.tail += size as u64;
            left -= size as u64;
        }
    }

    /// Makes the space of all copied records available to the writer. Returns whether the writer is
    /// waiting for it and must be woken (futex on the low half of `tail`).
    pub fn release(&self, control: &SlotControl) -> bool {
        release(control, self.tail)
    }
}

/// Makes the space before `tail` available to the writer. Returns whether the writer is waiting for
/// it and must be woken (futex on the low half of `tail`).
pub fn release(control: &SlotControl, tail: u64) -> bool {
    control.consumer.0.tail.store(tail, Release);
    fence(SeqCst);
    control.waiting.0.load(Relaxed) != 0
}

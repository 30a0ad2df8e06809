//! The writing end of a thread's ring.

use crate::timestamp::Credit;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use heaptape_wire::area::ProducerState;
use heaptape_wire::limits::HEADER_CHECK_RECORDS;
use heaptape_wire::{Record, SlotControl, ring::Ring};

/// Bit of [`RingWriter::pending_reports`]: the sampling interval has to be reported.
pub(crate) const INTERVAL_PENDING: u64 = 1 << 63;
/// Bit of [`RingWriter::pending_reports`]: the next event was still selected by the old interval.
pub(crate) const INTERVAL_AFTER_NEXT: u64 = 1 << 62;

/// The writing end of a thread's ring.
#[repr(C)]
pub(crate) struct RingWriter {
    /// The published `head` when the running hook began. While it is unchanged, that hook's event
    /// has not been published.
    pub event_head: u64,
    /// Number of events until the next timestamp, while the process has one thread.
    pub until_timestamp: u32,
    /// What pays for timestamps beyond each 16th.
    pub credit: Credit,
    pub control: *const SlotControl,
    pub ring: Ring,
    /// The next position in the ring.
    pub head: u64,
    /// Positions below this one are free to write.
    pub limit: u64,
    /// The last timestamp that was published.
    pub timestamp: u64,
    /// Number of records kept free for second halves of resizes.
    pub reserved: u64,
    /// Number of events that were dropped for want of space in the ring.
    pub dropped: u64,
    /// Number of dropped events that no record in the ring has reported yet, with
    /// [`INTERVAL_PENDING`] and [`INTERVAL_AFTER_NEXT`] above it.
    pub pending_reports: u64,
}

impl RingWriter {
    /// Initializes the writer for a claimed slot, in memory that may hold an earlier one.
    pub(crate) fn new(control: &SlotControl, ring: Ring, is_sampled: bool) -> RingWriter {
        let head = control.producer.0.head.load(Relaxed);
        let tail = control.consumer.0.tail.load(Acquire);
        RingWriter {
            event_head: head,
            until_timestamp: 0,
            credit: Credit::none(),
            control,
            head,
            limit: tail.wrapping_add(ring.capacity()).min(head + HEADER_CHECK_RECORDS),
            ring,
            timestamp: 0,
            reserved: 0,
            dropped: 0,
            pending_reports: if is_sampled { INTERVAL_PENDING } else { 0 },
        }
    }

    /// Returns the words of the control record that this thread writes.
    ///
    /// # Safety
    /// `self.control` must be the control record of the claimed slot. `boot/claim.rs` ensures it
    /// for a state whose activation is not 0.
    #[inline(always)]
    pub(crate) unsafe fn producer<'a>(&self) -> &'a ProducerState {
        // SAFETY: the slot's control record stays mapped while the session lives.
        unsafe { &(*self.control).producer.0 }
    }

    /// Returns whether a number of records may not fit, or the recorder's header is to be read.
    #[inline(always)]
    pub(crate) const fn is_short_of(&self, records: u64) -> bool {
        self.head + records + self.reserved > self.limit
    }

    /// Stores a record after the ones already stored.
    #[inline(always)]
    pub(crate) fn put(&mut self, record: Record) {
        self.ring.put(self.head, record);
        self.head += 1;
    }

    /// Publishes all records up to `self.head`.
    ///
    /// # Safety
    /// As [`RingWriter::producer`].
    #[inline(always)]
    pub(crate) unsafe fn publish(&self) {
        // SAFETY: the control record is the claimed slot's, as the caller ensures.
        unsafe { self.producer() }.head.store(self.head, Release);
    }

    /// Counts one event that was dropped for want of space.
    ///
    /// # Safety
    /// As [`RingWriter::producer`].
    #[inline(always)]
    pub(crate) unsafe fn count_dropped(&mut self) {
        self.dropped += 1;
        self.pending_reports += 1;
        // SAFETY: the control record is the claimed slot's, as the caller ensures.
        unsafe { self.producer() }.dropped.store(self.dropped, Release);
    }

    /// Stores the records that are due before the next event: a gap, a change of the sampling
    /// interval, which is `mean`.
    #[inline(always)]
    pub(crate) fn put_pending_reports(&mut self, mean: u64) {
        let reports = core::mem::take(&mut self.pending_reports);
        let events = reports & !(INTERVAL_PENDING | INTERVAL_AFTER_NEXT);
        if events != 0 {
            self.put(Record::dropped(events));
        }
        if reports & INTERVAL_PENDING != 0 {
            self.put(Record::sample_interval(mean, reports & INTERVAL_AFTER_NEXT != 0));
        }
    }

    /// Removes the records that were stored and not published, by a hook that was left by a jump.
    ///
    /// # Safety
    /// As [`RingWriter::producer`].
    pub(crate) unsafe fn roll_back(&mut self, is_sampled: bool) {
        // SAFETY: the control record is the claimed slot's, as the caller ensures.
        let producer = unsafe { self.producer() };
        self.head = producer.head.load(Acquire);
        producer.reservation.store(self.head, Release);
        self.until_timestamp = 0;
        // The removed records may have contained a timestamp and a sampling interval.
        self.timestamp = 0;
        if is_sampled {
            self.pending_reports |= INTERVAL_PENDING;
        }
    }
}

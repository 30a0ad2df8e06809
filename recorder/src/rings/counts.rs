//! The counts of events that a thread has emitted, by the fate of the events.

use std::sync::atomic::Ordering::{Acquire, Relaxed};
use wire::SlotControl;
use wire::ring::{Reader, Ring};

/// Event counts of a thread, from its control record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventCounts {
    /// Number of events that the thread emitted.
    pub emitted: u64,
    /// Number of events that were dropped for want of space.
    pub lost: u64,
    /// Number of events that sampling skipped.
    pub sampled_out: u64,
}

/// The counts of a resumed slot that belong to the previous recorder.
#[derive(Debug, Default)]
pub(super) struct Former {
    /// Number of events of the owner, including those that sampling skipped.
    pub emitted: u64,
    /// Number of events of the owner that sampling skipped.
    pub sampled_out: u64,
    /// Number of dropped events that were reported by gap records.
    pub reported: u64,
    /// Number of events that the previous recorder had read and not stored, which are lost.
    pub unkept: u64,
}

impl Former {
    /// Returns the owner's counts of events that the previous recorder has read or reported as
    /// dropped: `reported` is the number of the latter. Records in the ring, and drops that no gap
    /// record has reported yet, belong to this recorder. The owner runs meanwhile: it counts an
    /// event immediately before it publishes it, so the counts are read until two reads agree.
    pub(super) fn of(control: &SlotControl, ring: Ring) -> Former {
        let read = || {
            let producer = &control.producer.0;
            (producer.head.load(Acquire), producer.emitted.load(Acquire), producer.dropped.load(Acquire))
        };
        let mut counts = read();
        for attempt in 0..1000 {
            // The counts of a thread that drops all its events change all the time: for it two
            // equal reads in a row are enough.
            for _ in 0..if attempt < 100 { 64 } else { 0 } {
                std::hint::spin_loop();
            }
            let again = read();
            if again == counts {
                break;
            }
            counts = again;
        }
        let (head, emitted, lost) = counts;
        let tail = control.consumer.0.tail.load(Relaxed);
        let (mut waiting, mut gaps) = (0u64, 0u64);
        if head >= tail && head - tail <= ring.capacity() {
            Reader::new(ring, tail).copy(head - tail, |run| {
                waiting += run.iter().filter(|record| record.op().is_event()).count() as u64;
                let marks = run.iter().filter(|record| record.op() == wire::Op::DROPPED);
                gaps = marks.fold(gaps, |sum, record| sum.saturating_add(record.body));
            });
        }
        // For an area of a recorder that did not store this number, all drops but those in the ring
        // count as reported.
        let reported = control.consumer.0.reported().unwrap_or_else(|| lost.saturating_sub(gaps)).min(lost);
        let sampled_out = control.producer.0.sampled_out.load(Relaxed);
        let own = waiting.saturating_add(lost - reported);
        let read = emitted.saturating_sub(own);
        let kept = control.consumer.0.kept.load(Relaxed).checked_sub(1).unwrap_or(read).min(read);
        // The owner may just be publishing an event that it has counted.
        let unkept = Some(read - kept).filter(|events| *events > 2).unwrap_or(0);
        Former { emitted: kept.saturating_add(sampled_out), sampled_out, reported, unkept }
    }
}

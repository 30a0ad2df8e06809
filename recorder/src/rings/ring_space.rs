//! The release of ring space: the point from which a thread may overwrite records that were read.
//!
//! While the events of a process are kept (trace, flight), the digest releases space once they are
//! in the page cache. A program that drops events when its ring is full would drop more for that
//! wait, so the drain releases space earlier under pressure. In the other modes (profile, off)
//! there are no events to keep: the drain releases space as soon as it has copied the records.

use crate::os::sys::{self, Mapping};
use formats::tape::journal::Position;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use wire::SlotControl;

/// What is known of events that are released: whether they survive the recorder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    /// The events survive the recorder.
    Safe,
    /// The events could not be written yet.
    Unsafe,
    /// The events become sums, which are written periodically.
    Unknown,
}

fn advance(control: &SlotControl, position: &Position) {
    let consumer = &control.consumer.0;
    if position.tail > consumer.tail.load(Relaxed) {
        consumer.mark(position.tail, position.timestamp, position.reported);
        if wire::ring::release(control, position.tail) {
            sys::wake(&consumer.tail);
        }
    }
}

/// Releases the space of one batch, after its events were handled.
pub(crate) fn batch(mapping: &Mapping, positions: &[Position], kept: Kept) {
    if positions.is_empty() {
        return;
    }
    let releases = mapping.releases();
    let guard = releases.lock();
    for position in positions {
        let Some(control) = mapping.slot(position.slot) else { continue };
        match kept {
            Kept::Safe => control.consumer.0.kept.store(position.counted.wrapping_add(1), Relaxed),
            Kept::Unsafe => {}
            Kept::Unknown => control.consumer.0.kept.store(0, Relaxed),
        }
        advance(control, position);
    }
    drop(guard);
    releases.batch_done();
}

/// Releases the space of one ring before its events are safe.
pub(crate) fn early(mapping: &Mapping, position: &Position) {
    let _guard = mapping.releases().lock();
    if let Some(control) = mapping.slot(position.slot) {
        if !mapping.releases().keeps_events() {
            control.consumer.0.kept.store(0, Relaxed);
        }
        advance(control, position);
    }
}

/// Moves the rings of an area to where the last recorder's journal ends. That recorder may have
/// been killed between the write of its last entry and the release.
pub(crate) fn resume(mapping: &Mapping, positions: &[Position]) {
    for position in positions {
        let Some((control, ring)) = mapping.slot(position.slot).zip(mapping.ring(position.slot)) else { continue };
        let (head, tail) = (control.producer.0.head.load(Acquire), control.consumer.0.tail.load(Relaxed));
        let is_owner = control.owner.0.epoch.load(Relaxed) == position.owner;
        if is_owner && position.tail <= head && head.wrapping_sub(tail) <= ring.capacity() {
            control.consumer.0.kept.fetch_max(position.counted.wrapping_add(1), Relaxed);
            advance(control, position);
        }
    }
}

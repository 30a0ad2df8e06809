//! The part of the control record that a ring uses, with loom's atomics. The names are those of
//! `area.rs`, whose layout loom's atomics cannot have.

use loom::sync::atomic::{AtomicU32, AtomicU64};

/// Fields with a cache line of their own.
#[derive(Debug, Default)]
pub struct Line<T>(pub T);

/// The control record of one ring.
#[derive(Debug, Default)]
pub struct SlotControl {
    /// Fields that the thread writes.
    pub producer: Line<ProducerState>,
    /// Fields that the recorder writes.
    pub consumer: Line<ConsumerState>,
    /// 1 while the thread waits for space.
    pub waiting: Line<AtomicU32>,
}

/// What the thread publishes with each event.
#[derive(Debug, Default)]
pub struct ProducerState {
    /// Number of records published.
    pub head: AtomicU64,
    /// `head` after the record that is being timestamped, or `head` if there is none.
    pub reservation: AtomicU64,
}

/// What the recorder reports to the thread.
#[derive(Debug, Default)]
pub struct ConsumerState {
    /// Number of records that the recorder has copied.
    pub tail: AtomicU64,
}

//! The state of ring space that drain and digest share: which of them may release it, and how far the
//! digest has come.

use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Release},
};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The state of the release of ring space of one area, and the progress of the digest.
#[derive(Debug, Default)]
pub struct Releases {
    lock: Mutex<()>,
    /// Batches whose positions the digest has released.
    done: AtomicU64,
    /// Whether the process is in a mode without events. Only the digest writes it.
    has_no_events: AtomicBool,
}

impl Releases {
    /// Locks the positions of the rings.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether events are kept, so that the digest releases space.
    pub(crate) fn keeps_events(&self) -> bool {
        !self.has_no_events.load(Acquire)
    }

    /// Sets whether the digest keeps events in the current mode.
    pub(crate) fn keep_events(&self, keeps: bool) {
        self.has_no_events.store(!keeps, Release);
    }

    /// Returns the number of batches whose positions the digest has released.
    pub(crate) fn done(&self) -> u64 {
        self.done.load(Acquire)
    }

    /// Counts one more batch whose positions the digest has released.
    pub(crate) fn batch_done(&self) {
        self.done.fetch_add(1, Release);
    }
}

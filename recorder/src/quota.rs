//! Disk space that everything written for one user shares: the writers count, somebody else
//! measures the disk now and then and says how much more there may be. In between the count holds,
//! so that no writer passes the bound by more than what it was about to write.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// One user's.
#[derive(Debug)]
pub struct Quota {
    /// Bytes written so far.
    written: AtomicU64,
    /// What `written` may reach.
    ceiling: AtomicU64,
    /// What is still free once it is measured that asks for another measurement.
    low: AtomicU64,
    /// Pieces that were not written because of it.
    hits: AtomicU64,
    is_full: AtomicBool,
}

impl Quota {
    /// With this much space until it is first measured.
    pub fn new(bytes: u64) -> Quota {
        let (written, ceiling, low, hits) = (0.into(), bytes.into(), (bytes / 16).into(), 0.into());
        Quota { written, ceiling, low, hits, is_full: false.into() }
    }

    /// Counts bytes that were written.
    pub fn count(&self, bytes: u64) {
        self.written.fetch_add(bytes, Relaxed);
    }

    /// Bytes written so far: what a measurement that begins now refers to.
    pub fn written(&self) -> u64 {
        self.written.load(Relaxed)
    }

    /// Bytes that may still be written.
    pub fn left(&self) -> u64 {
        self.ceiling.load(Relaxed).saturating_sub(self.written())
    }

    /// Whether it should be measured again.
    pub fn is_low(&self) -> bool {
        self.left() <= self.low.load(Relaxed)
    }

    /// Sets what a measurement found that began at `written`: bytes used of a limit.
    pub fn set(&self, written: u64, used: u64, limit: u64) {
        self.ceiling.store(written.saturating_add(limit.saturating_sub(used)), Relaxed);
        self.low.store(limit / 16, Relaxed);
        self.is_full.store(used >= limit, Relaxed);
    }

    /// Whether a piece may be written; if not, that is counted.
    pub fn admits(&self) -> bool {
        let has_room = self.left() > 0;
        self.hits.fetch_add(u64::from(!has_room), Relaxed);
        has_room
    }

    /// Pieces that were not admitted since the last call.
    pub fn hits(&self) -> u64 {
        self.hits.swap(0, Relaxed)
    }

    /// Whether the last measurement found it used up.
    pub fn is_full(&self) -> bool {
        self.is_full.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn count_holds_between_measurements() {
        let quota = Quota::new(1000);
        quota.count(900);
        assert!(quota.admits() && !quota.is_low());
        quota.count(200);
        assert!(!quota.admits() && quota.is_low() && quota.hits() == 1 && quota.hits() == 0);
        // Measured while 50 bytes more were written.
        let begun = quota.written();
        quota.count(50);
        quota.set(begun, 600, 1000);
        assert_eq!((quota.left(), quota.is_full()), (350, false));
        quota.set(quota.written(), 1000, 1000);
        assert!(quota.is_full() && !quota.admits());
    }
}

//! The disk space that all files of one user share. Writers count their bytes. Another thread
//! measures the disk from time to time and sets how much more may be written. Between measurements
//! the count applies, so that no writer exceeds the limit by more than one write. Who measures may
//! remove old files, too, so a writer that meets the limit first waits for a measurement.

use crossbeam_channel::Sender;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// How long a write waits for a measurement.
const LONGEST: Duration = Duration::from_secs(1);

/// The disk quota of one user.
#[derive(Debug)]
pub struct Quota {
    /// Number of bytes written so far.
    written: AtomicU64,
    /// Maximum value of `written`.
    ceiling: AtomicU64,
    /// Number of free bytes at which the disk is to be measured again.
    low: AtomicU64,
    /// Number of writes that were refused because of the quota.
    hits: AtomicU64,
    is_full: AtomicBool,
    /// Gets a message when somebody waits for a measurement.
    wanted: Option<Sender<()>>,
    /// Whether a measurement did not come in time, and none has since.
    is_late: Mutex<bool>,
    measured: Condvar,
}

impl Quota {
    /// Creates a quota of `bytes` that applies until the first measurement. `wanted` gets a message when
    /// somebody waits for one; without it nobody waits.
    pub fn new(bytes: u64, wanted: Option<Sender<()>>) -> Quota {
        Quota {
            written: AtomicU64::new(0),
            ceiling: AtomicU64::new(bytes),
            low: AtomicU64::new(bytes / 16),
            hits: AtomicU64::new(0),
            is_full: AtomicBool::new(false),
            wanted,
            is_late: Mutex::new(false),
            measured: Condvar::new(),
        }
    }

    /// Counts bytes that were written.
    pub fn count(&self, bytes: u64) {
        self.written.fetch_add(bytes, Relaxed);
    }

    /// Returns the number of bytes written so far: the reference of a measurement that starts now.
    pub fn written(&self) -> u64 {
        self.written.load(Relaxed)
    }

    /// Returns the number of bytes that may still be written.
    pub fn left(&self) -> u64 {
        self.ceiling.load(Relaxed).saturating_sub(self.written())
    }

    /// Returns whether the disk should be measured again.
    pub fn is_low(&self) -> bool {
        self.left() <= self.low.load(Relaxed)
    }

    /// Applies a measurement that started when `written` bytes had been written: it found `used`
    /// bytes of `limit`.
    pub fn set(&self, written: u64, used: u64, limit: u64) {
        self.ceiling.store(written.saturating_add(limit.saturating_sub(used)), Relaxed);
        self.low.store(limit / 16, Relaxed);
        self.is_full.store(used >= limit, Relaxed);
        *self.is_late.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.measured.notify_all();
    }

    /// Waits for a measurement if there may be space that is not known yet.
    fn wait(&self) {
        let Some(wanted) = &self.wanted else { return };
        let mut is_late = self.is_late.lock().unwrap_or_else(PoisonError::into_inner);
        let may_have_space = |is_late: &mut bool| self.left() == 0 && !self.is_full() && !*is_late;
        if may_have_space(&mut is_late) {
            // A full channel has the message already.
            let _ = wanted.try_send(());
            let waited = self.measured.wait_timeout_while(is_late, LONGEST, may_have_space);
            let (mut is_late, waited) = waited.unwrap_or_else(PoisonError::into_inner);
            *is_late |= waited.timed_out();
        }
    }

    /// Returns whether a write is permitted, and counts it if it is not.
    pub fn admits(&self) -> bool {
        self.wait();
        let has_space = self.left() > 0;
        self.hits.fetch_add(u64::from(!has_space), Relaxed);
        has_space
    }

    /// Returns the number of writes that were refused since the last call.
    pub fn hits(&self) -> u64 {
        self.hits.swap(0, Relaxed)
    }

    /// Returns whether the last measurement found that the quota is used up.
    pub fn is_full(&self) -> bool {
        self.is_full.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn count_holds_between_measurements() {
        let quota = Quota::new(1000, None);
        quota.count(900);
        assert!(quota.admits() && !quota.is_low());
        quota.count(200);
        assert!(!quota.admits() && quota.is_low() && quota.hits() == 1 && quota.hits() == 0);
        // Measured while 50 bytes more were written.
        let written_at_start = quota.written();
        quota.count(50);
        quota.set(written_at_start, 600, 1000);
        assert_eq!((quota.left(), quota.is_full()), (350, false));
        quota.set(quota.written(), 1000, 1000);
        assert!(quota.is_full() && !quota.admits());
    }

    #[test]
    fn write_at_the_limit_waits_for_what_may_be_removed() {
        let (wanted, asked) = crossbeam_channel::bounded(1);
        let quota = Quota::new(1000, Some(wanted));
        quota.count(1000);
        std::thread::scope(|scope| {
            let write = scope.spawn(|| quota.admits());
            asked.recv().expect("somebody waits");
            // One that began before the last write leaves nothing.
            quota.set(0, 0, 1000);
            quota.set(quota.written(), 400, 1000);
            assert!(write.join().expect("a thread"), "{quota:?}");
        });
        assert_eq!((quota.left(), quota.hits()), (600, 0));
        // Nobody waits where all must be kept, nor again for who does not come.
        quota.set(quota.written(), 1000, 1000);
        assert!(!quota.admits() && asked.try_recv().is_err());
        quota.set(quota.written(), 999, 1000);
        quota.count(1);
        assert!(!quota.admits() && asked.try_recv().is_ok());
        assert!(!quota.admits() && asked.try_recv().is_err(), "{quota:?}");
    }
}

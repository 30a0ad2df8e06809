//! When the pages of a process are read: at a new peak of its live bytes, when its resident memory
//! or its live bytes changed much, and at intervals while anything changes.

use crate::session::traced_process::StatsSnapshot;
use formats::tape::{RESIDENCY_CHANGE, RESIDENCY_FIRST, RESIDENCY_INTERVAL, RESIDENCY_PEAK, Residency};
use std::time::{Duration, Instant};

/// Time from the start of a process to its first snapshot.
pub(crate) const FIRST_DELAY: Duration = Duration::from_millis(20);
/// Minimum time between two snapshots for no other reason.
const INTERVAL: Duration = Duration::from_secs(1);
/// Time after which the resident memory is looked at although neither the heap nor the resident
/// memory has changed.
const QUIET_LOOK: Duration = Duration::from_secs(1);
/// Bytes of snapshots that are stored in a second on average.
const BYTES_PER_SECOND: u64 = 16 << 10;
/// Changes of fewer bytes are no reason for a snapshot.
const MIN_CHANGE: u64 = 1 << 20;

/// What was seen of a process at a point in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    live: u64,
    resident: u64,
    allocs: u64,
    frees: u64,
}

#[derive(Debug)]
pub(super) struct Schedule {
    started: Instant,
    looked: Option<Instant>,
    /// Whether the last two looks found the same resident memory.
    is_settled: bool,
    /// The last look, and the look at which the last snapshot was taken.
    last: Seen,
    at_snapshot: Option<(Instant, Seen)>,
    /// Most live bytes of a snapshot.
    peak: u64,
    /// Most resident bytes of a snapshot.
    resident_peak: u64,
    /// Snapshots that are not requested wait until then.
    not_before: Instant,
    is_refused: bool,
}

impl Schedule {
    /// Starts the schedule of a process.
    pub(super) fn new(now: Instant) -> Schedule {
        Schedule {
            started: now,
            looked: None,
            is_settled: false,
            last: Seen::default(),
            at_snapshot: None,
            peak: 0,
            resident_peak: 0,
            not_before: now + FIRST_DELAY,
            is_refused: false,
        }
    }

    /// Returns why a snapshot is due, or `None`. `resident` reads the resident memory in bytes; it
    /// is called only where something has changed since the look before, or after a second.
    pub(super) fn due(
        &mut self,
        now: Instant,
        stats: &StatsSnapshot,
        resident: impl FnOnce() -> Option<u64>,
    ) -> Option<u8> {
        let has_changed = (stats.allocs, stats.frees) != (self.last.allocs, self.last.frees);
        let is_quiet = self.looked.is_some_and(|looked| now.saturating_duration_since(looked) < QUIET_LOOK);
        if now < self.not_before || (!has_changed && self.is_settled && is_quiet) {
            return None;
        }
        self.looked = Some(now);
        let resident = resident()?;
        // A large block is often written long after it was allocated.
        self.is_settled = resident == self.last.resident;
        self.last = Seen { live: stats.live_bytes, resident, allocs: stats.allocs, frees: stats.frees };
        let Some((when, before)) = self.at_snapshot else { return Some(RESIDENCY_FIRST) };
        let now_seen = self.last;
        let is_more = |now: u64, before: u64| now >= before.saturating_add((before / 4).max(MIN_CHANGE));
        let is_double = |now: u64, before: u64| now >= before.saturating_mul(2) && now - before >= MIN_CHANGE;
        match () {
            () if is_more(now_seen.live, self.peak) => Some(RESIDENCY_PEAK),
            () if is_double(resident, before.resident) || is_double(before.resident, resident) => {
                Some(RESIDENCY_CHANGE)
            }
            () if is_more(resident, self.resident_peak) => Some(RESIDENCY_CHANGE),
            () if is_more(before.live, now_seen.live) => Some(RESIDENCY_CHANGE),
            () if now.saturating_duration_since(when) >= INTERVAL && now_seen != before => Some(RESIDENCY_INTERVAL),
            () => None,
        }
    }

    /// Notes a snapshot that was taken, with the resident memory in bytes before its pages were
    /// read: if that has changed meanwhile, the next look finds a change. The more bytes the
    /// snapshot takes, the later is the next one.
    pub(super) fn taken(&mut self, now: Instant, record: &Residency, before: u64) {
        self.at_snapshot = Some((now, Seen { resident: before, ..self.last }));
        self.peak = self.peak.max(self.last.live);
        self.resident_peak = self.resident_peak.max(before);
        let names: usize = record.names.iter().map(|name| name.0.len()).sum();
        let bytes = (record.stored.0.len() + names + 8 * record.mappings.len()) as u64;
        // A short run may have some more.
        let credit = now.saturating_duration_since(self.started) < Duration::from_secs(10);
        let divisor = if credit { 8 * BYTES_PER_SECOND } else { BYTES_PER_SECOND };
        self.not_before = now + Duration::from_micros(bytes.saturating_mul(1_000_000) / divisor);
    }

    /// Returns whether the pages could not be read before, which the recording states once.
    pub(crate) fn was_refused(&self) -> bool {
        self.is_refused
    }

    /// Notes that the pages could not be read.
    pub(super) fn refuse(&mut self) {
        self.is_refused = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn stats(live_bytes: u64, allocs: u64) -> StatsSnapshot {
        StatsSnapshot { live_bytes, allocs, ..StatsSnapshot::default() }
    }

    #[test]
    fn snapshots_are_due_at_peaks_changes_and_intervals() {
        let start = Instant::now();
        let mut schedule = Schedule::new(start);
        let at = |millis: u64| start + Duration::from_millis(millis);
        let mut look = |millis, live, resident, allocs| {
            let due = schedule.due(at(millis), &stats(live, allocs), || Some(resident));
            if due.is_some() {
                schedule.taken(at(millis), &Residency::default(), resident);
            }
            due
        };
        assert_eq!(look(0, MIB, 9 * MIB, 1), None, "too early");
        assert_eq!(look(100, MIB, 9 * MIB, 1), Some(RESIDENCY_FIRST));
        assert_eq!(look(200, 2 * MIB - 1, 9 * MIB, 2), None, "too small a change");
        assert_eq!(look(300, 4 * MIB, 9 * MIB, 3), Some(RESIDENCY_PEAK));
        assert_eq!(look(400, 5 * MIB - 1, 9 * MIB, 4), None, "less than a quarter more");
        assert_eq!(look(500, 4 * MIB, 18 * MIB, 5), Some(RESIDENCY_CHANGE));
        assert_eq!(look(600, MIB, 18 * MIB, 6), Some(RESIDENCY_CHANGE), "live bytes have fallen");
        assert_eq!(look(700, 3 * MIB, 18 * MIB, 7), None, "more, but no peak");
        assert_eq!(look(800, 3 * MIB, 9 * MIB, 8), Some(RESIDENCY_CHANGE));
        assert_eq!(look(1700, 3 * MIB, 9 * MIB, 9), None, "the interval is not over");
        assert_eq!(look(1900, 3 * MIB, 9 * MIB, 10), Some(RESIDENCY_INTERVAL));
        assert_eq!(look(9000, 3 * MIB, 9 * MIB, 10), None, "nothing has changed");
        assert_eq!(look(9100, 3 * MIB, 9 * MIB + 1, 10), None, "a quiet heap is looked at once a second");
        assert_eq!(look(10_100, 3 * MIB, 9 * MIB + 1, 10), Some(RESIDENCY_INTERVAL));
    }

    /// A block is allocated, and written slowly: a snapshot in the middle is not the last one.
    #[test]
    fn snapshots_follow_memory_that_is_being_written() {
        let start = Instant::now();
        let mut schedule = Schedule::new(start);
        let mut look = |millis, resident: u64| {
            let now = start + Duration::from_millis(millis);
            let due = schedule.due(now, &stats(40 * MIB, 1), || Some(resident));
            if due.is_some() {
                schedule.taken(now, &Residency::default(), resident);
            }
            due
        };
        assert_eq!(look(100, 23 * MIB), Some(RESIDENCY_FIRST));
        assert_eq!(look(200, 27 * MIB), None, "less than a quarter more");
        assert_eq!(look(300, 44 * MIB), Some(RESIDENCY_CHANGE), "a new peak, and not twice as much");
        assert_eq!(look(400, 44 * MIB), None);
        assert_eq!(look(500, 80 * MIB), None, "settled memory is looked at once a second");
        assert_eq!(look(1400, 80 * MIB), Some(RESIDENCY_CHANGE));
    }

    #[test]
    fn large_snapshots_are_rare() {
        let start = Instant::now();
        let mut schedule = Schedule::new(start);
        let later = start + Duration::from_secs(60);
        assert_eq!(schedule.due(later, &stats(MIB, 1), || Some(MIB)), Some(RESIDENCY_FIRST));
        let stored = vec![0; 160 << 10].into();
        schedule.taken(later, &Residency { stored, ..Residency::default() }, 0);
        let due = |schedule: &mut Schedule, after| {
            schedule.due(later + Duration::from_secs(after), &stats(9 * MIB, 2), || Some(9 * MIB))
        };
        assert_eq!(due(&mut schedule, 9), None);
        assert_eq!(due(&mut schedule, 11), Some(RESIDENCY_PEAK));
    }
}

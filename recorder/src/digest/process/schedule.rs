//! When which data of a recording is to be written.

use std::time::{Duration, Instant};

/// Maximum time that an event waits for its chunk to be finished.
const CHUNK_TIME: Duration = Duration::from_secs(1);
/// Time between two summaries with accounts in the tape.
const SUMMARY_TIME: Duration = Duration::from_secs(10);
/// Number of events after which a summary is written.
const SUMMARY_EVENTS: u64 = 1 << 20;
/// Minimum number of events between summaries for each site: a row of a summary takes about 12
/// bytes, so summaries take at most a fifth of a byte per event.
const SITE_EVENTS: u64 = 64;
/// Time between two profiles.
const PROFILE_TIME: Duration = Duration::from_secs(30);
/// Minimum time between two summaries, and two profiles, for each site: summaries (12 bytes per
/// row) stay below 64 KiB per second, profiles (184) below 1 MiB.
const SITE_TIME: Duration = Duration::from_micros(183);

/// What was written when, and what was not written since the last events.
#[derive(Debug)]
pub(super) struct Schedule {
    /// When the first event of the chunk was read; `None` when there is none.
    chunk_since: Option<Instant>,
    clock_written: Option<Instant>,
    summary_written: Instant,
    profile_written: Instant,
    needs_summary: bool,
    needs_profile: bool,
    /// Number of events in the chunks after the last summary.
    events_since_summary: u64,
}

impl Default for Schedule {
    fn default() -> Self {
        let now = Instant::now();
        Schedule {
            chunk_since: None,
            clock_written: None,
            summary_written: now,
            profile_written: now,
            needs_summary: false,
            needs_profile: false,
            events_since_summary: 0,
        }
    }
}

impl Schedule {
    /// Notes that there are new events.
    pub(crate) fn note_events(&mut self) {
        (self.needs_summary, self.needs_profile) = (true, true);
    }

    pub(crate) fn chunk_has_events(&mut self) {
        self.chunk_since.get_or_insert_with(Instant::now);
    }

    /// Notes that a chunk with this number of events is finished.
    pub(crate) fn chunk_finished(&mut self, events: u64) {
        self.chunk_since = None;
        self.events_since_summary += events;
    }

    /// Forgets the events of the chunk, which the next segment does not have.
    pub(crate) fn drop_chunk(&mut self) {
        self.chunk_since = None;
    }

    /// Notes that the clock was written.
    pub(crate) fn clock_written(&mut self) {
        self.clock_written = Some(Instant::now());
    }

    /// Notes that a summary was written.
    pub(crate) fn summary_written(&mut self) {
        (self.needs_summary, self.summary_written, self.events_since_summary) = (false, Instant::now(), 0);
    }

    /// Notes that the profile was written.
    pub(crate) fn profile_written(&mut self) {
        (self.needs_profile, self.profile_written) = (false, Instant::now());
    }

    /// Returns whether the chunk has waited long enough.
    pub(crate) fn is_chunk_due(&self) -> bool {
        self.chunk_since.is_some_and(|since| since.elapsed() >= CHUNK_TIME)
    }

    /// Returns whether the next chunk contains the clock.
    pub(crate) fn is_clock_due(&self) -> bool {
        self.clock_written.is_none_or(|written| written.elapsed() >= CHUNK_TIME)
    }

    /// Returns whether enough events were written since the last summary for another one.
    pub(crate) fn has_summary_events(&self, sites: u32) -> bool {
        self.events_since_summary >= SUMMARY_EVENTS.max(SITE_EVENTS * u64::from(sites))
    }

    pub(crate) fn is_summary_due(&self, sites: u32) -> bool {
        self.needs_summary && self.summary_written.elapsed() >= SUMMARY_TIME.max(SITE_TIME * sites)
    }

    /// Returns whether the profile of a process whose events are stored is due.
    pub(crate) fn is_profile_due(&self, sites: u32) -> bool {
        self.needs_profile && self.profile_written.elapsed() >= PROFILE_TIME.max(SITE_TIME * sites)
    }

    /// Returns whether the files of a process without stored events are to be replaced, which
    /// happens at this interval.
    pub(crate) fn is_snapshot_due(&self, interval: Duration) -> bool {
        self.needs_profile && self.profile_written.elapsed() >= interval
    }
}

//! Snapshots of the pages of the process, in its tape.

use super::ProcessRecording;
use crate::heap::live::BlocksAt;
use crate::session::options::Mode;
use crate::store::division::{Blocks, Divider, Job, Pending};
use crate::store::writer::{Callback, Content, WriteJob};
use formats::resident::Covered;
use formats::tape::field::Text;
use formats::tape::{Division, Record as TapeRecord, Residency};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum number of snapshots that a tape without events has, and of bytes of their runs.
const MAX_KEPT: usize = 8;
const MAX_BYTES: usize = 1 << 20;
/// Maximum number of groups of 512 pages for which it is known whether blocks were freed on them:
/// 5 MiB, for 128 GiB of memory.
const MAX_GROUPS: usize = 1 << 16;
/// Number of ticks of the recording without a batch after which the blocks of a snapshot are those
/// of now: no event from before it is in a ring any more.
const MAX_TICKS: u32 = 2;

/// A snapshot, and its memory by use.
#[derive(Debug)]
struct Snapshot {
    record: Arc<Residency>,
    division: Option<Pending>,
}

/// The newest snapshots of a process whose files are written as a whole.
#[derive(Debug, Default)]
pub(super) struct Kept {
    snapshots: VecDeque<Snapshot>,
    /// The thread that divides the newest snapshot once the events until then are known, and for
    /// how many ticks it has waited.
    undivided: Option<(Divider, u32)>,
    /// Called when the newest snapshot is divided and written.
    requests: Vec<Callback>,
    /// Tick from which on freed blocks are known; 0 if all of them are.
    freed_since_tick: u64,
}

/// Returns the tick at which the live blocks fit a snapshot best. They change while the pages are
/// read: those of the middle are nearest to all of them.
fn middle(record: &Residency) -> u64 {
    record.tick + record.end_tick.saturating_sub(record.tick) / 2
}

impl Kept {
    /// Adds a snapshot. The oldest ones are dropped, as far as there are too many.
    fn add(&mut self, record: Residency) {
        self.snapshots.push_back(Snapshot { record: Arc::new(record), division: None });
        let bytes = |kept: &VecDeque<Snapshot>| kept.iter().map(|one| one.record.stored.0.len()).sum::<usize>();
        while self.snapshots.len() > MAX_KEPT || (self.snapshots.len() > 1 && bytes(&self.snapshots) > MAX_BYTES) {
            self.snapshots.pop_front();
        }
    }
}

impl ProcessRecording {
    /// Stores a snapshot of the pages. It names its time, so it need not be beside the events of
    /// that time.
    pub(super) fn residency(&mut self, record: Residency, divider: Divider, out: &mut dyn FnMut(WriteJob)) {
        match self.session.options.mode {
            Mode::Off => {}
            Mode::Profile => {
                let has_pages = record.method != 0;
                self.residency.add(record);
                self.residency.undivided = has_pages.then_some((divider, 0));
                self.divide_sampled();
            }
            Mode::Trace | Mode::Flight => {
                let records = vec![TapeRecord::Residency(record)];
                out(self.write_job(Content::State { records, profile: None }, None));
            }
        }
    }

    /// States why the newest snapshot is not divided if blocks are sampled.
    fn divide_sampled(&mut self) {
        if !self.heap.is_sampled() {
            return;
        }
        self.residency.undivided = None;
        let Some(newest) = self.residency.snapshots.back_mut() else { return };
        let live = self.heap.profile().totals().live_bytes;
        let lacks = format!(
            "blocks are sampled; by the samples about {:.1} MiB are live, and it is not known which pages they are on",
            live as f64 / f64::from(1 << 20)
        );
        let lacks = Text::from(lacks.as_str());
        let division = Division { tick: newest.record.tick, lacks, ..Division::default() };
        self.session.stats.set_divided(&division);
        newest.division = Some(Pending::known(division));
    }

    /// Keeps account of the pages on which blocks are freed if snapshots are to be divided by the
    /// live blocks.
    pub(super) fn track_freed(&mut self) {
        let options = &self.session.options;
        let is_needed = options.mode == Mode::Profile && options.sample_bytes == 0;
        let freed = self.heap.freed();
        if !is_needed {
            *freed = None;
        } else if freed.is_none() {
            *freed = Some(Covered::growing(u64::from(self.session.process.page_size), MAX_GROUPS));
            let is_start = self.last_tick == self.session.process.start_tick && !self.session.resumed;
            self.residency.freed_since_tick = if is_start { 0 } else { self.session.clock.now() };
        }
    }

    /// Writes the state of a process without events now, or when the newest snapshot of its pages
    /// can be divided. `on_written` is called then.
    pub(super) fn write_requested(&mut self, on_written: Callback, out: &mut dyn FnMut(WriteJob)) {
        self.residency.requests.push(on_written);
        if self.residency.undivided.is_none() {
            self.answer_requests(out);
        }
    }

    fn answer_requests(&mut self, out: &mut dyn FnMut(WriteJob)) {
        if let Some(on_written) = self.take_requests() {
            let snapshot = self.snapshot(None, true);
            out(self.write_job(snapshot, Some(on_written)));
        }
    }

    /// Returns a function that calls all that wait until the state is written.
    pub(super) fn take_requests(&mut self) -> Option<Callback> {
        let requests = std::mem::take(&mut self.residency.requests);
        (!requests.is_empty()).then(|| Callback::new(move || requests.into_iter().for_each(Callback::call)))
    }

    /// Notes that all events up to `limit` are known: the snapshots up to then can be divided.
    #[inline]
    pub(super) fn divide_until(&mut self, limit: u64, out: &mut dyn FnMut(WriteJob)) {
        let Some((_, ticks)) = &mut self.residency.undivided else { return };
        *ticks = 0;
        if self.residency.snapshots.back().is_some_and(|newest| middle(&newest.record) <= limit) {
            self.divide_newest();
            self.answer_requests(out);
        }
    }

    /// Divides a snapshot that has waited long enough for events.
    pub(super) fn tick_division(&mut self, out: &mut dyn FnMut(WriteJob)) {
        let Some((_, ticks)) = &mut self.residency.undivided else { return };
        *ticks += 1;
        if *ticks > MAX_TICKS {
            self.divide_newest();
            self.answer_requests(out);
        }
    }

    /// Passes the newest snapshot to the thread that divides, with the blocks of its time.
    #[cold]
    fn divide_newest(&mut self) {
        let Some((divider, _)) = self.residency.undivided.take() else { return };
        let freed_since_tick = self.residency.freed_since_tick;
        let Some(newest) = self.residency.snapshots.back_mut() else { return };
        let Some(freed) = self.heap.freed().as_mut() else { return };
        if freed.groups() >= MAX_GROUPS
            && let Ok(runs) = newest.record.runs()
        {
            freed.retain(&runs);
        }
        let begun = Instant::now();
        let freed = freed.clone();
        let BlocksAt { indexes, changes, .. } = self.heap.blocks_at(middle(&newest.record));
        let blocks = Blocks { indexes, changes, freed };
        tracing::debug!("live blocks shared with the division in {:?}", begun.elapsed());
        let (session, snapshot) = (Arc::clone(&self.session), Arc::clone(&newest.record));
        newest.division = Some(divider.divide(Job { session, snapshot, blocks, freed_since_tick }));
    }

    /// Adds the snapshots to the records of a tape. Returns the divisions that are not done yet,
    /// each with its index among the records. After the last records of a segment nothing is waited
    /// for.
    pub(super) fn add_residency(&mut self, records: &mut Vec<TapeRecord>, is_last: bool) -> Vec<(usize, Pending)> {
        if is_last {
            self.divide_newest();
        }
        let mut pending = Vec::new();
        for Snapshot { record, division } in &self.residency.snapshots {
            records.push(TapeRecord::Residency(Residency::clone(record)));
            let Some(division) = division else { continue };
            match division.wait(Duration::ZERO) {
                Some(division) => records.push(TapeRecord::Division(Division::clone(&division))),
                None => pending.push((records.len(), division.clone())),
            }
        }
        pending
    }
}

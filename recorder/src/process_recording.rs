//! The digest of one process: translates ordered records to trace, tape and profile.

mod carried_over;
mod code;
mod finish;
mod inheritance;
mod open_chunk;
mod sample_weights;
mod segments;
mod symbols;
mod threads;

pub use segments::{ProcessCommand, View, ViewFrame, ViewSite};

use crate::batch::{Batch, RunningTimestamp, Step};
use crate::chunk_journal::ChunkJournal;
use crate::index::MAX_SIZE;
use crate::live::{Call, Done, Effect, Inheritance, Kind, Live, entry};
use crate::options::{Mode, Options};
use crate::profile::{Amount, CountedBlock, Profile};
use crate::session::{Session, SessionId};
use crate::slots::EventCounts;
use crate::stacks::Stacks;
use crate::store::WriteJob;
use crate::trace::{Chunk, Trace};
use formats::recording::Accounting;
use formats::tape::{self, Account, Accounts, Loss, Note, Record as TapeRecord, Summary};
use open_chunk::Journaled;
use sample_weights::{RecordFilter, SampleWeights};
use segments::{Beginning, Segments};
use std::sync::Arc;
use std::time::{Duration, Instant};
use threads::Threads;
use wire::{Op, Record};

/// Number of calls that are processed together: their memory is prefetched, and their data stays in
/// the nearest cache.
const BATCH_CALLS: usize = 64;
/// Maximum number of events of a chunk.
const CHUNK_EVENTS: u64 = 1 << 17;
/// Maximum time that an event waits for its chunk to be finished.
const CHUNK_TIME: Duration = Duration::from_secs(1);
/// Time between two summaries with accounts in the tape.
const SUMMARY_TIME: Duration = Duration::from_secs(10);
/// Number of events after which a summary is written.
const SUMMARY_EVENTS: u64 = 1 << 20;
/// Minimum number of events between summaries for each site: a row of a summary takes about 12
/// bytes, so summaries take at most a fifth of a byte per event.
const SITE_EVENTS: u64 = 64;
/// Maximum number of notes of a file that is written as a whole.
const MAX_NOTES: usize = 64;
/// Time between two profiles.
const PROFILE_TIME: Duration = Duration::from_secs(30);
/// Minimum time between two summaries, and two profiles, for each site: summaries (12 bytes per
/// row) stay below 64 KiB per second, profiles (184) below 1 MiB.
const SITE_TIME: Duration = Duration::from_micros(183);

/// Returns the number of bytes that a sampled block represents: its size divided by the probability
/// that a block of this size contains a sampling point, so that sums are unbiased. Without sampling
/// this is its size.
fn weight_of(size: u64, mean: u64) -> u64 {
    if mean == 0 {
        return size;
    }
    let gaps = size.max(1) as f64 / mean as f64;
    (size.max(1) as f64 / -(-gaps).exp_m1()).round() as u64
}

/// What was not written since the last events.
#[derive(Clone, Copy, Debug, Default)]
struct Unwritten {
    summary: bool,
    profile: bool,
}

/// A thread of the process.
#[derive(Clone, Debug, Default)]
pub struct Thread {
    recorded: u64,
    /// Number of recorded events that are in finished chunks.
    in_finished_chunks: u64,
    counts: EventCounts,
    /// Counts that earlier segments contain.
    reported_before: EventCounts,
    /// Number of records that were skipped on purpose: the process is to be dormant, or sampled,
    /// and the thread has not noticed it yet.
    skipped: u64,
    /// Mean number of bytes between samples, and the mean after the next event.
    mean: u64,
    next_mean: Option<u64>,
    identity: Option<tape::Thread>,
    /// Number of dropped events in gaps: those that the ring reported, and at the thread's end the
    /// rest.
    dropped: u64,
    last_tick: u64,
    /// A gap without an end: number of events, tick before it.
    gap: Option<(u64, u64)>,
    /// Whether the thread has ended.
    is_over: bool,
}

impl Thread {
    /// Returns the accounting of the thread in this segment. Events are lost when a gap contains
    /// them, so that the accounts and the list of gaps agree at any time. Further lost events of
    /// the thread will be in a later gap, of this segment or the next.
    fn account(&self, thread: u32) -> Account {
        let Thread { recorded, counts, dropped, reported_before, skipped, .. } = self;
        let (emitted, lost) =
            (counts.emitted.saturating_sub(reported_before.emitted), dropped.saturating_sub(reported_before.lost));
        let sampled_out = counts.sampled_out.saturating_sub(reported_before.sampled_out).saturating_add(*skipped);
        Account { thread, emitted, recorded: *recorded, lost, sampled_out }
    }

    /// Returns the number of dropped events that no gap contains yet.
    fn unreported(&self) -> u64 {
        self.counts.lost.saturating_sub(self.dropped)
    }
}

/// The recording of one process, in the digest.
#[derive(Debug)]
pub struct ProcessRecording {
    session: Arc<Session>,
    stacks: Stacks,
    live: Live,
    /// Blocks for forked children that have not attached yet, by the tick of the fork.
    inheritances: Vec<(u64, Inheritance)>,
    profile: Profile,
    trace: Trace,
    threads: Threads,
    /// The amounts that sampled blocks represent; `None` while every event is recorded.
    sample_weights: Option<SampleWeights>,
    segments: Segments,
    names: code::Names,
    /// Number of announced modules whose files were opened.
    opened_modules: usize,
    /// Notes for files that are written as a whole.
    notes: Vec<Note>,
    calls: Vec<Call>,
    effects: Vec<Effect>,
    /// Tape records before the next chunk.
    before: Vec<TapeRecord>,
    /// The journal of the open chunk, and what it contains.
    chunk_journal: ChunkJournal,
    journaled: Journaled,
    last_tick: u64,
    /// When the first event of the chunk was read; `None` when there is none.
    since: Option<Instant>,
    clock_written: Option<Instant>,
    summary_written: Instant,
    profile_written: Instant,
    /// What was not written since the last events.
    unwritten: Unwritten,
    /// Number of events in the chunks after the last summary.
    events_since_summary: u64,
    size_at_chunk_start: (u64, u64),
    /// The accounting of the segments before this one.
    earlier_segments: Accounting,
    /// How the segment begins.
    beginning: Beginning,
    /// Whether the process was handed over to the next daemon, which counts all later events.
    is_handed_over: bool,
}

impl ProcessRecording {
    /// Starts the recording of a session.
    pub fn new(session: Arc<Session>) -> ProcessRecording {
        let (process, options) = (&session.process, &session.options);
        session.mapping.releases().keep_events(options.mode.has_events());
        ProcessRecording {
            sample_weights: SampleWeights::of(options),
            segments: Segments::default(),
            names: code::Names::default(),
            opened_modules: 0,
            notes: Vec::new(),
            stacks: Stacks::new(Arc::clone(&session.mapping), &process.exe.0, &process.cwd.0),
            live: Live::default(),
            inheritances: Vec::new(),
            profile: Profile::default(),
            trace: trace_of(options),
            threads: Threads::new(Thread { mean: options.sample_bytes, ..Thread::default() }),
            calls: Vec::with_capacity(BATCH_CALLS),
            effects: Vec::with_capacity(2 * BATCH_CALLS),
            before: Vec::new(),
            chunk_journal: ChunkJournal::new(&session),
            journaled: Journaled::default(),
            last_tick: process.start_tick,
            since: None,
            clock_written: None,
            summary_written: Instant::now(),
            profile_written: Instant::now(),
            unwritten: Unwritten::default(),
            events_since_summary: 0,
            earlier_segments: Accounting::default(),
            beginning: Beginning::of(&session),
            is_handed_over: false,
            size_at_chunk_start: (0, 0),
            session,
        }
    }

    /// Returns the number of the session.
    pub fn id(&self) -> SessionId {
        self.session.id
    }

    /// Writes the start of the tape, so that it identifies the process in any case.
    pub fn open(&mut self, out: &mut dyn FnMut(WriteJob)) {
        if self.session.options.mode.has_events() {
            self.before.push(self.segment());
        }
        if self.session.options.mode.has_events() && !self.session.options.folds {
            self.write_clock();
            let mut write_job = WriteJob::of(&self.session);
            write_job.before = std::mem::take(&mut self.before);
            out(write_job);
        }
    }

    /// Notes a new thread, or its name.
    pub fn thread(&mut self, number: u32, tid: u32, name: Vec<u8>, first_tick: u64) {
        self.add_thread_if_new(number);
        let thread = tape::Thread { number, tid, name: name.into(), first_tick };
        if self.session.options.mode.has_events() {
            self.before.push(TapeRecord::Thread(thread.clone()));
        }
        self.threads[number as usize].identity = Some(thread);
    }

    fn add_thread_if_new(&mut self, thread: u32) {
        let mean = self.session.options.sample_bytes;
        self.threads.add_if_new(thread as usize, || Thread { mean, ..Thread::default() });
    }

    /// Processes ordered records. Passes the write jobs that are ready to `out`; their memory is
    /// from `spare`.
    pub fn batch(&mut self, batch: &Batch, spare: &mut dyn FnMut() -> Chunk, out: &mut dyn FnMut(WriteJob)) {
        let mut from = 0;
        if !batch.records.is_empty() {
            self.last_tick = self.last_tick.max(batch.floor.min(batch.limit));
        }
        for run in &batch.runs {
            let records = &batch.records[from..][..run.records as usize];
            from += records.len();
            self.add_thread_if_new(run.thread);
            let mut running = RunningTimestamp { timestamp: run.timestamp };
            let mut rest = records;
            while !rest.is_empty() {
                rest = self.read(rest, run.thread, &mut running, batch.limit);
                if self.calls.len() >= BATCH_CALLS {
                    self.process_calls(batch.many_threads);
                    if self.trace.events() >= CHUNK_EVENTS {
                        // The rest of the batch goes to the journal of the next chunk.
                        self.stacks.announce(&mut self.before);
                        self.keep_chunk(false);
                        self.finish_chunk(spare(), out);
                        if self.events_since_summary >= SUMMARY_EVENTS.max(SITE_EVENTS * u64::from(self.stacks.last()))
                        {
                            self.write_summary(out);
                        }
                    }
                }
            }
        }
        self.process_calls(batch.many_threads);
        // A call that waits is not in the journal.
        self.settle(batch.limit);
        self.open_modules();
        if self.since.is_none() && self.trace.events() > 0 {
            self.since = Some(Instant::now());
        }
    }

    /// Applies the calls that need not wait any more: all future calls are after `tick`.
    fn settle(&mut self, tick: u64) {
        if self.live.settle(tick, &mut self.effects) {
            self.prepare_events();
            self.add_effects();
        }
    }

    /// Reads calls until enough are collected. Returns the remaining records.
    fn read<'a>(
        &mut self,
        records: &'a [Record],
        thread: u32,
        running: &mut RunningTimestamp,
        limit: u64,
    ) -> &'a [Record] {
        let free_stacks = self.session.options.free_stacks;
        let (mut mean, mut filter) = self.filter(thread);
        let (mut extended, mut recorded, mut last_tick) = (None, 0, self.last_tick);
        let mut rest = records.iter();
        let (mut has_gap, mut thread_tick) = {
            let known = &self.threads[thread as usize];
            (known.gap.is_some(), known.last_tick)
        };
        while self.calls.len() < BATCH_CALLS
            && let Some(record) = rest.next()
        {
            let op = record.op();
            if running.step(*record) == Step::Prefix {
                if op == Op::EXTENDED {
                    extended = Some((record.body, record.extended_size().min(MAX_SIZE)));
                }
                continue;
            }
            if op == Op::DROPPED {
                self.note_dropped(thread, record.body, thread_tick);
                has_gap = true;
                continue;
            }
            if op == Op::SAMPLE_INTERVAL {
                self.interval(thread, *record);
                (mean, filter) = self.filter(thread);
                continue;
            }
            let tick = running.timestamp.min(limit).max(last_tick);
            (last_tick, thread_tick) = (tick, tick);
            let (address, size) = extended.take().unwrap_or((record.address(), record.size()));
            if filter != RecordFilter::All {
                (mean, filter) = self.filter_record(filter, thread, op, address, tick);
                continue;
            }
            self.live.prefetch(address);
            let has_site = op.is_alloc() || op.is_resize() || free_stacks;
            let site = if has_site { self.stacks.site(record.stack(), &mut self.before) } else { 0 };
            self.profile.prefetch(site);
            recorded += u64::from(op.is_event());
            let weight = weight_of(size, mean);
            self.calls.push(Call { op, thread, site, address, size, weight, tick });
            if mean != 0 {
                (mean, filter) = self.next_interval(thread, mean, filter);
            }
            if has_gap {
                has_gap = false;
                self.end_gap(thread, tick);
            }
        }
        self.last_tick = last_tick;
        let known = &mut self.threads[thread as usize];
        known.recorded += recorded;
        known.last_tick = thread_tick;
        rest.as_slice()
    }

    #[cold]
    fn note_dropped(&mut self, thread: u32, events: u64, last_tick: u64) {
        let known = &mut self.threads[thread as usize];
        known.dropped = known.dropped.saturating_add(events);
        let (before, from) = known.gap.unwrap_or((0, last_tick));
        known.gap = Some((before.saturating_add(events), from));
    }

    /// Reports the drops that no record in the ring will report, since the thread has ended or has
    /// no ring.
    fn report_drops(&mut self, thread: u32, to_tick: u64) {
        let Some(known) = self.threads.get_mut(thread as usize) else { return };
        let (events, last_tick) = (known.unreported(), known.last_tick);
        if events > 0 {
            self.note_dropped(thread, events, last_tick);
        }
        self.end_gap(thread, to_tick);
    }

    #[cold]
    fn end_gap(&mut self, thread: u32, to_tick: u64) {
        if let Some((events, from_tick)) = self.threads[thread as usize].gap.take() {
            self.before.push(TapeRecord::Loss(Loss { thread, events, from_tick, to_tick }));
        }
    }

    /// Applies the calls read so far to the live blocks, the profile and the trace.
    fn process_calls(&mut self, many_threads: bool) {
        if self.calls.is_empty() {
            return;
        }
        self.prepare_events();
        let calls = std::mem::take(&mut self.calls);
        let has_events = self.session.options.mode.has_events();
        for call in &calls {
            let done = self.live.apply(call, many_threads, &mut self.effects);
            if self.sample_weights.is_some() {
                self.effects.extend(done.effect(call));
                self.add_effects();
                continue;
            }
            match done {
                Done::Alloc(index) => {
                    self.profile.alloc(call.site, call.size, call.tick);
                    if has_events {
                        self.trace.alloc(call, entry(call.op), index);
                    }
                }
                Done::Free(old) => {
                    self.profile.free(old.site, old.size);
                    if has_events {
                        self.trace.free(call, entry(call.op), old.index, Some((old.site, old.size)));
                    }
                }
                Done::Resize(old) => {
                    self.profile.resize((old.site, old.size), call.site, call.size, call.tick);
                    if has_events {
                        self.trace.resize(call, entry(call.op), old.index, Some((old.site, old.size)));
                    }
                }
                Done::Else => self.add_effects(),
            }
        }
        self.calls = calls;
        self.calls.clear();
    }

    /// Prepares the addition of events: the sums at the start of a chunk, and capacity for their
    /// sites.
    fn prepare_events(&mut self) {
        if self.trace.events() == 0 {
            let totals = self.profile.totals();
            self.size_at_chunk_start = (totals.live_blocks, totals.live_bytes);
            self.profile.most_bytes = totals.live_bytes;
        }
        self.profile.grow(self.stacks.last());
        self.unwritten = Unwritten { summary: true, profile: true };
    }

    /// Adds the collected effects to profile and trace.
    fn add_effects(&mut self) {
        let has_events = self.session.options.mode.has_events();
        for effect in self.effects.drain(..) {
            let Effect { kind, entry, index, old, call } = effect;
            let (profile, trace) = (&mut self.profile, &mut self.trace);
            let was = match kind {
                Kind::Free | Kind::Resize | Kind::Implied => {
                    sample_weights::block_freed(&mut self.sample_weights, &old)
                }
                _ => Amount::default(),
            };
            let now = match kind {
                Kind::Alloc | Kind::Resize | Kind::ResizeUnknown => {
                    sample_weights::block_allocated(&mut self.sample_weights, index, call.size, call.weight)
                }
                _ => Amount::default(),
            };
            match kind {
                Kind::Alloc => profile.alloc_as(call.site, call.size, now, call.tick),
                Kind::Free => profile.free_as(old.site, old.size, was),
                Kind::Resize => profile.resize_as(
                    CountedBlock { site: old.site, size: old.size, amount: was },
                    CountedBlock { site: call.site, size: call.size, amount: now },
                    call.tick,
                ),
                Kind::ResizeUnknown => profile.resize_unknown(call.site, call.size, now, call.tick),
                Kind::FreeUnknown | Kind::Unmatched => profile.free_unknown(),
                Kind::Implied => profile.free_implied(old.site, old.size, was),
                Kind::Inherited => {}
            }
            if !has_events {
                continue;
            }
            match kind {
                Kind::Alloc | Kind::Inherited => trace.alloc(&call, entry, index),
                Kind::Resize => trace.resize(&call, entry, index, Some((old.site, was.bytes))),
                Kind::ResizeUnknown => trace.resize(&call, entry, index, None),
                Kind::Free | Kind::Implied => trace.free(&call, entry, index, Some((old.site, was.bytes))),
                Kind::FreeUnknown => trace.free(&call, entry, index, None),
                Kind::Unmatched => trace.unmatched(&call, entry),
            }
        }
    }

    fn write_clock(&mut self) {
        let anchor = self.session.clock.anchor();
        let (tick, unix_ns, monotonic_ns) = (anchor.tick, anchor.unix_ns, anchor.monotonic_ns);
        self.before.push(TapeRecord::Clock(tape::Clock { tick, unix_ns, monotonic_ns }));
        self.clock_written = Some(Instant::now());
    }

    /// Finishes a chunk that has waited long enough, and writes what is due. Without new events
    /// nothing is written.
    pub fn tick(&mut self, spare: &mut dyn FnMut() -> Chunk, out: &mut dyn FnMut(WriteJob)) {
        self.publish_stats();
        if !self.session.options.mode.has_events() {
            return self.tick_profile(out);
        }
        self.tick_flight(spare, out);
        if self.since.is_some_and(|since| since.elapsed() >= CHUNK_TIME) {
            self.finish_chunk(spare(), out);
        }
        let of_sites = SITE_TIME * self.stacks.last();
        if self.unwritten.summary && self.summary_written.elapsed() >= SUMMARY_TIME.max(of_sites) {
            self.finish_chunk(spare(), out);
            self.write_summary(out);
        }
        if self.unwritten.profile && self.profile_written.elapsed() >= PROFILE_TIME.max(of_sites) {
            let mut write_job = WriteJob::of(&self.session);
            write_job.profile = Some(self.profile.to_mptl(self.stacks.sites()));
            out(write_job);
            (self.unwritten.profile, self.profile_written) = (false, Instant::now());
        }
    }

    /// Writes accounts and summary after the last chunk. The counts of the threads were read at
    /// another time, so the accounts contain what was read from the rings.
    fn write_summary(&mut self, out: &mut dyn FnMut(WriteJob)) {
        let mut write_job = WriteJob::of(&self.session);
        write_job.after = self.code_so_far();
        write_job.after.extend([self.accounts_record_so_far(), self.summary()]);
        out(write_job);
        (self.unwritten.summary, self.summary_written, self.events_since_summary) = (false, Instant::now(), 0);
    }

    /// Updates the event counts of a thread.
    pub fn counts(&mut self, thread: u32, counts: EventCounts) {
        if let Some(known) = self.threads.get_mut(thread as usize) {
            known.counts = counts;
        }
        if thread == 0 {
            let now = self.last_tick;
            self.report_drops(thread, now);
        }
    }

    /// Notes the end of a thread.
    pub fn thread_ended(&mut self, thread: u32, counts: EventCounts) {
        self.counts(thread, counts);
        self.count_unpublished(thread);
        self.report_drops(thread, self.last_tick);
        if let Some(known) = self.threads.get_mut(thread as usize) {
            known.is_over = thread != 0;
        }
        self.prepare_events();
        self.live.end_thread(thread, self.last_tick, &mut self.effects);
        self.add_effects();
    }

    /// EventCounts the event that a thread could not publish because it was ended in a call
    /// (killed, cancelled) as lost.
    fn count_unpublished(&mut self, thread: u32) {
        if let Some(known) = self.threads.get_mut(thread as usize) {
            let before = known.reported_before;
            let emitted = known.counts.emitted.saturating_sub(before.emitted);
            let accounted =
                known.recorded + known.skipped + known.counts.sampled_out.saturating_sub(before.sampled_out);
            known.counts.lost = known.counts.lost.max(before.lost.saturating_add(emitted.saturating_sub(accounted)));
        }
    }

    /// Adds a note for the readers of the recording.
    pub fn note(&mut self, text: String) {
        let note = Note { tick: self.last_tick, text: text.into() };
        if self.session.options.mode.has_events() {
            self.before.push(TapeRecord::Note(note));
        } else if self.notes.len() < MAX_NOTES {
            self.notes.push(note);
        }
    }

    /// Returns the accounting of this segment, as its accounts state it.
    fn sums(&self) -> Accounting {
        let mut sums = Accounting::default();
        // A process whose mode is off is not recorded: the events that it dropped before it read
        // its mode are not lost.
        if self.session.options.mode == Mode::Off {
            return sums;
        }
        for Account { recorded, lost, sampled_out, .. } in self.accounts() {
            sums.add(Accounting { emitted: recorded + lost + sampled_out, recorded, lost, sampled_out });
        }
        sums
    }

    /// Returns the accounting of all segments so far, including the drops that no gap contains yet.
    fn sums_of_all(&self) -> Accounting {
        let mut sums = self.earlier_segments;
        sums.add(self.sums());
        let unreported = self.threads.iter().fold(0u64, |sum, thread| sum.saturating_add(thread.unreported()));
        sums.add(Accounting { emitted: unreported, lost: unreported, ..Accounting::default() });
        sums
    }

    /// Returns the accounts of this segment.
    fn accounts(&self) -> impl Iterator<Item = Account> {
        self.threads.accounts()
    }

    fn accounts_record(&self) -> TapeRecord {
        let accounts = self.accounts().filter(|account| account.thread != 0 || account.emitted != 0).collect();
        TapeRecord::Accounts(Accounts { accounts })
    }

    fn summary(&self) -> TapeRecord {
        let (excused, implied) = (self.live.excused, self.live.inherited_implied);
        let mut totals = self.profile.totals().clone();
        totals.unknown_frees = self.live.unknown;
        totals.frees += excused;
        totals.implied_frees = totals.implied_frees - excused + implied;
        (totals.inherited_blocks, totals.inherited_bytes) = self.live.inherited();
        TapeRecord::Summary(Summary { totals, sites: self.profile.site_sums() })
    }
}

fn trace_of(options: &Options) -> Trace {
    Trace::new(options.sample_bytes != 0, options.free_stacks)
}

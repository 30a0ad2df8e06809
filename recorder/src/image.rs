//! The digest of one process image: ordered records in, pieces of trace, tape and profile out.

mod amounts;
mod carried;
mod code;
mod finish;
mod inherits;
mod parts;
mod symbols;
mod threads;

pub use parts::{Tell, View, ViewFrame, ViewSite};

use crate::batch::{Batch, Stamps, Step};
use crate::index::MAX_SIZE;
use crate::live::{Call, Done, Effect, Inheritance, Kind, Live, entry};
use crate::options::{Mode, Options};
use crate::profile::{Amount, Profile};
use crate::session::{Session, SessionId};
use crate::stacks::Stacks;
use crate::store::{Piece, Sums};
use crate::trace::{Chunk, Trace};
use amounts::{Follow, Standing};
use formats::tape::{self, Account, Accounts, Loss, Note, Record as TapeRecord, Summary};
use parts::Parts;
use std::sync::Arc;
use std::time::{Duration, Instant};
use threads::Threads;
use wire::{Op, Record};

/// Calls that go through the stages together: their memory is asked for ahead, and what they need
/// stays in the nearest cache.
const GROUP: usize = 64;
/// Events of a chunk.
const CHUNK_EVENTS: u64 = 1 << 17;
/// Longest time that an event waits for its chunk to be cut.
const CHUNK_TIME: Duration = Duration::from_secs(1);
/// Time between ledgers and summaries in the tape.
const SUMMARY_TIME: Duration = Duration::from_secs(10);
/// The maximum number of events between summaries, and the number for each site: a row of a summary
/// takes some 12 bytes, so all of them a fifth of a byte an event at most.
const SUMMARY_EVENTS: u64 = 1 << 20;
const SITE_EVENTS: u64 = 64;
/// Notes of a file that is written as a whole.
const MOST_NOTES: usize = 64;
/// Time between profiles.
const PROFILE_TIME: Duration = Duration::from_secs(30);
/// Of both, so much for each site at least: summaries (12 bytes a row) stay below 64 KiB a second,
/// profiles (184) below 1 MiB.
const SITE_TIME: Duration = Duration::from_micros(183);

/// The bytes that a sampled block stands for: its size over the chance that a block of this size
/// holds a sampling point, so that sums are unbiased. Without sampling its size.
fn weight_of(size: u64, mean: u64) -> u64 {
    if mean == 0 {
        return size;
    }
    let gaps = size.max(1) as f64 / mean as f64;
    (size.max(1) as f64 / -(-gaps).exp_m1()).round() as u64
}

/// What the control words of a thread said: emitted, lost, sampled out.
pub type Counts = (u64, u64, u64);

/// What is known of a thread.
#[derive(Clone, Debug, Default)]
pub struct Thread {
    recorded: u64,
    /// Of these, in chunks that were cut.
    cut: u64,
    counts: Counts,
    /// Of the counts, what earlier parts hold.
    given: Counts,
    /// Records that were left out on purpose: the process is to be dormant, or sampled, and the
    /// thread does not know it yet.
    passed: u64,
    /// Mean bytes between its samples, and the mean from the event after the next one on.
    mean: u64,
    next_mean: Option<u64>,
    who: Option<tape::Thread>,
    /// Dropped events in gaps: those that the ring reported, and at the thread's end the rest.
    dropped: u64,
    last_tick: u64,
    /// A mark whose gap has no end yet: events, tick before it.
    gap: Option<(u64, u64)>,
    /// Whether it has ended.
    is_over: bool,
}

impl Thread {
    /// Its accounting in this part. Events are lost when a gap holds them, so that the ledger and
    /// the list of gaps agree at any time; what the thread counts beyond that will be in a gap to
    /// come, of this part or the next.
    fn account(&self, thread: u32) -> Account {
        let Thread { recorded, counts: (emitted, _, sampled_out), dropped, given, passed, .. } = self;
        let (emitted, lost) = (emitted.saturating_sub(given.0), dropped.saturating_sub(given.1));
        let sampled_out = sampled_out.saturating_sub(given.2).saturating_add(*passed);
        Account { thread, emitted, recorded: *recorded, lost, sampled_out }
    }

    /// Dropped events that no gap holds yet.
    fn unreported(&self) -> u64 {
        self.counts.1.saturating_sub(self.dropped)
    }
}

/// One image.
#[derive(Debug)]
pub struct Image {
    session: Arc<Session>,
    stacks: Stacks,
    live: Live,
    /// What is kept for children that have not come yet, by the tick of their forks.
    legacies: Vec<(u64, Inheritance)>,
    profile: Profile,
    trace: Trace,
    threads: Threads,
    /// What sampled blocks stand for; `None` while every event is recorded.
    standing: Option<Standing>,
    parts: Parts,
    names: code::Names,
    /// Announcements of modules whose files were opened.
    opened: usize,
    /// Notes, for files that are written as a whole.
    notes: Vec<Note>,
    calls: Vec<Call>,
    effects: Vec<Effect>,
    /// Tape records that come before the next chunk.
    before: Vec<TapeRecord>,
    last_tick: u64,
    /// When the first event of the chunk was seen; `None` when there is none.
    since: Option<Instant>,
    clock_told: Option<Instant>,
    summary_told: Instant,
    profile_told: Instant,
    /// Whether events came since the last summary, and the last profile.
    news: (bool, bool),
    /// Events in the chunks behind the last summary.
    unsummed: u64,
    size_now: (u64, u64),
    /// The accounting of the parts before this one.
    earlier: Sums,
    /// The process goes on, and is the next daemon's: what it counts beyond what was read is
    /// counted there.
    is_left: bool,
}

impl Image {
    /// Starts the digest of a session.
    pub fn new(session: Arc<Session>) -> Image {
        let (process, options) = (&session.process, &session.options);
        Image {
            standing: Standing::of(options),
            parts: Parts::default(),
            names: code::Names::default(),
            opened: 0,
            notes: Vec::new(),
            stacks: Stacks::new(Arc::clone(&session.mapping), &process.exe.0, &process.cwd.0),
            live: Live::default(),
            legacies: Vec::new(),
            profile: Profile::default(),
            trace: trace_of(options),
            threads: Threads::new(Thread { mean: options.sample_bytes, ..Thread::default() }),
            calls: Vec::with_capacity(GROUP),
            effects: Vec::with_capacity(2 * GROUP),
            before: Vec::new(),
            last_tick: process.start_tick,
            since: None,
            clock_told: None,
            summary_told: Instant::now(),
            profile_told: Instant::now(),
            news: (false, false),
            unsummed: 0,
            earlier: Sums::default(),
            is_left: false,
            size_now: (0, 0),
            session,
        }
    }

    /// The session that this is the digest of.
    pub fn id(&self) -> SessionId {
        self.session.id
    }

    /// The tape is there from the start: whatever happens next, it says which process this was.
    pub fn open(&mut self, out: &mut dyn FnMut(Piece)) {
        if self.session.options.mode.has_events() && !self.session.options.folds {
            self.tell_clock();
            let mut piece = Piece::of(&self.session);
            piece.before = std::mem::take(&mut self.before);
            out(piece);
        }
    }

    /// A thread was first seen, or its name became known.
    pub fn thread(&mut self, number: u32, tid: u32, name: Vec<u8>, first_tick: u64) {
        self.meet(number);
        let thread = tape::Thread { number, tid, name: name.into(), first_tick };
        if self.session.options.mode.has_events() {
            self.before.push(TapeRecord::Thread(thread.clone()));
        }
        self.threads[number as usize].who = Some(thread);
    }

    fn meet(&mut self, thread: u32) {
        let mean = self.session.options.sample_bytes;
        self.threads.meet(thread as usize, || Thread { mean, ..Thread::default() });
    }

    /// Ordered records. Gives the pieces that became ready, made in spare memory.
    pub fn batch(&mut self, batch: &Batch, spare: &mut dyn FnMut() -> Chunk, out: &mut dyn FnMut(Piece)) {
        let mut from = 0;
        for run in &batch.runs {
            let records = &batch.records[from..][..run.records as usize];
            from += records.len();
            self.meet(run.thread);
            let mut stamps = Stamps { stamp: run.stamp };
            let mut rest = records;
            while !rest.is_empty() {
                rest = self.read(rest, run.thread, &mut stamps, batch.limit);
                if self.calls.len() >= GROUP {
                    self.digest(batch.many_threads);
                    if self.trace.events() >= CHUNK_EVENTS {
                        self.cut(spare(), out);
                        if self.unsummed >= SUMMARY_EVENTS.max(SITE_EVENTS * u64::from(self.stacks.last())) {
                            self.sum_up(out);
                        }
                    }
                }
            }
        }
        self.digest(batch.many_threads);
        self.open_modules();
        if self.since.is_none() && self.trace.events() > 0 {
            self.since = Some(Instant::now());
        }
    }

    /// Reads calls until a group is full; gives the records that are left.
    fn read<'a>(&mut self, records: &'a [Record], thread: u32, stamps: &mut Stamps, limit: u64) -> &'a [Record] {
        let free_stacks = self.session.options.free_stacks;
        let (mut mean, mut follow) = self.follow(thread);
        let (mut wide, mut recorded, mut last_tick) = (None, 0, self.last_tick);
        let mut rest = records.iter();
        let (mut has_gap, mut own_tick) = {
            let known = &self.threads[thread as usize];
            (known.gap.is_some(), known.last_tick)
        };
        while self.calls.len() < GROUP
            && let Some(record) = rest.next()
        {
            let op = record.op();
            if stamps.step(*record) == Step::Prefix {
                if op == Op::EXTENDED {
                    wide = Some((record.body, record.extended_size().min(MAX_SIZE)));
                }
                continue;
            }
            if op == Op::DROPPED {
                self.lost(thread, record.body, own_tick);
                has_gap = true;
                continue;
            }
            if op == Op::SAMPLE_INTERVAL {
                self.interval(thread, *record);
                (mean, follow) = self.follow(thread);
                continue;
            }
            let tick = stamps.stamp.min(limit).max(last_tick);
            (last_tick, own_tick) = (tick, tick);
            let (address, size) = wide.take().unwrap_or((record.address(), record.size()));
            if follow != Follow::All {
                (mean, follow) = self.stray(follow, thread, op, address, tick);
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
                (mean, follow) = self.next_interval(thread, mean, follow);
            }
            if has_gap {
                has_gap = false;
                self.end_gap(thread, tick);
            }
        }
        self.last_tick = last_tick;
        let known = &mut self.threads[thread as usize];
        known.recorded += recorded;
        known.last_tick = own_tick;
        rest.as_slice()
    }

    #[cold]
    fn lost(&mut self, thread: u32, events: u64, last_tick: u64) {
        let known = &mut self.threads[thread as usize];
        known.dropped = known.dropped.saturating_add(events);
        let (before, from) = known.gap.unwrap_or((0, last_tick));
        known.gap = Some((before.saturating_add(events), from));
    }

    /// Reports the drops that no record in the ring will report: the thread is over, or has none.
    fn report_drops(&mut self, thread: u32, to_tick: u64) {
        let Some(known) = self.threads.get_mut(thread as usize) else { return };
        let (events, last_tick) = (known.unreported(), known.last_tick);
        if events > 0 {
            self.lost(thread, events, last_tick);
        }
        self.end_gap(thread, to_tick);
    }

    #[cold]
    fn end_gap(&mut self, thread: u32, to_tick: u64) {
        if let Some((events, from_tick)) = self.threads[thread as usize].gap.take() {
            self.before.push(TapeRecord::Loss(Loss { thread, events, from_tick, to_tick }));
        }
    }

    /// Takes the calls read so far through index, profile and trace.
    fn digest(&mut self, many_threads: bool) {
        if self.calls.is_empty() {
            return;
        }
        self.begin();
        let calls = std::mem::take(&mut self.calls);
        let has_events = self.session.options.mode.has_events();
        for call in &calls {
            let done = self.live.apply(call, many_threads, &mut self.effects);
            if self.standing.is_some() {
                self.effects.extend(done.effect(call));
                self.account();
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
                Done::Else => self.account(),
            }
        }
        self.calls = calls;
        self.calls.clear();
    }

    /// Before events are added: the sums at the start of a chunk, and room for their sites.
    fn begin(&mut self) {
        if self.trace.events() == 0 {
            let totals = self.profile.totals();
            self.size_now = (totals.live_blocks, totals.live_bytes);
            self.profile.most_bytes = totals.live_bytes;
        }
        self.profile.grow(self.stacks.last());
        self.news = (true, true);
    }

    /// Adds what is not the usual to profile and trace.
    fn account(&mut self) {
        let has_events = self.session.options.mode.has_events();
        for effect in self.effects.drain(..) {
            let Effect { kind, entry, index, old, call } = effect;
            let (profile, trace) = (&mut self.profile, &mut self.trace);
            let was = match kind {
                Kind::Free | Kind::Resize | Kind::Implied => amounts::given(&mut self.standing, &old),
                _ => Amount::default(),
            };
            let now = match kind {
                Kind::Alloc | Kind::Resize | Kind::ForeignResize => {
                    amounts::taken(&mut self.standing, index, call.size, call.weight)
                }
                _ => Amount::default(),
            };
            match kind {
                Kind::Alloc => profile.alloc_as(call.site, call.size, now, call.tick),
                Kind::Free => profile.free_as(old.site, old.size, was),
                Kind::Resize => profile.resize_as((old.site, old.size, was), call.site, call.size, now, call.tick),
                Kind::ForeignResize => profile.resize_foreign(call.site, call.size, now, call.tick),
                Kind::ForeignFree | Kind::Unmatched => profile.free_foreign(),
                Kind::Implied => profile.free_implied(old.site, old.size, was),
                Kind::Inherited => {}
            }
            if !has_events {
                continue;
            }
            match kind {
                Kind::Alloc | Kind::Inherited => trace.alloc(&call, entry, index),
                Kind::Resize => trace.resize(&call, entry, index, Some((old.site, was.bytes))),
                Kind::ForeignResize => trace.resize(&call, entry, index, None),
                Kind::Free | Kind::Implied => trace.free(&call, entry, index, Some((old.site, was.bytes))),
                Kind::ForeignFree => trace.free(&call, entry, index, None),
                Kind::Unmatched => trace.unmatched(&call, entry),
            }
        }
    }

    /// Hands the chunk on.
    fn cut(&mut self, spare: Chunk, out: &mut dyn FnMut(Piece)) {
        let mut piece = Piece::of(&self.session);
        self.stacks.announce(&mut self.before);
        self.stacks.flush(&mut self.before);
        if self.clock_told.is_none_or(|told| told.elapsed() >= CHUNK_TIME) {
            self.tell_clock();
        }
        piece.before = std::mem::take(&mut self.before);
        if self.trace.events() > 0 || self.trace.is_new() {
            self.unsummed += self.trace.events();
            let mut chunk = self.trace.cut(spare);
            (chunk.commit.live_blocks, chunk.commit.live_bytes) = self.size_now;
            chunk.commit.peak_bytes = self.profile.most_bytes;
            for (number, thread) in self.threads.iter_mut().filter(|(_, thread)| thread.cut != thread.recorded) {
                chunk.threads.push((number as u32, thread.recorded - thread.cut));
                thread.cut = thread.recorded;
            }
            piece.chunk = Some(chunk);
        }
        self.since = None;
        out(piece);
    }

    fn tell_clock(&mut self) {
        let anchor = self.session.clock.anchor();
        let (tick, unix_ns, monotonic_ns) = (anchor.tick, anchor.unix_ns, anchor.monotonic_ns);
        self.before.push(TapeRecord::Clock(tape::Clock { tick, unix_ns, monotonic_ns }));
        self.clock_told = Some(Instant::now());
    }

    /// Cuts what has waited long enough, and writes what is due. Nothing new: nothing is written.
    pub fn tick(&mut self, spare: &mut dyn FnMut() -> Chunk, out: &mut dyn FnMut(Piece)) {
        self.tell_stats();
        if !self.session.options.mode.has_events() {
            return self.tick_profile(out);
        }
        self.tick_flight(spare, out);
        if self.since.is_some_and(|since| since.elapsed() >= CHUNK_TIME) {
            self.cut(spare(), out);
        }
        let of_sites = SITE_TIME * self.stacks.last();
        if self.news.0 && self.summary_told.elapsed() >= SUMMARY_TIME.max(of_sites) {
            self.cut(spare(), out);
            self.sum_up(out);
        }
        if self.news.1 && self.profile_told.elapsed() >= PROFILE_TIME.max(of_sites) {
            let mut piece = Piece::of(&self.session);
            piece.profile = Some(self.profile.to_mptl(self.stacks.sites()));
            out(piece);
            (self.news.1, self.profile_told) = (false, Instant::now());
        }
    }

    /// Writes ledger and summary behind the last chunk. What the threads' words say is of another
    /// moment, so what was read is the ledger.
    fn sum_up(&mut self, out: &mut dyn FnMut(Piece)) {
        let mut piece = Piece::of(&self.session);
        piece.after = self.code_so_far();
        piece.after.extend([self.ledger_so_far(), self.summary()]);
        out(piece);
        (self.news.0, self.summary_told, self.unsummed) = (false, Instant::now(), 0);
    }

    /// What the control words of a thread say now.
    pub fn counts(&mut self, thread: u32, counts: Counts) {
        if let Some(known) = self.threads.get_mut(thread as usize) {
            known.counts = counts;
        }
        if thread == 0 {
            let now = self.last_tick;
            self.report_drops(thread, now);
        }
    }

    /// A thread ended.
    pub fn thread_ended(&mut self, thread: u32, counts: Counts) {
        self.counts(thread, counts);
        self.settle(thread);
        self.report_drops(thread, self.last_tick);
        if let Some(known) = self.threads.get_mut(thread as usize) {
            known.is_over = thread != 0;
        }
        self.begin();
        self.live.put_back(thread, self.last_tick, &mut self.effects);
        self.account();
    }

    /// A thread that was ended in the middle of a call (killed, cancelled) had counted an event
    /// that it could not publish: lost.
    fn settle(&mut self, thread: u32) {
        if let Some(known) = self.threads.get_mut(thread as usize) {
            let (emitted, lost, sampled_out) = &mut known.counts;
            let (emitted, given) = (emitted.saturating_sub(known.given.0), known.given);
            let accounted = known.recorded + known.passed + sampled_out.saturating_sub(given.2);
            *lost = (*lost).max(given.1.saturating_add(emitted.saturating_sub(accounted)));
        }
    }

    /// Something that readers should know.
    pub fn note(&mut self, text: String) {
        let note = Note { tick: self.last_tick, text: text.into() };
        if self.session.options.mode.has_events() {
            self.before.push(TapeRecord::Note(note));
        } else if self.notes.len() < MOST_NOTES {
            self.notes.push(note);
        }
    }

    /// The accounting of this part: what its ledger says.
    fn sums(&self) -> Sums {
        let mut sums = Sums::default();
        // Nothing is wanted of a process that is off: what it dropped before it knew is not lost.
        if self.session.options.mode == Mode::Off {
            return sums;
        }
        for Account { recorded, lost, sampled_out, .. } in self.accounts() {
            sums.add(Sums { emitted: recorded + lost + sampled_out, recorded, lost, sampled_out });
        }
        sums
    }

    /// The accounting of all parts so far, with the drops that no gap holds yet.
    fn sums_of_all(&self) -> Sums {
        let mut sums = self.earlier;
        sums.add(self.sums());
        let unreported = self.threads.iter().fold(0u64, |sum, thread| sum.saturating_add(thread.unreported()));
        sums.add(Sums { emitted: unreported, lost: unreported, ..Sums::default() });
        sums
    }

    /// The accounts of this part.
    fn accounts(&self) -> impl Iterator<Item = Account> {
        self.threads.accounts()
    }

    fn ledger(&self) -> TapeRecord {
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

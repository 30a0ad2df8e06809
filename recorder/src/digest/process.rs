//! The digest of one process: turns its ordered records into trace, tape and profile.

mod annotated;
mod carried_mappings;
mod carried_over;
mod code;
mod counts;
mod finish;
mod growth;
mod heap;
mod inheritance;
mod losses;
mod mappings;
mod open_chunk;
mod output;
mod plain_events;
mod residency;
mod sample_weights;
mod schedule;
mod segments;
mod symbols;
mod threads;
mod view;

pub use carried_mappings::path_of as carried_mappings_file;
pub use segments::ProcessCommand;
pub use view::{View, ViewFrame, ViewSite};

use crate::heap::annotations::Annotations;
use crate::heap::index::MAX_SIZE;
use crate::heap::live::Call;
use crate::heap::stacks::Stacks;
use crate::heap::thread_number::ThreadNumber;
use crate::os::clock::Moment;
use crate::rings::batch::{Batch, RunningTimestamp, Step};
use crate::rings::counts::EventCounts;
use crate::session::options::Mode;
use crate::session::traced_process::{Session, SessionId};
use crate::store::trace::Chunk;
use crate::store::writer::{Callback, Content, WriteJob};
use formats::recording::Accounting;
use formats::tape::{self, Account, Accounts, Loss, Mark, Note, Record as TapeRecord};
use growth::Growth;
use heap::Heap;
use losses::Losses;
use output::Output;
use plain_events::PlainReader;
use sample_weights::RecordFilter;
use schedule::Schedule;
use segments::Segments;
use std::sync::Arc;
use threads::{ReadState, Threads};
use wire::{Op, Record};

/// Maximum number of notes of a file that is written as a whole.
const MAX_NOTES: usize = 64;

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

#[derive(Debug)]
pub struct ProcessRecording {
    session: Arc<Session>,
    stacks: Stacks,
    heap: Heap,
    threads: Threads,
    annotations: Annotations,
    output: Output,
    schedule: Schedule,
    segments: Segments,
    growth: Growth,
    names: code::Names,
    /// Number of announced modules whose files were opened.
    opened_modules: usize,
    /// Notes for files that are written as a whole.
    notes: Vec<Note>,
    /// Marks for the same files, and the number of all marks.
    marks: Vec<Mark>,
    marks_seen: usize,
    /// Snapshots of pages for files that are written as a whole.
    residency: residency::Kept,
    /// The memory that the program has mapped.
    mappings: mappings::Mappings,
    /// The losses of the segment, for files that are written as a whole.
    losses: Losses,
    last_tick: u64,
    /// Whether the process was handed over to the next daemon, which counts all later events.
    is_handed_over: bool,
    /// When the end of the process was seen.
    end_seen: Option<Moment>,
}

impl ProcessRecording {
    pub fn new(session: Arc<Session>) -> ProcessRecording {
        let (process, options) = (&session.process, &session.options);
        session.mapping.releases().keep_events(options.mode.has_events());
        let mut recording = ProcessRecording {
            stacks: Stacks::new(
                Arc::clone(&session.mapping),
                Arc::clone(&session.files),
                &process.exe.0,
                &process.cwd.0,
            ),
            heap: Heap::new(options),
            threads: Threads::new(options.sample_bytes),
            annotations: Annotations::default(),
            output: Output::new(&session),
            schedule: Schedule::default(),
            segments: Segments::of(&session),
            growth: Growth::default(),
            names: code::Names::default(),
            opened_modules: 0,
            notes: Vec::new(),
            marks: Vec::new(),
            marks_seen: 0,
            residency: residency::Kept::default(),
            mappings: mappings::Mappings::default(),
            losses: Losses::default(),
            last_tick: process.start_tick,
            is_handed_over: false,
            end_seen: None,
            session,
        };
        recording.track_freed();
        recording
    }

    pub fn id(&self) -> SessionId {
        self.session.id
    }

    /// Writes the start of the tape, so that it identifies the process in any case.
    pub fn open(&mut self, out: &mut dyn FnMut(WriteJob)) {
        self.enable_mappings();
        if self.output.has_events() {
            self.output.push(self.segment());
        }
        if self.output.has_events() && !self.session.options.folds {
            self.write_clock();
            let records = self.output.take_records();
            out(self.write_job(Content::Chunk { records, chunk: None }, None));
        }
    }

    /// Notes a new thread, or its name.
    pub fn thread(&mut self, number: ThreadNumber, tid: u32, name: Vec<u8>, first_tick: u64) {
        self.add_thread_if_new(number);
        let thread = tape::Thread { number: number.0, tid, name: name.into(), first_tick };
        if self.output.has_events() {
            self.output.push(TapeRecord::Thread(thread.clone()));
        }
        self.threads.identify(thread);
    }

    fn add_thread_if_new(&mut self, thread: ThreadNumber) {
        self.threads.add_if_new(thread, self.session.options.sample_bytes);
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
            while !rest.is_empty() || self.annotations.has_pending() {
                if self.annotations.has_pending() {
                    self.apply_pending(batch.many_threads);
                } else {
                    rest = self.read(rest, run.thread, &mut running, batch.limit);
                }
                if self.heap.is_full() {
                    self.process_calls(batch.many_threads);
                    if self.output.is_chunk_full() {
                        // The rest of the batch goes to the journal of the next chunk.
                        self.stacks.announce(self.output.records());
                        self.keep_chunk(false);
                        out(self.take_chunk(spare()));
                        if self.schedule.has_summary_events(self.stacks.last()) {
                            self.write_summary(out);
                        }
                    }
                }
            }
        }
        self.process_calls(batch.many_threads);
        self.write_mappings();
        // Apply what can no longer be reordered, so that it reaches the journal now: a SIGKILL would
        // lose calls that still wait.
        self.settle(batch.limit);
        self.divide_until(batch.limit, out);
        self.open_modules();
        if self.output.events() > 0 {
            self.schedule.chunk_has_events();
        }
    }

    /// Applies the calls that need not wait any more: all future calls are after `tick`.
    fn settle(&mut self, tick: u64) {
        if self.heap.settle(tick) {
            self.prepare_events();
            self.heap.add_effects(self.output.trace());
        }
    }

    /// Reads calls until enough are collected. Returns the remaining records.
    fn read<'a>(
        &mut self,
        records: &'a [Record],
        thread: ThreadNumber,
        running: &mut RunningTimestamp,
        limit: u64,
    ) -> &'a [Record] {
        let free_stacks = self.session.options.free_stacks;
        let (mut mean, mut filter) = self.filter(thread);
        let (mut extended, mut recorded, mut last_tick) = (None, 0, self.last_tick);
        let mut inside = [0; Op::ALLOCATORS as usize];
        let mut rest = records.iter();
        let ReadState { mut has_gap, last_tick: mut thread_tick } = self.threads.read_state(thread);
        let mut label_site = self.annotations.label_site(thread);
        while !self.heap.is_full() {
            let is_plain = mean == 0 && filter == RecordFilter::All && label_site == 0 && !has_gap;
            if is_plain && extended.is_none() && !self.annotations.has_blocks() {
                let mut plain = PlainReader { thread, limit, timestamp: running.timestamp, last_tick, recorded: 0 };
                let after = self.read_plain(rest.as_slice(), &mut plain);
                if after.len() < rest.len() {
                    (running.timestamp, last_tick, thread_tick) = (plain.timestamp, plain.last_tick, plain.last_tick);
                    (rest, recorded) = (after.iter(), recorded + plain.recorded);
                    continue;
                }
            }
            let Some(record) = rest.next() else { break };
            let op = record.op();
            if running.step(*record) == Step::Prefix {
                if op == Op::EXTENDED {
                    extended = Some((record.body, record.extended_size().min(MAX_SIZE)));
                }
                continue;
            }
            if op == Op::DROPPED {
                self.threads.note_dropped(thread, record.body, thread_tick);
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
            if op.is_annotation() {
                let mut call = Call { op, thread, site: 0, address, size, weight: 0, tick };
                if op.is_mapping() {
                    call.site = self.stacks.site(record.stack(), self.output.records());
                    self.map(call);
                    continue;
                }
                label_site = self.annotate(call);
                if self.annotations.has_pending() {
                    break;
                }
                continue;
            }
            if filter != RecordFilter::All {
                (mean, filter) = self.filter_record(filter, thread, op, address, tick);
                continue;
            }
            let has_site = op.is_alloc() || op.is_resize() || free_stacks;
            let mut site = if has_site { self.stacks.site(record.stack(), self.output.records()) } else { 0 };
            if has_site && (label_site != 0 || op.is_reported()) {
                site = self.annotated_site(thread, op, site);
            }
            recorded += u64::from(op.is_event());
            if let Some(allocator) = op.allocator() {
                inside[usize::from(allocator)] += 1;
            }
            let weight = weight_of(size, mean);
            let call = Call { op, thread, site, address, size, weight, tick };
            let is_pending = (op.is_reported() || self.annotations.has_blocks()) && self.note_block(&call);
            if !is_pending {
                self.heap.push(call);
            }
            if mean != 0 {
                (mean, filter) = self.next_interval(thread, mean, filter);
            }
            if has_gap {
                has_gap = false;
                self.end_gap(thread, tick);
            }
            if is_pending {
                break;
            }
        }
        self.last_tick = last_tick;
        if inside != [0; Op::ALLOCATORS as usize] {
            self.session.hooks.count(inside);
        }
        self.threads.count_read(thread, recorded, thread_tick);
        rest.as_slice()
    }

    #[cold]
    fn end_gap(&mut self, thread: ThreadNumber, to_tick: u64) {
        let loss = self.threads.end_gap(thread, to_tick);
        self.add_loss(loss);
    }

    /// Adds a loss to the tape, or to the losses of its thread.
    fn add_loss(&mut self, loss: Option<Loss>) {
        let Some(loss) = loss else { return };
        self.growth.note_loss();
        if self.output.has_events() {
            return self.output.push(TapeRecord::Loss(loss));
        }
        self.losses.add(loss);
    }

    /// Reports the drops that no record in the ring will report, since the thread has ended or has
    /// no ring.
    fn report_drops(&mut self, thread: ThreadNumber, to_tick: u64) {
        let loss = self.threads.report_drops(thread, to_tick);
        self.add_loss(loss);
    }

    /// Applies the calls read so far to the live blocks, the profile and the trace.
    fn process_calls(&mut self, many_threads: bool) {
        if self.heap.has_calls() {
            self.prepare_events();
            self.heap.process_calls(self.output.trace(), many_threads);
        }
    }

    /// Prepares the addition of events: the sums at the start of a chunk, and capacity for their
    /// sites.
    fn prepare_events(&mut self) {
        if self.output.events() == 0 {
            self.output.set_size_at_start(self.heap.start_peak());
        }
        self.heap.grow(self.stacks.last());
        self.schedule.note_events();
    }

    fn write_clock(&mut self) {
        let anchor = self.session.clock.anchor();
        let (tick, unix_ns, monotonic_ns) = (anchor.tick, anchor.unix_ns, anchor.monotonic_ns);
        self.output.push(TapeRecord::Clock(tape::Clock { tick, unix_ns, monotonic_ns }));
        self.schedule.clock_written();
    }

    /// Finishes a chunk that has waited long enough, and writes what is due. Without new events
    /// nothing is written.
    pub fn tick(&mut self, spare: &mut dyn FnMut() -> Chunk, out: &mut dyn FnMut(WriteJob)) {
        self.publish_stats();
        self.tick_division(out);
        if !self.output.has_events() {
            return self.tick_profile(out);
        }
        self.tick_flight(spare, out);
        if self.schedule.is_chunk_due() {
            self.finish_chunk(spare(), out);
        }
        if self.schedule.is_summary_due(self.stacks.last()) {
            self.finish_chunk(spare(), out);
            self.write_summary(out);
        }
        if self.schedule.is_profile_due(self.stacks.last()) {
            let profile = Some(self.profile_bytes());
            out(self.write_job(Content::State { records: Vec::new(), profile }, None));
            self.schedule.profile_written();
        }
    }

    /// Returns a job that writes data to the files of the process.
    fn write_job(&self, content: Content, on_written: Option<Callback>) -> WriteJob {
        WriteJob::Write { session: Arc::clone(&self.session), content, on_written }
    }

    /// Returns the content of the profile.
    fn profile_bytes(&self) -> Vec<u8> {
        self.heap.profile().to_mptl(self.stacks.sites())
    }

    /// Writes accounts and summary after the last chunk. The counts of the threads were read at
    /// another time, so the accounts contain what was read from the rings.
    fn write_summary(&mut self, out: &mut dyn FnMut(WriteJob)) {
        let mut records = self.code_so_far();
        records.extend([self.accounts_record_so_far(), self.summary()]);
        out(self.write_job(Content::State { records, profile: None }, None));
        self.schedule.summary_written();
    }

    pub fn counts(&mut self, thread: ThreadNumber, counts: EventCounts) {
        self.threads.set_counts(thread, counts);
        if !thread.is_some() {
            let now = self.last_tick;
            self.report_drops(thread, now);
        }
    }

    pub(crate) fn thread_ended(&mut self, thread: ThreadNumber, counts: EventCounts) {
        self.counts(thread, counts);
        self.threads.count_unpublished(thread);
        self.report_drops(thread, self.last_tick);
        self.threads.end(thread);
        self.annotations.end_thread(thread);
        self.prepare_events();
        self.heap.end_thread(thread, self.last_tick);
        self.heap.add_effects(self.output.trace());
    }

    /// Adds a note for the readers of the recording.
    pub fn note(&mut self, text: String) {
        let note = Note { tick: self.last_tick, text: text.into() };
        if self.output.has_events() {
            self.output.push(TapeRecord::Note(note));
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
        for Account { recorded, lost, sampled_out, .. } in self.threads.accounts() {
            sums.add(Accounting { emitted: recorded + lost + sampled_out, recorded, lost, sampled_out });
        }
        sums
    }

    /// Returns the accounting of all segments so far, including the drops that no gap contains yet.
    fn sums_of_all(&self) -> Accounting {
        let mut sums = self.segments.earlier();
        sums.add(self.sums());
        let unreported = self.threads.unreported();
        sums.add(Accounting { emitted: unreported, lost: unreported, ..Accounting::default() });
        sums
    }

    fn accounts_record(&self) -> TapeRecord {
        let is_used = |account: &Account| account.thread != 0 || account.emitted != 0;
        TapeRecord::Accounts(Accounts { accounts: self.threads.accounts().filter(is_used).collect() })
    }

    fn summary(&self) -> TapeRecord {
        TapeRecord::Summary(self.heap.summary())
    }
}

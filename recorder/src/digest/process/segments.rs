//! The segments in which a long-lived process is written: snapshots of a profile, segments of a
//! flight recording, and what comes before and after a change of folder or mode. A segment is a
//! complete folder of a process: alone it describes all blocks that are live in it.

use super::ProcessRecording;
use super::code::Names;
use super::counts::PublishedCounts;
use super::heap::CarriedBlock;
use super::output::Output;
use super::view::View;
use crate::heap::index::Block;
use crate::heap::live::{Call, LiveMemory};
use crate::heap::profile_delta::{Contributor, ProfileDelta};
use crate::heap::thread_number::ThreadNumber;
use crate::os::clock::Moment;
use crate::session::options::{Mode, Options};
use crate::session::traced_process::{SHORT_LIFE, Session, StatsSnapshot};
use crate::store::division::Divider;
use crate::store::trace::Chunk;
use crate::store::writer::{Callback, Content, SegmentEnd, WriteJob};
use crate::target::name_saver::Job;
use crate::target::proc::{self, End};
use crossbeam_channel::Sender;
use formats::recording::Accounting;
use formats::tape::field::Added;
use formats::tape::{self, Accounts, Entry, Record as TapeRecord, Residency, SiteSums};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use wire::Op;

/// Number of closed segments that a flight recording keeps, besides the one that is being written.
const MAX_CLOSED_SEGMENTS: usize = 4;

/// Returns whether the life of a process needs no folder: it was short, was not ended by a signal,
/// and is in one segment.
fn is_unremarkable(lived: Duration, end_reason: u8, begins: u8) -> bool {
    lived < SHORT_LIFE
        && !matches!(end_reason, tape::END_RUNNING | tape::END_SIGNALLED)
        && begins == tape::SEGMENT_FIRST
}

#[derive(Debug)]
pub enum ProcessCommand {
    /// The segment ends, and the process continues in another folder, or in another mode. The
    /// callback is called once the old segment is written.
    Rotate(Arc<Session>, Callback),
    /// The current state is written to the files.
    Snapshot(Callback),
    /// The flight recording is kept: the reply contains the folders of its segments, oldest first,
    /// once they are written, and the names to look up for them.
    KeepFlight(Sender<(Vec<PathBuf>, Option<Box<Job>>)>),
    /// The live blocks of now are requested; there are none if blocks are sampled.
    LiveBlocks(Sender<Option<LiveMemory>>),
    /// The call sites are requested, with a maximum number of them.
    View(usize, Sender<View>),
    /// A note for the readers of the recording.
    Note(String),
    /// The pages that the process has in memory, and the thread that divides them by use.
    Residency(Box<Residency>, Divider),
}

#[derive(Debug)]
pub(super) struct Segments {
    /// Blocks that were inherited from the parent.
    inherited: Option<tape::Inherited>,
    /// Folders of the closed segments of a flight recording.
    closed: VecDeque<PathBuf>,
    opened: Instant,
    number: u32,
    /// Sums at the last contribution: the next one contains the difference.
    last_contribution: Vec<SiteSums>,
    /// Accounting of the segments before this one.
    earlier: Accounting,
    /// How the segment begins.
    beginning: Beginning,
    /// The counts of all segments, as they are published.
    pub(super) counts: PublishedCounts,
}

/// How a segment begins: one of the `SEGMENT_` numbers, and the number of carried blocks.
#[derive(Clone, Copy, Debug)]
struct Beginning {
    number: u8,
    carried: u64,
}

impl Segments {
    /// Starts the first segment of a session.
    pub(super) fn of(session: &Session) -> Segments {
        let number = if session.resumed { tape::SEGMENT_UNKNOWN } else { tape::SEGMENT_FIRST };
        Segments {
            inherited: None,
            closed: session.earlier.iter().cloned().collect(),
            opened: Instant::now(),
            number: 1,
            last_contribution: Vec::new(),
            earlier: Accounting::default(),
            beginning: Beginning { number, carried: 0 },
            counts: PublishedCounts::default(),
        }
    }

    /// Sets the blocks that were inherited from the parent.
    pub(super) fn set_inherited(&mut self, inherited: tape::Inherited) {
        self.inherited = Some(inherited);
    }

    /// Sets the sums to which the next contribution is the difference.
    pub(super) fn set_last_contribution(&mut self, sums: Vec<SiteSums>) {
        self.last_contribution = sums;
    }

    /// Returns the accounting of the segments before this one.
    pub(super) fn earlier(&self) -> Accounting {
        self.earlier
    }

    /// Removes the folders of all segments of a flight recording, with the last one.
    fn take_folders(&mut self, last: PathBuf) -> Vec<PathBuf> {
        self.closed.drain(..).chain([last]).collect()
    }
}

impl ProcessRecording {
    /// Executes a command for this process.
    pub fn execute(
        &mut self,
        command: ProcessCommand,
        spare: &mut dyn FnMut() -> Chunk,
        out: &mut dyn FnMut(WriteJob),
    ) {
        match command {
            ProcessCommand::Rotate(session, on_written) => self.rotate(session, Some(on_written), spare, out),
            ProcessCommand::Snapshot(on_written) => match self.session.options.mode {
                Mode::Off => on_written.call(),
                Mode::Profile => self.write_requested(on_written, out),
                Mode::Trace | Mode::Flight => {
                    self.finish_chunk(spare(), out);
                    let mut records = self.code();
                    records.extend([self.accounts_record_so_far(), self.summary()]);
                    let content = Content::State { records, profile: Some(self.profile_bytes()) };
                    out(self.write_job(content, Some(on_written)));
                }
            },
            ProcessCommand::KeepFlight(reply) => {
                if self.session.options.mode != Mode::Flight {
                    return drop(reply.send(Default::default()));
                }
                let folders = self.segments.take_folders(self.session.folder.clone());
                let symbols = self.symbols(folders.clone());
                match self.next_segment() {
                    Some(next) => {
                        let on_written = Callback::new(move || drop(reply.send((folders, symbols))));
                        self.rotate(next, Some(on_written), spare, out);
                    }
                    None => drop(reply.send(Default::default())),
                }
            }
            ProcessCommand::LiveBlocks(reply) => {
                // Whoever asks wants to know whether they are all.
                self.publish_stats();
                let is_exact = !self.heap.is_sampled();
                let live = is_exact
                    .then(|| LiveMemory { blocks: self.heap.blocks_at(u64::MAX), mapped: self.mapped_by_program() });
                drop(reply.send(live));
            }
            ProcessCommand::View(max_sites, reply) => drop(reply.send(self.view(max_sites))),
            ProcessCommand::Note(text) => self.note(text),
            ProcessCommand::Residency(record, divider) => self.residency(*record, divider, out),
        }
    }

    /// Returns the record that identifies the process and its segment.
    pub(super) fn segment(&self) -> TapeRecord {
        let Beginning { number, carried } = self.segments.beginning;
        TapeRecord::Segment(tape::Segment {
            host: proc::host().into(),
            boot: proc::boot_id().into(),
            start_ticks: self.session.start_ticks,
            begins: number,
            carried,
            live_since_unix_ns: Added(self.session.stats.live_since_unix_ns.load(Relaxed)),
        })
    }

    /// Notes how the segment begins.
    pub(super) fn begin_segment(&mut self, number: u8, carried: u64) {
        self.segments.beginning = Beginning { number, carried };
        if self.output.has_events() {
            self.output.push(self.segment());
        }
    }

    /// Returns whether the process only adds to the sums of its program: it was short, all of it is
    /// in this segment, and no signal ended it.
    fn is_folded(&self, end: End) -> bool {
        self.session.options.folds
            && self.session.options.mode == Mode::Profile
            && is_unremarkable(self.session.lived(), end.reason, self.segments.beginning.number)
    }

    /// Publishes the counters of the process for other threads.
    pub(super) fn publish_stats(&mut self) {
        let counted = self.counts_of_all();
        let profile = self.heap.profile();
        self.growth.check(profile);
        if self.session.options.mode == Mode::Profile {
            self.growth.add_point(|| self.session.clock.now(), &self.heap);
        }
        let totals = profile.totals();
        let [mapped, reserved] = self.mapped_bytes();
        self.session.stats.set(&StatsSnapshot {
            live_bytes: totals.live_bytes,
            live_blocks: self.heap.estimated_blocks().unwrap_or(totals.live_blocks),
            peak_bytes: totals.peak_bytes,
            allocs: counted.allocs,
            frees: counted.frees,
            bytes: counted.bytes,
            recorded: counted.accounting.recorded,
            lost: counted.accounting.lost,
            sampled_out: counted.accounting.sampled_out,
            sites: self.stacks.last().into(),
            growing: self.growth.growing(),
            threads: self.threads.seen().0.into(),
            mapped,
            reserved,
            // About 200 bytes per site or thread, measured where they are defined; the rest is
            // tables that grow once.
            memory: self.heap.index().memory()
                + (u64::from(self.stacks.last()) + self.threads.len() as u64) * 200
                + (2 << 20)
                + self.growth.memory(),
        });
    }

    pub(super) fn tick_profile(&mut self, out: &mut dyn FnMut(WriteJob)) {
        let is_due = self.schedule.is_snapshot_due(self.session.options.snapshot);
        if self.session.options.mode == Mode::Profile && is_due {
            let snapshot = self.snapshot(None, false);
            out(self.write_job(snapshot, None));
        }
    }

    /// Ends the segment of a flight recording when it is a quarter of the window.
    pub(super) fn tick_flight(&mut self, spare: &mut dyn FnMut() -> Chunk, out: &mut dyn FnMut(WriteJob)) {
        let window = self.session.options.window;
        if self.session.options.mode != Mode::Flight
            || (self.segments.opened.elapsed() < window.time / 4 && self.output.plain_bytes() < window.bytes / 4)
        {
            return;
        }
        let old = self.session.folder.clone();
        if let Some(next) = self.next_segment() {
            self.segments.closed.push_back(old);
            self.rotate(next, None, spare, out);
        }
        let excess = self.segments.closed.len().saturating_sub(MAX_CLOSED_SEGMENTS);
        self.segments.closed.drain(..excess).for_each(|folder| out(WriteJob::Remove(folder)));
    }

    /// Returns a session for the next segment, and creates its folder next to this one.
    fn next_segment(&mut self) -> Option<Arc<Session>> {
        self.segments.number += 1;
        let folder = &self.session.folder;
        let name = folder.file_name()?.to_string_lossy().into_owned();
        let stem = name.rsplit_once("+").map_or(name.as_str(), |(stem, _)| stem);
        let next = folder.with_file_name(format!("{stem}+{}", self.segments.number));
        use std::os::unix::fs::DirBuilderExt;
        if let Err(error) = std::fs::DirBuilder::new().mode(0o700).create(&next) {
            tracing::error!("{}: {error}", next.display());
            return None;
        }
        let session = &self.session;
        // A program that does nothing has had its last event long ago.
        let starts = Moment::of(self.last_tick, &session.clock, session.process.ticks_per_second);
        Some(Arc::new(session.next_segment(next, Arc::clone(&session.options), Some(starts))))
    }

    /// Returns the accounts of a process that continues: records in its rings belong to later
    /// accounts, or to the next segment.
    pub(super) fn accounts_record_so_far(&self) -> TapeRecord {
        TapeRecord::Accounts(Accounts { accounts: self.threads.accounts_so_far().collect() })
    }

    /// Returns the content of the files of a profile: its current state, or its final one. With
    /// `waits`, the write waits until the last snapshot of the pages is divided.
    pub(super) fn snapshot(&mut self, end: Option<End>, waits: bool) -> Content {
        self.output.records().clear();
        let mut records = vec![TapeRecord::Process(self.session.process.clone()), self.segment()];
        records.extend(self.threads.identities().map(TapeRecord::Thread));
        self.stacks.all(&mut records);
        records.extend(self.code());
        records.extend(self.segments.inherited.clone().map(TapeRecord::Inherited));
        records.extend(self.notes.iter().cloned().map(TapeRecord::Note));
        records.extend(self.marks.iter().cloned().map(TapeRecord::Mark));
        let mut pending = self.add_residency(&mut records, end.is_some());
        records.extend(self.mapped_now());
        self.write_clock();
        records.append(self.output.records());
        records.extend(self.losses.all().map(TapeRecord::Loss));
        let is_over = end.is_some_and(|end| end != End::RUNNING);
        records.push(if is_over { self.accounts_record() } else { self.accounts_record_so_far() });
        records.push(self.summary());
        if let Some((history, errors)) = self.growth.history(&self.heap) {
            records.push(TapeRecord::History(history));
            records.extend(errors.map(TapeRecord::HistoryErrors));
        }
        records.push(self.end_record(end.unwrap_or(End::RUNNING)));
        self.schedule.profile_written();
        if !waits {
            pending.clear();
        }
        Content::Snapshot { tape: records, profile: self.profile_bytes(), pending }
    }

    /// Returns the last record of the tape.
    fn end_record(&self, end: End) -> TapeRecord {
        let Moment { tick, unix_ns } = self.end_seen.unwrap_or_else(|| Moment::now(&self.session.clock));
        TapeRecord::End(tape::End { tick, unix_ns, reason: end.reason, status: end.status })
    }

    /// Ends the segment: the process has ended, or continues in the next one.
    pub(super) fn close_segment(
        &mut self,
        end: Option<End>,
        on_written: Option<Callback>,
        spare: &mut dyn FnMut() -> Chunk,
        out: &mut dyn FnMut(WriteJob),
    ) {
        let mode = self.session.options.mode;
        let on_written = match self.take_requests() {
            Some(requests) => Some(Callback::new(move || {
                requests.call();
                on_written.into_iter().for_each(Callback::call);
            })),
            None => on_written,
        };
        let (is_over, end) = (end.is_some(), end.unwrap_or(End::RUNNING));
        // An open gap belongs to this segment, as its accounts state.
        for thread in self.threads.numbers() {
            self.end_gap(thread, self.last_tick);
        }
        let is_folded = self.is_folded(end);
        let content = match mode {
            Mode::Profile if !is_folded => Some(self.snapshot(Some(end), true)),
            Mode::Profile | Mode::Off => None,
            Mode::Trace | Mode::Flight => {
                self.write_growth();
                self.write_clock();
                self.finish_chunk(spare(), out);
                let accounts = if end == End::RUNNING { self.accounts_record_so_far() } else { self.accounts_record() };
                let mut records = self.code();
                records.extend([accounts, self.summary(), self.end_record(end)]);
                Some(Content::State { records, profile: Some(self.profile_bytes()) })
            }
        };
        let has_delta = self.session.options.folds && mode != Mode::Off;
        let profile_delta = has_delta.then(|| self.profile_delta(end != End::RUNNING, is_folded));
        let is_last_of_flight = mode == Mode::Flight && is_over;
        let segments =
            if is_last_of_flight { self.segments.take_folders(self.session.folder.clone()) } else { Vec::new() };
        let folders = match mode {
            _ if is_folded => Vec::new(),
            Mode::Flight => segments.clone(),
            _ => vec![self.session.folder.clone()],
        };
        let symbols = self.symbols(folders);
        if is_over {
            self.session.files.close();
        }
        let (session, sums) = (Arc::clone(&self.session), self.sums());
        let segment_end = SegmentEnd { session, content, sums, profile_delta, is_over, segments, symbols, on_written };
        out(WriteJob::Finish(Box::new(segment_end)));
    }

    /// Ends the segment, and starts the next one with the live blocks.
    fn rotate(
        &mut self,
        next: Arc<Session>,
        on_written: Option<Callback>,
        spare: &mut dyn FnMut() -> Chunk,
        out: &mut dyn FnMut(WriteJob),
    ) {
        let (old, new) = (Arc::clone(&self.session.options), Arc::clone(&next.options));
        // Sites and indexes of the next segment are others.
        self.settle(u64::MAX);
        let counted = self.counts_of_all();
        self.close_segment(None, on_written, spare, out);
        let keeps_counting = old.mode == Mode::Profile && new.mode == Mode::Profile;
        if !keeps_counting {
            let sums = self.sums();
            self.segments.earlier.add(sums);
        }
        self.threads.start_segment(keeps_counting);
        if keeps_counting {
            self.losses.forget_threads(&self.threads.numbers());
        } else {
            self.losses = super::losses::Losses::default();
        }
        if old.mode == Mode::Flight && new.mode != Mode::Flight {
            for folder in self.segments.take_folders(self.session.folder.clone()) {
                out(WriteJob::Remove(folder));
            }
        }
        self.session = next;
        self.session.mapping.releases().keep_events(new.mode.has_events());
        self.output = Output::new(&self.session);
        self.schedule.drop_chunk();
        self.names = Names::default();
        let was_off = old.mode == Mode::Off;
        // Frees of blocks that were allocated in another mode would not be seen.
        let is_anew = was_off || new.mode == Mode::Off || (old.sample_bytes == 0) != (new.sample_bytes == 0);
        if is_anew {
            self.heap.clear(&new);
            self.annotations.forget_blocks();
            self.segments.last_contribution.clear();
            self.session.stats.live_since_unix_ns.store(crate::os::clock::unix_ns(), Relaxed);
        }
        if !keeps_counting || self.heap.profile().totals().allocs == 0 {
            self.growth.reset_history();
        }
        self.track_freed();
        self.segments.opened = Instant::now();
        let begins = match keeps_counting {
            _ if is_anew => tape::SEGMENT_ANEW,
            true => tape::SEGMENT_SUMS,
            false => tape::SEGMENT_CARRIED,
        };
        self.begin_segment(begins, if keeps_counting { 0 } else { self.heap.index().len() });
        self.enable_mappings();
        self.carry_mappings(!was_off && new.mode != Mode::Off);
        if new.mode.has_events() {
            self.start_trace(&new, spare, out);
        } else if old.mode.has_events() {
            for carried in self.renumber_blocks(&new) {
                self.heap.count_carried(&carried, self.last_tick);
            }
        }
        self.schedule.note_events();
        self.segments.counts.set_back(counted, self.segment_counts());
    }

    /// Assigns new indexes to the live blocks, and resets the sums, which are to be computed from
    /// these blocks.
    fn renumber_blocks(&mut self, options: &Options) -> Vec<CarriedBlock> {
        self.segments.last_contribution.clear();
        self.heap.renumber(options, self.stacks.last())
    }

    /// Starts a trace with all that it refers to: threads, modules, sites, and the live blocks.
    fn start_trace(&mut self, options: &Options, spare: &mut dyn FnMut() -> Chunk, out: &mut dyn FnMut(WriteJob)) {
        self.output.records().extend(self.threads.identities().map(TapeRecord::Thread));
        self.stacks.all(self.output.records());
        let carried = self.renumber_blocks(options);
        if !carried.is_empty() {
            self.note(format!("{} live blocks are carried over from before", carried.len()));
        }
        self.prepare_events();
        for block in carried {
            let (tick, Block { index, size, site }) = (self.last_tick, block.block);
            let (address, weight) = (block.address, block.amount.bytes);
            let call = Call { op: Op::MALLOC, thread: ThreadNumber::NONE, site, address, size, weight, tick };
            self.heap.count_carried(&block, tick);
            if let Some(trace) = self.output.trace() {
                trace.alloc(&call, Entry::Carried as u8, index);
            }
            if self.output.is_chunk_full() {
                self.finish_chunk(spare(), out);
                self.prepare_events();
            }
        }
        self.schedule.chunk_has_events();
    }

    /// Returns what this segment contributes to the sums of its program and of the modules that it
    /// executed.
    fn profile_delta(&mut self, is_over: bool, has_no_files: bool) -> Box<ProfileDelta> {
        self.stacks.announce(&mut Vec::new());
        let sums = self.heap.profile().site_sums();
        let last_contribution = std::mem::replace(&mut self.segments.last_contribution, sums.clone());
        let account = self.sums();
        // The names of generated code are valid for the next process of the program too; its
        // addresses are not.
        if has_no_files {
            self.named_code();
        }
        let (totals, named) = (self.heap.totals(), self.names.named());
        let contributor = Contributor {
            stacks: &self.stacks,
            named,
            files: &self.session.files,
            profile: self.heap.profile(),
            totals,
            account,
            is_over,
            has_no_files,
        };
        Box::new(ProfileDelta::new(contributor, sums, &last_contribution))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lives_bad_ends_and_several_segments_keep_their_folder() {
        let minute = Duration::from_secs(60);
        let is_folded = |lived, reason| is_unremarkable(lived, reason, tape::SEGMENT_FIRST);
        assert!(is_folded(Duration::ZERO, tape::END_EXITED));
        assert!(is_folded(minute - Duration::from_secs(1), tape::END_EXEC));
        assert!(!is_folded(minute, tape::END_EXITED));
        assert!(!is_folded(Duration::ZERO, tape::END_SIGNALLED));
        assert!(!is_folded(Duration::ZERO, tape::END_RUNNING));
        for begins in [tape::SEGMENT_CARRIED, tape::SEGMENT_SUMS, tape::SEGMENT_ANEW, tape::SEGMENT_UNKNOWN] {
            assert!(!is_unremarkable(Duration::ZERO, tape::END_EXITED, begins));
        }
    }
}

//! The output of a segment: the trace with its open chunk, the tape records before that chunk, and
//! the journal that contains both until they are stored.

use super::heap::Heap;
use super::threads::Threads;
use crate::heap::stacks::Stacks;
use crate::rings::ring_space::Kept;
use crate::session::chunk_journal::ChunkJournal;
use crate::session::traced_process::Session;
use crate::store::trace::{Chunk, Columns, Trace};
use formats::tape::field::Text;
use formats::tape::journal::{Entry, Position, Waiting};
use formats::tape::{Account, Record as TapeRecord, Sites, Writer};

/// Maximum number of events of a chunk.
const CHUNK_EVENTS: u64 = 1 << 17;
/// Maximum number of bytes of waiting calls in the journal of a chunk. Each entry has those of its
/// moment anew; beyond this, they count as lost if the recorder is killed.
const MAX_WAITING_BYTES: usize = 8 << 20;

/// What the journal contains of the open chunk.
#[derive(Debug, Default)]
struct Journaled {
    /// Number of records before the chunk, and of all sites, that are in the journal.
    records: usize,
    sites: usize,
    /// The last finished chunk that is not completely in the journal.
    missed: u32,
    /// Number of bytes of waiting calls.
    waiting: usize,
    has_failed: bool,
}

/// The state of a recording that an entry of the journal contains besides the open chunk.
#[derive(Debug)]
pub(crate) struct EntryState<'a> {
    pub session: &'a Session,
    /// Call sites of the process.
    pub stacks: &'a Stacks,
    /// Maximum of the live bytes in the chunk.
    pub peak_bytes: u64,
    /// Accounts of the threads; empty if they are not stored.
    pub accounts: Vec<Account>,
    /// The calls that wait, if there are any.
    pub(crate) waiting: Option<Waiting>,
}

#[derive(Debug)]
pub(super) struct Output {
    trace: Trace,
    /// Whether the events are stored.
    has_events: bool,
    /// Tape records before the next chunk.
    records: Vec<TapeRecord>,
    journal: ChunkJournal,
    journaled: Journaled,
    /// Number of live blocks and bytes at the start of the chunk.
    size_at_start: (u64, u64),
}

impl Output {
    /// Creates the output of a segment.
    pub(super) fn new(session: &Session) -> Output {
        let options = &session.options;
        Output {
            trace: Trace::new(Columns { has_weights: options.sample_bytes != 0, free_sites: options.free_stacks }),
            has_events: options.mode.has_events(),
            records: Vec::new(),
            journal: ChunkJournal::new(session),
            journaled: Journaled::default(),
            size_at_start: (0, 0),
        }
    }

    /// Returns whether the events are stored.
    #[inline(always)]
    pub(super) fn has_events(&self) -> bool {
        self.has_events
    }

    /// Returns the trace, if the events are stored.
    #[inline(always)]
    pub(super) fn trace(&mut self) -> Option<&mut Trace> {
        self.has_events.then_some(&mut self.trace)
    }

    /// Returns the number of events in the open chunk.
    #[inline(always)]
    pub(super) fn events(&self) -> u64 {
        self.trace.events()
    }

    /// Returns whether the open chunk has as many events as a chunk may have.
    pub(crate) fn is_chunk_full(&self) -> bool {
        self.trace.events() >= CHUNK_EVENTS
    }

    /// Returns the number of bytes of the trace before compression.
    pub(crate) fn plain_bytes(&self) -> u64 {
        self.trace.plain_bytes()
    }

    /// Sets the number of live blocks and bytes at the start of the chunk.
    pub(crate) fn set_size_at_start(&mut self, blocks_and_bytes: (u64, u64)) {
        self.size_at_start = blocks_and_bytes;
    }

    /// Adds a tape record before the next chunk.
    pub(super) fn push(&mut self, record: TapeRecord) {
        self.records.push(record);
    }

    /// Returns the tape records before the next chunk, to add some.
    #[inline(always)]
    pub(super) fn records(&mut self) -> &mut Vec<TapeRecord> {
        &mut self.records
    }

    /// Removes the tape records before the next chunk.
    pub(crate) fn take_records(&mut self) -> Vec<TapeRecord> {
        std::mem::take(&mut self.records)
    }

    /// Returns whether the open chunk has bytes that are not in the journal.
    pub(crate) fn has_unjournaled(&self) -> bool {
        self.has_events && self.trace.has_unjournaled()
    }

    /// Returns whether the events so far survive the recorder, when the last entry of the journal
    /// was written or not.
    pub(super) fn kept(&self, was_written: bool, session: &Session) -> Kept {
        match was_written && session.journal_files.stored() >= self.journaled.missed {
            true => Kept::Safe,
            false => Kept::Unsafe,
        }
    }

    /// Notes whether the chunk that is about to be finished is completely in the journal.
    pub(crate) fn note_journaled(&mut self, is_complete: bool) {
        if !is_complete {
            self.journaled.missed = self.trace.number();
        }
        (self.journaled.records, self.journaled.sites, self.journaled.waiting) = (0, 0, 0);
    }

    /// Returns the calls that wait in a heap, for an entry of the journal. The accounts count them
    /// as recorded.
    pub(crate) fn waiting(&self, heap: &Heap, accounts: Vec<Account>) -> Option<Waiting> {
        heap.waiting().next().filter(|_| self.journaled.waiting < MAX_WAITING_BYTES)?;
        let mut trace = self.trace.following();
        let peak_bytes = heap.preview(&mut trace);
        let totals = heap.profile().totals();
        let (mut chunk, parts) = trace.unjournaled();
        (chunk.live_blocks, chunk.live_bytes, chunk.peak_bytes) = (totals.live_blocks, totals.live_bytes, peak_bytes);
        Some(Waiting::new(chunk, &parts, accounts))
    }

    /// Finishes the chunk, if it has events or is the first one.
    pub(super) fn finish_chunk(&mut self, spare: Chunk, peak_bytes: u64, threads: &mut Threads) -> Option<Chunk> {
        if self.trace.events() == 0 && !self.trace.is_new() {
            return None;
        }
        let mut chunk = self.trace.finish_chunk(spare);
        (chunk.commit.live_blocks, chunk.commit.live_bytes) = self.size_at_start;
        chunk.commit.peak_bytes = peak_bytes;
        threads.finish_chunk(&mut chunk.threads);
        Some(chunk)
    }

    /// Writes an entry to the journal. Returns whether that succeeded.
    pub(crate) fn write_entry(&mut self, state: EntryState<'_>, positions: &[Position], is_whole: bool) -> bool {
        let EntryState { session, stacks, peak_bytes, accounts, waiting } = state;
        let mut records = Vec::new();
        let mut writer = Writer::default();
        if self.trace.is_new() && self.journaled.records == 0 && self.journaled.sites == 0 {
            // The recorder may be killed before the first write of the tape.
            writer.record(&TapeRecord::Process(session.process.clone()), &mut records);
        }
        let from = self.journaled.records.min(self.records.len());
        self.records[from..].iter().for_each(|record| writer.record(record, &mut records));
        let first = self.journaled.sites.max(stacks.written());
        if let Some(sites) = stacks.sites().get(first..).filter(|sites| !sites.is_empty()) {
            writer.record(&TapeRecord::Sites(Sites { first: first as u32 + 1, sites: sites.to_vec() }), &mut records);
        }
        if let Some(waiting) = waiting {
            let before = records.len();
            waiting.put_frame(&mut records);
            self.journaled.waiting += records.len() - before;
        }
        let (mut chunk, added) = self.trace.unjournaled();
        (chunk.live_blocks, chunk.live_bytes) = self.size_at_start;
        chunk.peak_bytes = peak_bytes;
        let positions = positions.to_vec();
        let entry = Entry { chunk, is_whole, positions, records: Text(records), accounts, ..Entry::default() };
        match self.journal.append(entry, added, &session.journal_files) {
            Ok(()) => {
                self.trace.was_journaled();
                (self.journaled.records, self.journaled.sites) = (self.records.len(), stacks.sites().len());
                self.journaled.has_failed = false;
                true
            }
            Err(error) => {
                if !std::mem::replace(&mut self.journaled.has_failed, true) {
                    let folder = session.folder.display();
                    tracing::warn!(
                        "{folder}: the journal cannot be written ({error}): until it can, SIGKILL of the recorder loses up to a second of events"
                    );
                }
                false
            }
        }
    }
}

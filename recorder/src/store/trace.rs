//! Encodes effects as the bytes of a chunk: the records of MTRC, as columns, and the tape's columns
//! for them.

use crate::heap::live::Call;
use formats::EncodeBuf;
use formats::mtrc::layout::{ALLOC, FREE, RESIZE};
use formats::mtrc::{self, ColumnWriter};
use formats::tape::field::Field;
use formats::tape::journal::{self, PARTS};
use formats::tape::{
    self, COLUMN_ENTRIES, COLUMN_PREVIOUS, COLUMN_SITES, COLUMN_TICKS, COLUMN_UNMATCHED, COLUMN_WEIGHTS, Unmatched,
};

/// A chunk of the trace, which can be decoded alone, before it is compressed.
#[derive(Debug, Default)]
pub struct Chunk {
    pub number: u32,
    /// The commit record of the chunk. Its offsets and columns are filled in when it is stored.
    pub commit: tape::Chunk,
    /// MTRC records of the chunk, as columns ([`ColumnWriter`]).
    pub mtrc: [Vec<u8>; mtrc::COLUMNS],
    /// Uncompressed columns and their kinds. Of empty ones only [`COLUMN_PREVIOUS`] is stored.
    pub columns: [(u8, Vec<u8>); 6],
    /// Number of events by thread.
    pub threads: Vec<(u32, u64)>,
}

impl Chunk {
    /// Clears all but the bytes, which are overwritten.
    fn clear(&mut self) {
        self.commit = tape::Chunk::default();
        self.threads.clear();
        let kinds = [COLUMN_ENTRIES, COLUMN_TICKS, COLUMN_SITES, COLUMN_WEIGHTS, COLUMN_UNMATCHED, COLUMN_PREVIOUS];
        for (column, kind) in self.columns.iter_mut().zip(kinds) {
            column.0 = kind;
        }
    }
}

/// Returns the format of traces, which mpatrol's own reader can read too.
fn padded() -> mtrc::Options {
    mtrc::Options { padding: true, ..mtrc::Options::default() }
}

/// Writes the trace of one process, chunk by chunk.
#[derive(Debug)]
pub(crate) struct Trace {
    mtrc: ColumnWriter,
    commit: tape::Chunk,
    entries: EncodeBuf,
    ticks: EncodeBuf,
    sites: EncodeBuf,
    weights: EncodeBuf,
    unmatched: EncodeBuf,
    previous: EncodeBuf,
    unmatched_count: u32,
    number: u32,
    next_index: u64,
    has_weights: bool,
    free_sites: bool,
    /// Tick of the last event, to which deltas are relative.
    last_tick: u64,
    last_unmatched_tick: u64,
    /// Bytes of the columns that are in the journal.
    journaled: [usize; PARTS],
}

/// What the chunks of a trace have beside its events.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Columns {
    /// Blocks are sampled: each has a weight.
    pub has_weights: bool,
    /// Frees have call sites, too.
    pub free_sites: bool,
}

impl Trace {
    /// Starts a trace. The header is part of the first chunk. Numbers are padded so that mpatrol's
    /// own reader can read the uncompressed file, for any size.
    pub(crate) fn new(Columns { has_weights, free_sites }: Columns) -> Trace {
        let column = EncodeBuf::default;
        Trace {
            mtrc: ColumnWriter::new(padded()),
            commit: tape::Chunk::default(),
            entries: column(),
            ticks: column(),
            sites: column(),
            weights: column(),
            unmatched: column(),
            previous: column(),
            unmatched_count: 0,
            number: 0,
            next_index: 1,
            has_weights,
            free_sites,
            last_tick: 0,
            last_unmatched_tick: 0,
            journaled: [0; PARTS],
        }
    }

    /// Starts a trace of its own for the chunk after the open one.
    pub(crate) fn following(&self) -> Trace {
        let columns = Columns { has_weights: self.has_weights, free_sites: self.free_sites };
        Trace {
            mtrc: self.mtrc.following(),
            number: self.number + 1,
            next_index: self.next_index + self.commit.allocations,
            last_tick: self.last_tick,
            last_unmatched_tick: self.last_unmatched_tick,
            ..Trace::new(columns)
        }
    }

    /// Returns the number of events in the chunk so far, including unmatched ones.
    #[inline(always)]
    pub(crate) fn events(&self) -> u64 {
        self.commit.events + u64::from(self.unmatched_count)
    }

    /// Returns the number of uncompressed bytes so far.
    pub(crate) fn plain_bytes(&self) -> u64 {
        self.mtrc.offset()
    }

    /// Returns whether no chunk was finished yet, so that the header was not written either.
    pub(crate) fn is_new(&self) -> bool {
        self.number == 0
    }

    /// Appends what all records have in common: entry and tick.
    #[inline(always)]
    fn begin(&mut self, entry: u8, tick: u64) {
        if self.events() == 0 {
            self.start(tick);
        }
        self.commit.events += 1;
        self.entries.byte(entry);
        let tick = tick.max(self.last_tick);
        self.ticks.number(tick - self.last_tick);
        self.last_tick = tick;
    }

    #[cold]
    fn start(&mut self, tick: u64) {
        (self.commit.first_tick, self.last_tick) = (tick, tick);
    }

    #[inline(always)]
    fn put_allocation(&mut self, site: u32, weight: u64) {
        self.sites.number(site.into());
        if self.has_weights {
            self.weights.number(weight);
        }
    }

    /// Appends an allocation record (`A`).
    #[inline(always)]
    pub(crate) fn alloc(&mut self, call: &Call, entry: u8, index: u64) {
        self.begin(entry, call.tick);
        self.commit.allocations += 1;
        self.mtrc.record(ALLOC, [index, call.address, call.size], call.thread.0.into());
        self.put_allocation(call.site, call.weight);
    }

    /// Appends what a block was before a resize or a free; `None` if the process did not allocate
    /// it.
    #[inline(always)]
    fn previous(&mut self, index: u64, previous: Option<(u32, u64)>) {
        if index < self.next_index {
            self.previous.number(previous.map_or(0, |(site, _)| u64::from(site) + 1));
            if let Some((_, bytes)) = previous {
                self.previous.number(bytes);
            }
        }
    }

    /// Appends a resize record (`R`) of a known block, with the bytes for which it counted.
    #[inline(always)]
    pub(crate) fn resize(&mut self, call: &Call, entry: u8, index: u64, previous: Option<(u32, u64)>) {
        self.previous(index, previous);
        self.begin(entry, call.tick);
        self.mtrc.record(RESIZE, [index, call.address, call.size], call.thread.0.into());
        self.put_allocation(call.site, call.weight);
    }

    /// Appends a free record (`F`) of a known block.
    #[inline(always)]
    pub(crate) fn free(&mut self, call: &Call, entry: u8, index: u64, previous: Option<(u32, u64)>) {
        self.previous(index, previous);
        self.begin(entry, call.tick);
        self.mtrc.record(FREE, [index], call.thread.0.into());
        if self.free_sites {
            self.sites.number(call.site.into());
        }
    }

    /// Appends a free of an unknown address, which has no record.
    #[cold]
    pub(crate) fn unmatched(&mut self, call: &Call, entry: u8) {
        // A free whose allocation was waited for comes later than its tick.
        let tick = call.tick.max(self.last_tick).max(self.last_unmatched_tick);
        self.last_unmatched_tick = tick;
        if self.events() == 0 {
            self.start(tick);
        }
        let unmatched = Unmatched {
            position: self.commit.events as u32,
            address: call.address,
            thread: call.thread.0,
            entry,
            tick: tick.saturating_sub(self.commit.first_tick),
        };
        self.unmatched.append(|bytes| unmatched.put(bytes));
        self.unmatched_count += 1;
    }

    /// Returns the number of the open chunk.
    pub(crate) fn number(&self) -> u32 {
        self.number + 1
    }

    /// Returns the bytes of the open chunk, in the order of the journal.
    fn parts(&self) -> [&[u8]; PARTS] {
        let columns = [&self.entries, &self.ticks, &self.sites, &self.weights, &self.unmatched, &self.previous];
        journal::parts(self.mtrc.contents(), columns.map(EncodeBuf::content))
    }

    /// Returns whether the open chunk has bytes that are not in the journal.
    pub(crate) fn has_unjournaled(&self) -> bool {
        self.parts().iter().zip(self.journaled).any(|(part, journaled)| part.len() > journaled)
    }

    /// Returns the open chunk, and the bytes of its columns that are not in the journal.
    pub(crate) fn unjournaled(&self) -> (tape::Chunk, [&[u8]; PARTS]) {
        let mut added = self.parts();
        for (part, journaled) in added.iter_mut().zip(self.journaled) {
            *part = part.get(journaled..).unwrap_or_default();
        }
        let chunk = tape::Chunk {
            number: self.number(),
            plain_offset: self.mtrc.start(),
            plain_length: self.mtrc.plain_length(),
            first_index: self.next_index,
            last_tick: self.last_tick,
            ..self.commit.clone()
        };
        (chunk, added)
    }

    /// Records that all bytes of the open chunk are in the journal.
    pub(crate) fn was_journaled(&mut self) {
        self.journaled = self.parts().map(<[u8]>::len);
    }

    /// Finishes the chunk and starts the next one in the memory of `spare`.
    pub(crate) fn finish_chunk(&mut self, mut spare: Chunk) -> Chunk {
        spare.clear();
        let Chunk { mtrc, columns, threads, .. } = spare;
        let buffers = [
            &mut self.entries,
            &mut self.ticks,
            &mut self.sites,
            &mut self.weights,
            &mut self.unmatched,
            &mut self.previous,
        ];
        let mut buffers = buffers.into_iter();
        let columns =
            columns.map(|(kind, spare)| (kind, buffers.next().map_or(Vec::new(), |buffer| buffer.replace(spare))));
        (self.number, self.journaled) = (self.number + 1, [0; PARTS]);
        let mut commit = std::mem::take(&mut self.commit);
        commit.number = self.number;
        (commit.plain_offset, commit.plain_length) = (self.mtrc.start(), self.mtrc.plain_length());
        commit.first_index = self.next_index;
        commit.last_tick = self.last_tick;
        self.next_index += commit.allocations;
        self.unmatched_count = 0;
        Chunk { number: commit.number, commit, mtrc: self.mtrc.finish_chunk(mtrc), columns, threads }
    }
}

//! Effects -> the bytes of a chunk: MTRC records, and the tape's columns beside them.

use crate::live::Effect;
use formats::leb128;
use formats::mtrc::{self, Place};
use formats::tape::field::Field;
use formats::tape::{self, COLUMN_ENTRIES, COLUMN_SITES, COLUMN_TICKS, COLUMN_UNMATCHED, COLUMN_WEIGHTS, Unmatched};

/// A piece of the trace that can be decoded alone, before it is compressed.
#[derive(Debug, Default)]
pub struct Chunk {
    /// What the tape says of it; places and columns are filled in when it is stored.
    pub commit: tape::Chunk,
    /// MTRC records.
    pub plain: Vec<u8>,
    /// Plain columns and their kinds; empty ones are not stored.
    pub columns: [(u8, Vec<u8>); 5],
}

impl Chunk {
    fn clear(&mut self) {
        self.commit = tape::Chunk::default();
        self.plain.clear();
        let kinds = [COLUMN_ENTRIES, COLUMN_TICKS, COLUMN_SITES, COLUMN_WEIGHTS, COLUMN_UNMATCHED];
        for (column, kind) in self.columns.iter_mut().zip(kinds) {
            column.0 = kind;
            column.1.clear();
        }
    }
}

/// Writes the trace of one image, chunk by chunk.
#[derive(Debug)]
pub struct Trace {
    writer: mtrc::Writer,
    chunk: Chunk,
    number: u32,
    plain_offset: u64,
    next_index: u64,
    has_weights: bool,
    free_sites: bool,
    unmatched: u32,
    /// Plain bytes up to which numbers are padded so that mpatrol's own reader can read the file as it lies there.
    padded: u64,
    /// Tick of the last event; deltas count from it.
    last_tick: u64,
}

/// Appends a number: four bytes at once, of which those that count are kept.
#[inline(always)]
fn put(out: &mut Vec<u8>, value: u64) {
    if value >= 1 << 28 {
        return leb128::write(out, value);
    }
    let size = (38 - (value as u32 | 1).leading_zeros()) / 7;
    let word = value as u32;
    let word = (word & 0x0000_3fff) | (word & 0x0fff_c000) << 2;
    let word = (word & 0x007f_007f) | (word & 0x3f80_3f80) << 1;
    let word = word | (0x0080_8080 & ((1 << (8 * (size - 1))) - 1));
    let end = out.len() + size as usize;
    out.extend_from_slice(&word.to_le_bytes());
    out.truncate(end);
}

impl Trace {
    /// Starts a trace; the header is part of the first chunk. Up to `padded` bytes mpatrol's own reader can read what is written.
    pub fn new(has_weights: bool, free_sites: bool, padded: u64) -> Trace {
        let mut writer = mtrc::Writer::new(mtrc::Options { padding: true, ..mtrc::Options::default() });
        let mut chunk = Chunk::default();
        chunk.clear();
        writer.header(&mut chunk.plain);
        Trace {
            writer,
            chunk,
            number: 0,
            plain_offset: 0,
            next_index: 1,
            has_weights,
            free_sites,
            unmatched: 0,
            padded,
            last_tick: 0,
        }
    }

    /// Events in the chunk so far, unmatched ones among them.
    #[inline(always)]
    pub fn events(&self) -> u64 {
        self.chunk.commit.events + u64::from(self.unmatched)
    }

    /// Whether there is no chunk yet: not even the header was handed on.
    pub fn is_new(&self) -> bool {
        self.number == 0
    }

    /// What is alike for all records: entry and tick.
    #[inline(always)]
    fn begin(&mut self, effect: &Effect) {
        let commit = &mut self.chunk.commit;
        if commit.events == 0 && self.unmatched == 0 {
            commit.first_tick = effect.tick;
            self.last_tick = effect.tick;
        }
        commit.events += 1;
        let [entries, ticks, ..] = &mut self.chunk.columns;
        entries.1.push(effect.entry);
        let tick = effect.tick.max(self.last_tick);
        put(&mut ticks.1, tick - self.last_tick);
        self.last_tick = tick;
    }

    #[inline(always)]
    fn taking(&mut self, effect: &Effect) {
        let [_, _, sites, weights, _] = &mut self.chunk.columns;
        put(&mut sites.1, effect.site.into());
        if self.has_weights {
            put(&mut weights.1, effect.weight);
        }
    }

    /// Appends an `A`.
    #[inline(always)]
    pub fn alloc(&mut self, effect: &Effect) {
        self.begin(effect);
        self.chunk.commit.allocations += 1;
        let place = Place::thread(effect.thread.into());
        self.writer.alloc(&mut self.chunk.plain, effect.index, effect.address, effect.size, &place);
        self.taking(effect);
    }

    /// Appends an `R`.
    #[inline(always)]
    pub fn resize(&mut self, effect: &Effect) {
        self.begin(effect);
        let place = Place::thread(effect.thread.into());
        self.writer.resize(&mut self.chunk.plain, effect.index, effect.address, effect.size, &place);
        self.taking(effect);
    }

    /// Appends an `F`.
    #[inline(always)]
    pub fn free(&mut self, effect: &Effect) {
        self.begin(effect);
        let place = Place::thread(effect.thread.into());
        self.writer.free(&mut self.chunk.plain, effect.index, &place);
        if self.free_sites {
            put(&mut self.chunk.columns[2].1, effect.site.into());
        }
    }

    /// Appends a free that has no record.
    #[cold]
    pub fn unmatched(&mut self, effect: &Effect) {
        if self.events() == 0 {
            self.chunk.commit.first_tick = effect.tick;
            self.last_tick = effect.tick;
        }
        let unmatched = Unmatched {
            position: self.chunk.commit.events as u32,
            address: effect.address,
            thread: effect.thread,
            entry: effect.entry,
            tick: effect.tick.saturating_sub(self.chunk.commit.first_tick),
        };
        unmatched.put(&mut self.chunk.columns[4].1);
        self.unmatched += 1;
    }

    /// Ends the chunk and starts the next one in `spare`.
    pub fn cut(&mut self, mut spare: Chunk) -> Chunk {
        spare.clear();
        let mut chunk = std::mem::replace(&mut self.chunk, spare);
        self.number += 1;
        let commit = &mut chunk.commit;
        commit.number = self.number;
        commit.plain_offset = self.plain_offset;
        commit.plain_length = chunk.plain.len() as u64;
        commit.first_index = self.next_index;
        commit.last_tick = self.last_tick;
        self.plain_offset += commit.plain_length;
        self.next_index += commit.allocations;
        self.unmatched = 0;
        let padding = self.plain_offset < self.padded;
        self.writer = mtrc::Writer::resume(mtrc::Options { padding, ..mtrc::Options::default() }, self.writer.window());
        chunk
    }
}

//! Effects -> the bytes of a chunk: MTRC records, and the tape's columns beside them.

use crate::live::Call;
use formats::leb128;
use formats::mtrc::layout::{ALLOC, FREE, RESIZE};
use formats::mtrc::{self, Location};
use formats::tape::field::Field;
use formats::tape::{
    self, COLUMN_ENTRIES, COLUMN_PREVIOUS, COLUMN_SITES, COLUMN_TICKS, COLUMN_UNMATCHED, COLUMN_WEIGHTS, Unmatched,
};

/// A piece of the trace that can be decoded alone, before it is compressed.
#[derive(Debug, Default)]
pub struct Chunk {
    /// What the tape says of it; places and columns are filled in when it is stored.
    pub commit: tape::Chunk,
    /// MTRC records.
    pub plain: Vec<u8>,
    /// Plain columns and their kinds; of empty ones only [`COLUMN_PREVIOUS`] is stored.
    pub columns: [(u8, Vec<u8>); 6],
    /// Its events by thread.
    pub threads: Vec<(u32, u64)>,
}

impl Chunk {
    fn clear(&mut self) {
        self.commit = tape::Chunk::default();
        self.plain.clear();
        self.threads.clear();
        let kinds = [COLUMN_ENTRIES, COLUMN_TICKS, COLUMN_SITES, COLUMN_WEIGHTS, COLUMN_UNMATCHED, COLUMN_PREVIOUS];
        for (column, kind) in self.columns.iter_mut().zip(kinds) {
            column.0 = kind;
            column.1.clear();
        }
    }
}

/// Bytes that are composed in place: what counts ends at `at`, zeros or scraps follow.
#[derive(Debug, Default)]
struct Sheet {
    bytes: Vec<u8>,
    at: usize,
}

impl Sheet {
    fn over(mut bytes: Vec<u8>) -> Sheet {
        let at = bytes.len();
        bytes.resize(at + PAGE, 0);
        Sheet { bytes, at }
    }

    #[inline(always)]
    fn room<const N: usize>(&mut self) -> &mut [u8; N] {
        if self.at + N > self.bytes.len() {
            self.bytes.resize(self.at + PAGE, 0);
        }
        self.bytes[self.at..].first_chunk_mut().unwrap_or_else(|| unreachable!("a page is larger than any room"))
    }

    /// Appends a number: four bytes at once, of which those that count are kept.
    #[inline(always)]
    fn put(&mut self, value: u64) {
        if value >= 1 << 28 {
            return self.append(|bytes| leb128::write(bytes, value));
        }
        let size = (38 - (value as u32 | 1).leading_zeros()) / 7;
        let word = value as u32;
        let word = (word & 0x0000_3fff) | (word & 0x0fff_c000) << 2;
        let word = (word & 0x007f_007f) | (word & 0x3f80_3f80) << 1;
        let word = word | (0x0080_8080 & ((1 << (8 * (size - 1))) - 1));
        *self.room() = word.to_le_bytes();
        self.at += size as usize;
    }

    /// Lets others append.
    #[cold]
    fn append(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        self.bytes.truncate(self.at);
        write(&mut self.bytes);
        self.at = self.bytes.len();
    }

    fn take(self) -> Vec<u8> {
        let mut bytes = self.bytes;
        bytes.truncate(self.at);
        bytes
    }
}

/// How traces are written: for mpatrol's own reader, too.
fn padded() -> mtrc::Options {
    mtrc::Options { padding: true, ..mtrc::Options::default() }
}

/// Bytes by which a sheet grows.
const PAGE: usize = 4096;

/// Writes the trace of one image, chunk by chunk.
#[derive(Debug)]
pub struct Trace {
    writer: mtrc::Writer,
    commit: tape::Chunk,
    plain: Sheet,
    entries: Sheet,
    ticks: Sheet,
    sites: Sheet,
    weights: Sheet,
    unmatched: Sheet,
    was: Sheet,
    unmatched_count: u32,
    number: u32,
    plain_offset: u64,
    next_index: u64,
    has_weights: bool,
    free_sites: bool,
    /// Tick of the last event; deltas count from it.
    last_tick: u64,
}

impl Trace {
    /// Starts a trace; the header is part of the first chunk. Numbers are padded so that mpatrol's
    /// own reader can read the plain file, whatever its size.
    pub fn new(has_weights: bool, free_sites: bool) -> Trace {
        let mut writer = mtrc::Writer::new(padded());
        let mut header = Vec::new();
        writer.header(&mut header);
        let column = || Sheet::over(Vec::new());
        Trace {
            writer,
            commit: tape::Chunk::default(),
            plain: Sheet::over(header),
            entries: column(),
            ticks: column(),
            sites: column(),
            weights: column(),
            unmatched: column(),
            was: column(),
            unmatched_count: 0,
            number: 0,
            plain_offset: 0,
            next_index: 1,
            has_weights,
            free_sites,
            last_tick: 0,
        }
    }

    /// Events in the chunk so far, unmatched ones among them.
    #[inline(always)]
    pub fn events(&self) -> u64 {
        self.commit.events + u64::from(self.unmatched_count)
    }

    /// Plain bytes so far.
    pub fn plain_bytes(&self) -> u64 {
        self.plain_offset + self.plain.at as u64
    }

    /// Whether there is no chunk yet: not even the header was handed on.
    pub fn is_new(&self) -> bool {
        self.number == 0
    }

    /// What is alike for all records: entry and tick.
    #[inline(always)]
    fn begin(&mut self, entry: u8, tick: u64) {
        if self.events() == 0 {
            self.start(tick);
        }
        self.commit.events += 1;
        *self.entries.room() = [entry];
        self.entries.at += 1;
        let tick = tick.max(self.last_tick);
        self.ticks.put(tick - self.last_tick);
        self.last_tick = tick;
    }

    #[cold]
    fn start(&mut self, tick: u64) {
        (self.commit.first_tick, self.last_tick) = (tick, tick);
    }

    #[inline(always)]
    fn record<const N: usize>(&mut self, letter: u8, numbers: [u64; N], thread: u32) {
        let size = self.writer.compose(self.plain.room(), letter, numbers, thread.into());
        self.plain.at += size;
        if size == 0 {
            self.record_carefully(letter, &numbers, thread);
        }
    }

    #[cold]
    fn record_carefully(&mut self, letter: u8, numbers: &[u64], thread: u32) {
        let (writer, place) = (&mut self.writer, Location::thread(thread.into()));
        self.plain.append(|plain| match (letter, numbers) {
            (ALLOC, &[index, address, size]) => writer.alloc(plain, index, address, size, &place),
            (RESIZE, &[index, address, size]) => writer.resize(plain, index, address, size, &place),
            _ => writer.free(plain, numbers.first().copied().unwrap_or(0), &place),
        });
    }

    #[inline(always)]
    fn taking(&mut self, site: u32, weight: u64) {
        self.sites.put(site.into());
        if self.has_weights {
            self.weights.put(weight);
        }
    }

    /// Appends an `A`.
    #[inline(always)]
    pub fn alloc(&mut self, call: &Call, entry: u8, index: u64) {
        self.begin(entry, call.tick);
        self.commit.allocations += 1;
        self.record(ALLOC, [index, call.address, call.size], call.thread);
        self.taking(call.site, call.weight);
    }

    /// What a block was before an `R` or `F`; none: not the image's own.
    #[inline(always)]
    fn was(&mut self, index: u64, was: Option<(u32, u64)>) {
        if index < self.next_index {
            self.was.put(was.map_or(0, |(site, _)| u64::from(site) + 1));
            if let Some((_, bytes)) = was {
                self.was.put(bytes);
            }
        }
    }

    /// Appends an `R` of a block that was there, its bytes what it counted for.
    #[inline(always)]
    pub fn resize(&mut self, call: &Call, entry: u8, index: u64, was: Option<(u32, u64)>) {
        self.was(index, was);
        self.begin(entry, call.tick);
        self.record(RESIZE, [index, call.address, call.size], call.thread);
        self.taking(call.site, call.weight);
    }

    /// Appends an `F` of such a block.
    #[inline(always)]
    pub fn free(&mut self, call: &Call, entry: u8, index: u64, was: Option<(u32, u64)>) {
        self.was(index, was);
        self.begin(entry, call.tick);
        self.record(FREE, [index], call.thread);
        if self.free_sites {
            self.sites.put(call.site.into());
        }
    }

    /// Appends a free that has no record.
    #[cold]
    pub fn unmatched(&mut self, call: &Call, entry: u8) {
        if self.events() == 0 {
            self.start(call.tick);
        }
        let unmatched = Unmatched {
            position: self.commit.events as u32,
            address: call.address,
            thread: call.thread,
            entry,
            tick: call.tick.saturating_sub(self.commit.first_tick),
        };
        self.unmatched.append(|bytes| unmatched.put(bytes));
        self.unmatched_count += 1;
    }

    /// Ends the chunk and starts the next one in `spare`.
    pub fn cut(&mut self, mut spare: Chunk) -> Chunk {
        spare.clear();
        let Chunk { plain, columns, threads, .. } = spare;
        let turn = |sheet: &mut Sheet, spare: Vec<u8>| std::mem::replace(sheet, Sheet::over(spare)).take();
        let sheets = [
            &mut self.entries,
            &mut self.ticks,
            &mut self.sites,
            &mut self.weights,
            &mut self.unmatched,
            &mut self.was,
        ];
        let mut sheets = sheets.into_iter();
        let columns = columns.map(|(kind, spare)| (kind, sheets.next().map_or(Vec::new(), |sheet| turn(sheet, spare))));
        let plain = turn(&mut self.plain, plain);
        self.number += 1;
        let mut commit = std::mem::take(&mut self.commit);
        commit.number = self.number;
        commit.plain_offset = self.plain_offset;
        commit.plain_length = plain.len() as u64;
        commit.first_index = self.next_index;
        commit.last_tick = self.last_tick;
        self.plain_offset += commit.plain_length;
        self.next_index += commit.allocations;
        self.unmatched_count = 0;
        self.writer = mtrc::Writer::resume(padded(), self.writer.window());
        Chunk { commit, plain, columns, threads }
    }
}

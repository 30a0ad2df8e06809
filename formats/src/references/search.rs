//! Finds the words that are addresses of blocks.

mod offsets;

use super::blocks::BlockTable;
use super::regions::StoppedThread;
use super::{ADDRESS_BITS, Memory};
use crate::tape::{
    BlockPacker, Edge, EdgePacker, FirstWords, MAX_COUNT, ROOT_DATA, ROOT_EARLIER, ROOT_MAPPING, ROOT_REGISTERS,
    Record, ReferenceBlock, RootRegion,
};
use std::io;
use std::time::Instant;

/// Number of bytes that are read at once.
const WINDOW: usize = 1 << 20;
/// Free memory between two blocks that is read with them: less costs another system call.
const MAX_GAP: u64 = 16 << 10;

/// Writes a record.
type Put<'a> = &'a mut dyn FnMut(Record) -> io::Result<()>;

/// What was found.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// References in blocks.
    pub edges: u64,
    /// References outside of blocks.
    pub root_edges: u64,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Bytes that were not searched for want of time.
    pub unread_bytes: u64,
}

impl Counts {
    /// Returns why references may be missing.
    pub fn lacks(&self) -> Option<String> {
        (self.unread_bytes > 0).then(|| format!("{} bytes were not searched for want of time", self.unread_bytes))
    }
}

/// A search for references.
#[derive(Debug)]
pub struct Search<'a> {
    table: &'a BlockTable,
    memory: &'a dyn Memory,
    files: &'a [(u64, u64)],
    /// Mappings of code that the program makes itself. Its instructions have addresses anywhere.
    code: &'a [(u64, u64)],
    /// Number of the name of the libc whose `malloc` has the blocks.
    libc: Option<u32>,
    /// Memory of the allocator that holds nothing, in ascending order.
    empty: &'a [(u64, u64)],
    deadline: Instant,
    buffer: Vec<u8>,
    span: usize,
    /// A bit for each block to which another block or a region leads.
    referred: Vec<u64>,
    /// What was found so far.
    pub found: Counts,
}

/// Bytes of a block, from `offset` on.
struct Piece<'b> {
    number: usize,
    at: u64,
    offset: u64,
    bytes: &'b [u8],
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word))
}

impl<'a> Search<'a> {
    /// Prepares a search, with the mappings of files and of the program's own code. `libc` is the number of
    /// the name of glibc if the blocks are those of its `malloc`.
    pub fn new(
        table: &'a BlockTable,
        memory: &'a dyn Memory,
        [files, code]: [&'a [(u64, u64)]; 2],
        libc: Option<u32>,
        deadline: Instant,
    ) -> Search<'a> {
        let (buffer, found) = (vec![0; WINDOW], Counts::default());
        let referred = vec![0; table.len().div_ceil(64)];
        Search { table, memory, files, code, libc, empty: &[], deadline, buffer, span: 0, referred, found }
    }

    /// Leaves out free memory and the allocator's own, in ascending order, where it has blocks that are not
    /// known.
    #[must_use]
    pub fn without(self, empty: &'a [(u64, u64)]) -> Search<'a> {
        Search { empty, ..self }
    }

    /// Returns whether a word of the allocator's memory may be of a block that is not known.
    fn may_be_earlier(&self, at: u64, span: &mut usize) -> bool {
        let after = self.empty.partition_point(|(start, _)| *start <= at);
        let is_empty = after.checked_sub(1).is_some_and(|last| at < self.empty[last].1);
        !is_empty && self.table.find(at, span).is_none()
    }

    /// Searches the regions outside of blocks.
    pub fn roots(&mut self, regions: &[RootRegion], threads: &[StoppedThread], put: Put<'_>) -> io::Result<()> {
        let mut packer = EdgePacker::default();
        for (number, region) in (0..).zip(regions) {
            if region.kind == ROOT_REGISTERS {
                let registers = threads.iter().find(|thread| thread.tid == region.thread);
                for (word, value) in (0..).zip(registers.into_iter().flat_map(|thread| &thread.registers)) {
                    if let Some((target, inside)) = self.target(*value) {
                        self.refer(target);
                        packer.push(Edge { source: number, offset: 8 * word, target, inside });
                        self.found.root_edges += 1;
                    }
                }
                continue;
            }
            let is_libc = region.kind == ROOT_DATA && Some(region.name) == self.libc;
            let is_code = self.code.iter().any(|code| (code.0..code.1).contains(&region.start));
            let mut at = region.start.next_multiple_of(8);
            let end = region.start.saturating_add(region.length);
            let is_allocators = region.kind == ROOT_EARLIER || (region.kind == ROOT_MAPPING && !self.empty.is_empty());
            let mut own_span = 0;
            while let Some(there) = self.memory.next_there(at) {
                at = at.max(there & !7);
                if at.saturating_add(8) > end {
                    break;
                }
                let length = ((end - at) & !7).min(WINDOW as u64) as usize;
                if !self.read(at, length) {
                    break;
                }
                let buffer = std::mem::take(&mut self.buffer);
                let first = at - region.start.next_multiple_of(8);
                let mut is_full = false;
                let mut look = |search: &mut Self, word: u64, value: u64| {
                    if value == 0 {
                        return false;
                    }
                    let Some((target, inside)) = search.target(value) else { return false };
                    if is_allocators && !search.may_be_earlier(at + 8 * word, &mut own_span) {
                        return false;
                    }
                    if is_libc && search.is_chunk(target, inside) {
                        return false;
                    }
                    search.refer(target);
                    is_full |= packer.push(Edge { source: number, offset: first + 8 * word, target, inside });
                    search.found.root_edges += 1;
                    true
                };
                if is_code {
                    let mut last = None;
                    for (byte, bytes) in (0..).zip(buffer[..length].windows(8)) {
                        let value = bytes.try_into().map_or(0, u64::from_le_bytes);
                        // One for each word of the file.
                        if last != Some(byte / 8) && look(self, byte / 8, value) {
                            last = Some(byte / 8);
                        }
                    }
                } else {
                    for (word, value) in (0..).zip(words(&buffer[..length])) {
                        look(self, word, value);
                    }
                }
                self.buffer = buffer;
                if is_full && let Some(record) = packer.take_roots()? {
                    put(Record::ReferenceRoots(record))?;
                }
                at += length as u64;
            }
        }
        match packer.take_roots()? {
            Some(record) => put(Record::ReferenceRoots(record)),
            None => Ok(()),
        }
    }

    /// Returns whether a word of libc's data is the address of a chunk of glibc's main arena: a chunk
    /// begins 16 bytes before its block, in the last usable word of the block before it.
    fn is_chunk(&self, block: u64, inside: u64) -> bool {
        let start = self.address(block as usize);
        inside > 0 && start + inside + 8 == self.table.end(block as usize)
    }

    /// Fills the buffer. Returns false if there is no time left.
    fn read(&mut self, at: u64, length: usize) -> bool {
        if Instant::now() >= self.deadline {
            self.found.unread_bytes += length as u64;
            return false;
        }
        self.found.read_bytes += self.memory.read(at, &mut self.buffer[..length]);
        true
    }

    #[inline]
    fn target(&mut self, word: u64) -> Option<(u64, u64)> {
        let number = self.table.find(word, &mut self.span)?;
        Some((number as u64, word - self.table.get(number)?.address))
    }

    fn refer(&mut self, target: u64) {
        if let Some(bits) = self.referred.get_mut(target as usize / 64) {
            *bits |= 1 << (target % 64);
        }
    }

    /// Searches the blocks.
    pub fn blocks(&mut self, put: Put<'_>) -> io::Result<()> {
        let (mut blocks, mut edges) = (BlockPacker::default(), EdgePacker::default());
        self.each_piece(|search, piece| {
            let Piece { number, at, offset, bytes } = piece;
            if offset == 0 && blocks.push(&search.described(number, bytes)) {
                put_all(blocks.take()?.map(Record::ReferenceBlocks), put)?;
            }
            search.edges_of(number, at, offset, bytes, &mut edges, put)
        })?;
        put_all(blocks.take()?.map(Record::ReferenceBlocks), put)?;
        put_all(edges.take_edges()?.map(Record::ReferenceEdges), put)
    }

    /// Reads each block, in pieces if it is large. Those that are not read for want of time have no bytes.
    fn each_piece(&mut self, mut visit: impl FnMut(&mut Self, Piece<'_>) -> io::Result<()>) -> io::Result<()> {
        let mut first = 0;
        while first < self.table.len() {
            let (start, next) = self.window(first);
            let last_end = self.table.end(next - 1);
            if last_end - start <= WINDOW as u64 {
                let length = (last_end - start) as usize;
                let is_read = self.read(start, length);
                let buffer = std::mem::take(&mut self.buffer);
                for number in first..next {
                    let (at, to) = (self.address(number), self.table.end(number));
                    let bytes = if is_read { &buffer[(at - start) as usize..(to - start) as usize] } else { &[] };
                    visit(self, Piece { number, at, offset: 0, bytes })?;
                }
                self.buffer = buffer;
            } else {
                let mut at = start;
                while at < last_end {
                    // Words are aligned: so is each window but the first one.
                    let length = (last_end - at).min(WINDOW as u64 - at % 8) as usize;
                    let is_read = self.read(at, length);
                    let buffer = std::mem::take(&mut self.buffer);
                    let bytes = if is_read { &buffer[..length] } else { &[] };
                    visit(self, Piece { number: first, at, offset: at - start, bytes })?;
                    self.buffer = buffer;
                    at += length as u64;
                }
            }
            first = next;
        }
        Ok(())
    }

    fn address(&self, number: usize) -> u64 {
        self.table.get(number).map_or(0, |block| block.address)
    }

    /// Returns the start of a window, and the number of the first block after it: blocks near each
    /// other are read at once. A block that is too large for a window has one alone.
    fn window(&self, first: usize) -> (u64, usize) {
        let start = self.address(first);
        let (mut end, mut next) = (self.table.end(first), first + 1);
        while next < self.table.len() {
            let (from, to) = (self.address(next), self.table.end(next));
            if from - end.min(from) > MAX_GAP || to - start > WINDOW as u64 {
                break;
            }
            (end, next) = (to, next + 1);
        }
        (start, next)
    }

    /// Adds the edges of some bytes of a block, which begin at `at`, `offset` bytes after its start.
    fn edges_of(
        &mut self,
        number: usize,
        at: u64,
        offset: u64,
        bytes: &[u8],
        edges: &mut EdgePacker,
        put: Put<'_>,
    ) -> io::Result<()> {
        let skipped = (at.next_multiple_of(8) - at) as usize;
        for (word, value) in (0..).zip(words(bytes.get(skipped..).unwrap_or_default())) {
            // Most words are small numbers or text.
            if value < 4096 || value >> ADDRESS_BITS != 0 {
                continue;
            }
            let Some((target, inside)) = self.target(value) else { continue };
            // Into itself, as in a short std::string. One to its start may be counted, as an Rc is.
            if target == number as u64 && inside > 0 {
                continue;
            }
            if target != number as u64 {
                self.refer(target);
            }
            self.found.edges += 1;
            // Offsets are multiples of 8: those of a block that is not aligned begin at its first word.
            let offset = (offset / 8 + word) * 8;
            if edges.push(Edge { source: number as u64, offset, target, inside }) {
                put_all(edges.take_edges()?.map(Record::ReferenceEdges), put)?;
            }
        }
        Ok(())
    }

    /// Returns what is stored of a block.
    fn described(&self, number: usize, bytes: &[u8]) -> ReferenceBlock {
        let Some(block) = self.table.get(number) else { return ReferenceBlock::default() };
        let mut first = words(bytes);
        let (first, second) = (first.next().unwrap_or(0), first.next().unwrap_or(0));
        ReferenceBlock {
            address: block.address,
            size: block.size,
            usable: self.table.end(number) - block.address,
            site: block.site,
            index: block.index,
            first: self.first_words(first, second),
        }
    }

    fn first_words(&self, first: u64, second: u64) -> FirstWords {
        let is_small = |word: u64| (1..=MAX_COUNT).contains(&word);
        let after = self.files.partition_point(|file| file.0 <= first);
        let is_in_file = after > 0 && first < self.files[after - 1].1;
        let halves = (second & 0xffff_ffff, second >> 32);
        match is_in_file {
            true if second != 0 && halves.0 <= MAX_COUNT && halves.1 <= MAX_COUNT => {
                FirstWords { pointer: first, counts: (halves.0 as u16, halves.1 as u16) }
            }
            true => FirstWords { pointer: first, counts: (0, 0) },
            false if is_small(first) && is_small(second) => {
                FirstWords { pointer: 0, counts: (first as u16, second as u16) }
            }
            false => FirstWords::default(),
        }
    }
}

fn put_all(record: Option<Record>, put: Put<'_>) -> io::Result<()> {
    record.map_or(Ok(()), put)
}

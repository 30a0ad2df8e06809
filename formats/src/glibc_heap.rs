//! The blocks of glibc's malloc, found by its own bookkeeping in the memory of a process that
//! nobody recorded (malloc/malloc.c and malloc/arena.c, 2.31 to 2.41).
//!
//! A chunk begins with the size of the chunk before it, if that is free, and its own size with three
//! flags, so that we can go from one to the next. Chunks of thread caches and fast bins look as if
//! they were in use; these lists say that they are free.

mod arenas;
mod lists;
mod reader;
mod walk;

use crate::references::{Mapping, Memory};
use reader::Reader;

/// Maximum number of chunks: those of a larger heap are left out, and that is said.
const MAX_CHUNKS: usize = 1 << 25;
/// Maximum number of faults that are kept.
const MAX_FAULTS: usize = 64;
/// Bytes of a chunk before its block.
const HEADER: u64 = 16;
/// Bits of a packed chunk that its size has.
const SIZE_BITS: u32 = 56;
/// Bits of an address of a process: 47 on x86-64.
const ADDRESS_BITS: u32 = 48;

/// What a chunk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A block of the program.
    Live,
    /// Free, in the cache of a thread.
    Cached,
    /// Free, in a fast bin.
    Fast,
    /// Free, in a bin of its arena.
    Binned,
    /// What the arena has not given to anybody since it grew.
    Top,
    /// The allocator's own.
    Own,
    /// What follows a chunk whose size is wrong, up to where chunks go on: it may be blocks.
    Unknown,
}

const STATES: [State; 7] =
    [State::Live, State::Cached, State::Fast, State::Binned, State::Top, State::Own, State::Unknown];

impl State {
    /// Returns whether it is free memory.
    pub const fn is_free(self) -> bool {
        matches!(self, State::Cached | State::Fast | State::Binned | State::Top)
    }
}

/// A block, or free memory of the size of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Address of the block: the chunk begins 16 bytes before it.
    pub address: u64,
    /// Usable bytes, and the state above them.
    packed: u64,
}

impl Chunk {
    fn new(address: u64, usable: u64, state: State) -> Chunk {
        Chunk { address, packed: usable & ((1 << SIZE_BITS) - 1) | (state as u64) << SIZE_BITS }
    }

    /// Returns the number of bytes that the program may use.
    pub const fn usable(&self) -> u64 {
        self.packed & ((1 << SIZE_BITS) - 1)
    }

    /// Returns what it is.
    pub fn state(&self) -> State {
        STATES[(self.packed >> SIZE_BITS) as usize % STATES.len()]
    }

    /// Returns the first address after it.
    pub const fn end(&self) -> u64 {
        self.address.saturating_add(self.usable())
    }

    fn set_state(&mut self, state: State) {
        *self = Chunk::new(self.address, self.usable(), state);
    }
}

/// What is wrong with a heap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Address of the word that is wrong.
    pub address: u64,
    /// What is wrong with it, e.g. `the size of a chunk is 0x4141414141414141`.
    pub what: String,
    /// The block before it: who writes beyond its own end hits what follows.
    pub before: Option<Chunk>,
    /// Bytes from there on of which it is not known what they are.
    pub unknown: u64,
}

/// The heap of a process.
#[derive(Debug, Default)]
pub struct Heap {
    /// All chunks, in ascending order.
    pub chunks: Vec<Chunk>,
    /// The memory that is the allocator's, blocks included.
    pub ranges: Vec<(u64, u64)>,
    /// The states of arenas, and what a heap of one begins with.
    heads: Vec<(u64, u64)>,
    /// Number of arenas.
    pub arenas: usize,
    /// What is wrong with it.
    pub faults: Vec<Fault>,
    /// Why chunks may be missing, or free ones seem to be in use.
    pub lacks: Vec<String>,
    /// Number of addresses that were tried behind chunks whose sizes are wrong.
    tried: u64,
}

/// Where a process has its memory.
#[derive(Clone, Copy, Debug)]
pub struct Places<'a> {
    /// Writable data of modules, with their zeros.
    pub data: &'a [(u64, u64)],
    /// Writable memory without a file, but for stacks.
    pub anonymous: &'a [(u64, u64)],
}

impl Places<'_> {
    /// Returns the memory without a file that an address is in.
    fn around(&self, address: u64) -> Option<(u64, u64)> {
        self.anonymous.iter().copied().find(|(start, end)| (*start..*end).contains(&address))
    }
}

impl Heap {
    /// Finds the chunks of a process. Returns `None` if there is no arena of glibc.
    pub fn find(memory: &dyn Memory, places: Places<'_>) -> Option<Heap> {
        let is_sane = |(start, end): &(u64, u64)| *start >= 1 << 12 && start < end && end >> ADDRESS_BITS == 0;
        let sane = |ranges: &[(u64, u64)]| ranges.iter().copied().filter(is_sane).collect::<Vec<_>>();
        let (data, anonymous) = (sane(places.data), sane(places.anonymous));
        let places = Places { data: &data, anonymous: &anonymous };
        let mut reader = Reader::new(memory);
        let found = arenas::find(&mut reader, places.data);
        if found.mains.is_empty() {
            return None;
        }
        let mut heap = Heap { arenas: found.arenas.len(), lacks: found.lacks, ..Heap::default() };
        heap.ranges.extend(found.mains.iter().map(|main| (main.address, main.address + arenas::STATE_BYTES)));
        heap.heads.clone_from(&heap.ranges);
        for arena in &found.arenas {
            walk::arena(&mut reader, arena, places, &mut heap);
        }
        let mut arenas: Vec<(u64, u64)> = heap.ranges.clone();
        arenas.sort_unstable();
        for main in &found.mains {
            walk::mapped(&mut reader, main, places, &arenas, &mut heap);
        }
        heap.chunks.sort_unstable_by_key(|chunk| chunk.address);
        heap.chunks.dedup_by_key(|chunk| chunk.address);
        if heap.chunks.len() >= MAX_CHUNKS {
            heap.lacks.push(format!("chunks after the first {MAX_CHUNKS} were left out"));
        }
        lists::mark(&mut reader, &found.arenas, &mut heap);
        heap.ranges.sort_unstable();
        Some(heap)
    }

    /// Finds the chunks of a process by its mappings, which are in ascending order. Mappings with the stack
    /// pointer of a thread have none.
    pub fn in_mappings<'m>(
        memory: &dyn Memory,
        mappings: impl Iterator<Item = Mapping<'m>>,
        stack_pointers: &[u64],
    ) -> Option<Heap> {
        let (mut data, mut anonymous) = (Vec::new(), Vec::new());
        let mut data_end = 0;
        for mapping in mappings.filter(|mapping| mapping.is_writable && !mapping.is_ours()) {
            let range = (mapping.start, mapping.end);
            let is_unnamed = matches!(mapping.name, "" | "[heap]") || mapping.name.starts_with("[anon");
            if !is_unnamed && mapping.name.starts_with('[') {
                continue;
            }
            if !is_unnamed || mapping.start == data_end {
                data.push(range);
                data_end = if is_unnamed { 0 } else { mapping.end };
            }
            if is_unnamed && !stack_pointers.iter().any(|sp| (range.0..range.1).contains(sp)) {
                anonymous.push(range);
            }
        }
        Heap::find(memory, Places { data: &data, anonymous: &anonymous })
    }

    /// Returns the memory that no block has, in ascending order: free blocks, and what is the allocator's
    /// own.
    pub fn empty(&self) -> Vec<(u64, u64)> {
        let is_empty = |chunk: &&Chunk| chunk.state().is_free() || chunk.state() == State::Own;
        let mut empty = self.heads.clone();
        empty.extend(self.chunks.iter().filter(is_empty).map(|chunk| (chunk.address, chunk.end())));
        empty.sort_unstable();
        empty
    }

    /// Returns the chunk that an address is in, its header included.
    pub fn at(&self, address: u64) -> Option<&Chunk> {
        let after = self.chunks.partition_point(|chunk| chunk.address - HEADER <= address);
        self.chunks[..after].last().filter(|chunk| address < chunk.end())
    }

    /// Returns the blocks in use, in ascending order, and what may be some.
    pub fn live(&self) -> impl Iterator<Item = &Chunk> {
        self.chunks.iter().filter(|chunk| matches!(chunk.state(), State::Live | State::Unknown))
    }

    /// Returns the index of the chunk that begins at an address.
    fn index(&self, chunk: u64) -> Option<usize> {
        let block = chunk.checked_add(HEADER)?;
        self.chunks.binary_search_by_key(&block, |chunk| chunk.address).ok()
    }

    fn fault(&mut self, address: u64, what: String, before: Option<Chunk>, unknown: u64) {
        if self.faults.len() < MAX_FAULTS {
            self.faults.push(Fault { address, what, before, unknown });
        }
    }

    fn push(&mut self, address: u64, usable: u64, state: State) -> bool {
        let is_room = self.chunks.len() < MAX_CHUNKS;
        if is_room {
            self.chunks.push(Chunk::new(address, usable, state));
        }
        is_room
    }
}

#[cfg(test)]
mod tests;

//! The live blocks in ascending order of their addresses, as far as they are needed at a time.

use super::bill::LiveBlock;
use super::heaps::arena_of;
use super::size_class::{Allocator, Occupied};
use rustc_hash::FxHashSet;

/// A source of live blocks in ascending order of their addresses.
pub trait BlockSource {
    /// Returns the first addresses of the ranges of 64 MiB in which there are blocks that glibc
    /// would have in an arena. They are only needed for glibc.
    fn arenas(&self) -> FxHashSet<u64>;

    /// Appends the next blocks, at least one. Returns whether there were any. No address is
    /// appended twice.
    fn next(&mut self, blocks: &mut Vec<LiveBlock>) -> bool;
}

/// Live blocks that are all in memory.
#[derive(Debug, Default)]
pub struct SortedBlocks(Vec<LiveBlock>);

impl SortedBlocks {
    /// Sorts blocks. Of several ones with the same address the youngest one is kept.
    pub fn new(mut blocks: Vec<LiveBlock>) -> SortedBlocks {
        blocks.sort_unstable_by_key(|block| (block.address, std::cmp::Reverse(block.tick)));
        blocks.dedup_by_key(|block| block.address);
        SortedBlocks(blocks)
    }
}

impl BlockSource for SortedBlocks {
    fn arenas(&self) -> FxHashSet<u64> {
        self.0.iter().filter_map(arena_of).collect()
    }

    fn next(&mut self, blocks: &mut Vec<LiveBlock>) -> bool {
        blocks.append(&mut self.0);
        !blocks.is_empty()
    }
}

/// A live block with the bytes that it occupies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Used {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) live_end: u64,
    pub(super) block: LiveBlock,
}

/// The blocks around the current address. Blocks are numbered from 0 by their addresses. Where the
/// bytes of two blocks overlap, they belong to the later one.
pub(super) struct Window<'a> {
    source: &'a mut dyn BlockSource,
    allocator: &'a dyn Fn(&LiveBlock) -> Allocator,
    blocks: Vec<LiveBlock>,
    /// Whether a block was already counted as one that keeps a page.
    counted: Vec<bool>,
    /// Number of the first block in `blocks`.
    from: usize,
    /// Smallest number of a block that is still needed.
    pub(super) needed: usize,
    is_over: bool,
}

impl std::fmt::Debug for Window<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Window").field("from", &self.from).field("blocks", &self.blocks.len()).finish_non_exhaustive()
    }
}

impl<'a> Window<'a> {
    /// Creates the window on the first blocks of a source.
    pub(super) fn new(source: &'a mut dyn BlockSource, allocator: &'a dyn Fn(&LiveBlock) -> Allocator) -> Window<'a> {
        Window { source, allocator, blocks: Vec::new(), counted: Vec::new(), from: 0, needed: 0, is_over: false }
    }

    #[cold]
    fn load(&mut self) {
        // The block before a block limits where its bytes begin.
        let unneeded = self.needed.saturating_sub(1).saturating_sub(self.from).min(self.blocks.len());
        self.blocks.drain(..unneeded);
        self.counted.drain(..unneeded);
        self.from += unneeded;
        let before = self.blocks.len();
        self.is_over = !self.source.next(&mut self.blocks) || self.blocks.len() == before;
        self.counted.resize(self.blocks.len(), false);
    }

    /// Returns a block by its number.
    fn block(&mut self, number: usize) -> Option<LiveBlock> {
        while number - self.from >= self.blocks.len() && !self.is_over {
            self.load();
        }
        self.blocks.get(number - self.from).copied()
    }

    fn occupied(&self, block: &LiveBlock) -> Occupied {
        (self.allocator)(block).occupied(block.address, block.size)
    }

    /// Returns a block by its number, with the bytes that it occupies.
    pub(super) fn get(&mut self, number: usize) -> Option<Used> {
        let block = self.block(number)?;
        let next = self.block(number + 1);
        let before = number.checked_sub(1).and_then(|number| self.block(number));
        let own_end = block.address.saturating_add(block.size);
        let Occupied { start, end } = self.occupied(&block);
        let before_end = before.map_or(0, |before| before.address.saturating_add(before.size).min(block.address));
        let (mut live_end, mut end) = (own_end, end.max(own_end));
        if let Some(next) = next {
            live_end = live_end.min(next.address);
            // The header before a block is not part of the block before.
            end = end.min(self.occupied(&next).start.max(live_end));
        }
        Some(Used { start: start.max(before_end), end, live_end, block })
    }

    /// Marks a block as counted. Returns whether it was not before.
    pub(super) fn count(&mut self, number: usize) -> bool {
        match self.counted.get_mut(number - self.from) {
            Some(counted) => !std::mem::replace(counted, true),
            None => false,
        }
    }
}

//! The set of live blocks, by allocation index.
//!
//! Indexes are assigned in order of allocation, so blocks that are allocated together are stored
//! together, in pages of 64 blocks. A page is created with its first block and removed with its
//! last. A page that is no longer among the youngest is shrunk to at most four times its live
//! blocks. So memory depends on the number of live blocks only, not on their indexes: 60 to 230
//! bytes per block. Pages beyond the memory limit are stored in a temporary file.

mod frames;
mod spill;

use crate::event::Position;
use frames::{Frames, KINDS, group_size, kind_for};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// Number of blocks of a page: one for each bit of a `u64`.
const BLOCKS_PER_PAGE: usize = 64;
/// The kind of a group with all blocks of a page.
const FULL_KIND: u8 = KINDS as u8 - 1;
/// Number of pages that are young. 128 pages of 3 KiB fit into the CPU's second-level cache.
const YOUNG_PAGES: usize = 128;
/// Maximum number of frames in memory. At 3 KiB each these are 192 MiB, or 4 million blocks if all
/// pages are full.
const RESIDENT_FRAMES: usize = 64 << 10;
/// Maximum length of the page table. Pages with higher numbers are in a hash map. The table has at
/// most 64 MiB, for a thousand million allocations.
const TABLE_LIMIT: usize = 16 << 20;
/// Number of entries that the table may have in addition to four for each page ever created.
const TABLE_SLACK: u64 = 1 << 16;

/// A live block of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Block {
    /// Address of the first byte.
    pub address: u64,
    /// Number of bytes that the block counts for. For a sampled block this is its weight.
    pub size: u64,
    /// Timestamp of its allocation, in ticks.
    pub tick: u64,
    /// Number of events before its allocation.
    pub number: u64,
    /// Call site of its allocation or latest reallocation.
    pub site: u32,
    /// Thread of its allocation or latest reallocation.
    pub thread: u32,
    /// Number of times the block was reallocated.
    pub resizes: u32,
    /// The function that was called, as a `tape::Entry` number.
    pub entry: u8,
    /// Whether the block was inherited from the parent process by fork.
    pub inherited: bool,
    /// How exact `tick` is, as [`crate::event::Event::tick_error`].
    pub tick_error: u8,
}

impl Block {
    /// Returns when it was allocated.
    pub const fn allocated(&self) -> Position {
        Position { number: self.number, tick: self.tick }
    }
}

/// A page with live blocks, or the newest page.
#[derive(Debug)]
struct Page {
    /// Page number: allocation index / 64.
    number: u64,
    /// Bit set of the offsets with a live block.
    occupied: u64,
    /// Bit set of the offsets that have a block in the group, in ascending order.
    reserved: u64,
    /// Index of the first block of the page's group in [`Frames`].
    group_start: u32,
    kind: u8,
    /// Number of live blocks at which the page is shrunk or removed, or `None` for the newest page.
    shrink_at: Option<u8>,
}

impl Page {
    /// Returns the index in [`Frames`] of the block at an offset of the page.
    #[inline]
    const fn block_index(&self, offset: usize) -> u32 {
        match self.kind {
            FULL_KIND => self.group_start + offset as u32,
            _ => self.group_start + (self.reserved & ((1 << offset) - 1)).count_ones(),
        }
    }
}

#[derive(Debug)]
pub struct LiveSet {
    pages: Vec<Page>,
    /// Indexes of unused entries of `pages`.
    free_entries: Vec<u32>,
    /// Number of the first page that was created. The table starts there.
    first_page: Option<u64>,
    /// Indexes in `pages` plus one, by page number minus `first_page`. 0 if there is no page.
    table: Vec<u32>,
    /// Indexes in `pages` of the pages that are not in the table, by page number.
    map: FxHashMap<u64, u32>,
    /// Number of pages ever created.
    pages_created: u64,
    /// Numbers of the young pages, oldest first.
    young: VecDeque<u64>,
    frames: Frames,
}

impl Default for LiveSet {
    fn default() -> Self {
        LiveSet::with_frame_limit(RESIDENT_FRAMES)
    }
}

impl LiveSet {
    /// Creates a set that keeps at most `max_frames` frames of 64 blocks in memory.
    pub(crate) fn with_frame_limit(max_frames: usize) -> Self {
        LiveSet {
            pages: Vec::new(),
            free_entries: Vec::new(),
            first_page: None,
            table: Vec::new(),
            map: FxHashMap::default(),
            pages_created: 0,
            young: VecDeque::new(),
            frames: Frames::with_limit(max_frames),
        }
    }

    /// Splits an allocation index into page number and offset.
    const fn split(index: u64) -> (u64, usize) {
        (index / BLOCKS_PER_PAGE as u64, (index % BLOCKS_PER_PAGE as u64) as usize)
    }

    /// Returns the index of a page number in the table. It may be beyond the end.
    #[inline]
    fn table_index(&self, number: u64) -> usize {
        usize::try_from(number.wrapping_sub(self.first_page.unwrap_or(number))).unwrap_or(usize::MAX)
    }

    /// Returns the index in `pages` of a page number.
    #[inline]
    fn page_index(&self, number: u64) -> Option<u32> {
        match self.table.get(self.table_index(number)) {
            Some(&page_index) if page_index > 0 => Some(page_index - 1),
            _ if self.map.is_empty() => None,
            _ => self.map.get(&number).copied(),
        }
    }

    /// Adds a block. Returns the block that had this index, which happens with corrupt files only.
    #[inline]
    pub fn insert(&mut self, index: u64, block: Block) -> Option<Block> {
        let (number, offset) = Self::split(index);
        let page_index = match self.page_index(number) {
            Some(page_index) => page_index,
            None => self.add_page(number),
        };
        let bit = 1 << offset;
        if self.pages[page_index as usize].reserved & bit == 0 {
            self.change_group(page_index, self.pages[page_index as usize].occupied | bit);
        }
        let page = &mut self.pages[page_index as usize];
        let previous = std::mem::replace(self.frames.block(page.block_index(offset)), block);
        let was_occupied = page.occupied & bit != 0;
        page.occupied |= bit;
        was_occupied.then_some(previous)
    }

    /// Removes a block and returns it.
    #[inline]
    pub fn remove(&mut self, index: u64) -> Option<Block> {
        let (number, offset) = Self::split(index);
        let page_index = self.page_index(number)?;
        let page = &mut self.pages[page_index as usize];
        let bit = 1 << offset;
        if page.occupied & bit == 0 {
            return None;
        }
        page.occupied &= !bit;
        let block = *self.frames.block(page.block_index(offset));
        if page.shrink_at.is_some_and(|shrink_at| page.occupied.count_ones() <= u32::from(shrink_at)) {
            self.shrink_or_remove(page_index);
        }
        Some(block)
    }

    #[inline]
    pub fn get_mut(&mut self, index: u64) -> Option<&mut Block> {
        let (number, offset) = Self::split(index);
        let page = &self.pages[self.page_index(number)? as usize];
        (page.occupied & 1 << offset != 0).then(|| self.frames.block(page.block_index(offset)))
    }

    /// Returns the sites of blocks, or 0 for those that are not in memory, and loads the blocks
    /// into the CPU's cache. Each step is done for all blocks before the next, so that their cache
    /// misses overlap.
    #[inline]
    pub fn prefetch<const N: usize>(&self, indexes: &[u64; N]) -> [u32; N] {
        let pages = indexes.map(|index| self.page_index(index / BLOCKS_PER_PAGE as u64).unwrap_or(u32::MAX));
        let block_indexes: [u32; N] = std::array::from_fn(|i| {
            let (_, offset) = Self::split(indexes[i]);
            let page = self.pages.get(pages[i] as usize).filter(|page| page.occupied & 1 << offset != 0);
            page.map_or(u32::MAX, |page| page.block_index(offset))
        });
        block_indexes.map(|index| {
            // A block may span two cache lines.
            let block = self.frames.prefetch(index).map(|block| (block.site, block.address));
            std::hint::black_box(block).map_or(0, |(site, _)| site)
        })
    }

    /// Returns all live blocks with their indexes, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Block)> + '_ {
        self.pages.iter().filter(|page| page.occupied != 0).flat_map(|page| {
            let mut blocks = [Block::default(); BLOCKS_PER_PAGE];
            self.frames.read(page.group_start, page.reserved.count_ones() as usize, &mut blocks);
            let offsets = (0..BLOCKS_PER_PAGE).filter(|offset| page.occupied & 1 << offset != 0);
            offsets.map(move |offset| {
                let block = blocks[(page.block_index(offset) - page.group_start) as usize];
                (page.number * BLOCKS_PER_PAGE as u64 + offset as u64, block)
            })
        })
    }

    /// Removes the blocks for which `keep` returns false.
    pub fn retain(&mut self, mut keep: impl FnMut(u64, &Block) -> bool) {
        let mut blocks = [Block::default(); BLOCKS_PER_PAGE];
        for page in self.pages.iter_mut().filter(|page| page.occupied != 0) {
            self.frames.read(page.group_start, page.reserved.count_ones() as usize, &mut blocks);
            let occupied = page.occupied;
            for offset in (0..BLOCKS_PER_PAGE).filter(|offset| occupied & 1 << offset != 0) {
                let block = &blocks[(page.block_index(offset) - page.group_start) as usize];
                if !keep(page.number * BLOCKS_PER_PAGE as u64 + offset as u64, block) {
                    page.occupied &= !(1 << offset);
                }
            }
        }
    }

    /// Moves a page to a smaller group, or removes it if it is empty.
    #[cold]
    #[inline(never)]
    fn shrink_or_remove(&mut self, page_index: u32) {
        let page = &self.pages[page_index as usize];
        if page.occupied != 0 {
            if page.kind > kind_for(page.occupied.count_ones()) {
                self.change_group(page_index, page.occupied);
            }
            return;
        }
        let (number, kind, group) = (page.number, page.kind, page.group_start);
        self.frames.release(group, kind);
        let table_index = self.table_index(number);
        match self.table.get_mut(table_index) {
            Some(entry) if *entry == page_index + 1 => *entry = 0,
            _ => drop(self.map.remove(&number)),
        }
        self.free_entries.push(page_index);
    }

    /// Moves the blocks of a page to a group that has at least the offsets `reserved`.
    #[cold]
    #[inline(never)]
    fn change_group(&mut self, page_index: u32, reserved: u64) {
        let kind = kind_for(reserved.count_ones());
        let group = self.frames.allocate(kind);
        let page = &mut self.pages[page_index as usize];
        let old = std::mem::replace(
            page,
            Page { group_start: group, kind, reserved: if kind == FULL_KIND { !0 } else { reserved }, ..*page },
        );
        page.shrink_at = page.shrink_at.map(|_| shrink_threshold(kind));
        for offset in (0..BLOCKS_PER_PAGE).filter(|offset| old.occupied & 1 << offset != 0) {
            let block = *self.frames.block(old.block_index(offset));
            *self.frames.block(page.block_index(offset)) = block;
        }
        self.frames.release(old.group_start, old.kind);
    }

    /// Creates a page. The oldest young page may be shrunk from now on.
    #[cold]
    #[inline(never)]
    fn add_page(&mut self, number: u64) -> u32 {
        if let Some(page) = self.young.back().and_then(|&newest| self.page_index(newest)) {
            self.pages[page as usize].shrink_at = Some(0);
            if self.pages[page as usize].occupied == 0 {
                self.shrink_or_remove(page);
            }
        }
        if self.young.len() >= YOUNG_PAGES
            && let Some(old) = self.young.pop_front().and_then(|oldest| self.page_index(oldest))
        {
            self.pages[old as usize].shrink_at = Some(shrink_threshold(self.pages[old as usize].kind));
            self.shrink_or_remove(old);
        }
        let page = Page {
            number,
            occupied: 0,
            reserved: !0,
            group_start: self.frames.allocate(FULL_KIND),
            kind: FULL_KIND,
            shrink_at: None,
        };
        let page_index = match self.free_entries.pop() {
            Some(page_index) => {
                self.pages[page_index as usize] = page;
                page_index
            }
            None => {
                self.pages.push(page);
                self.pages.len() as u32 - 1
            }
        };
        self.young.push_back(number);
        self.pages_created += 1;
        self.first_page.get_or_insert(number);
        let table_index = self.table_index(number);
        if table_index < TABLE_LIMIT && table_index as u64 <= self.pages_created * 4 + TABLE_SLACK {
            if table_index >= self.table.len() {
                self.table.resize(table_index + 1, 0);
            }
            self.table[table_index] = page_index + 1;
        } else {
            self.map.insert(number, page_index);
        }
        page_index
    }
}

/// Returns the number of blocks at which a page with a group of this kind moves to a smaller one.
const fn shrink_threshold(kind: u8) -> u8 {
    if kind == 0 { 0 } else { group_size(kind - 1) as u8 }
}

#[cfg(test)]
mod tests;

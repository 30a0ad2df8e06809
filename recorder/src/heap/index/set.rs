//! A set: up to four blocks of a part of a region, in one line of the cache.

use super::{Block, REGION_LOG2};

/// Number of blocks of a set.
const CELLS: usize = 4;
/// Number of sets of a slab, a power of two.
pub(crate) const SLAB_SETS: usize = 1 << SLAB_LOG2;
/// Binary logarithm of the number of sets of a slab.
pub(crate) const SLAB_LOG2: u32 = 10;
/// The lowest bit of each tag.
const LOW_BITS: u64 = 0x0001_0001_0001_0001;
/// The highest bit of each tag, which is set for a cell that is taken.
const HIGH_BITS: u64 = 0x8000_8000_8000_8000;

/// Up to four blocks, apart from the addresses of their region, in one line of the cache.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
pub(super) struct Set {
    /// The [`tag`] of each cell, 0 if it is free.
    tags: u64,
    /// Bits 32 to 47 of the allocation indexes, and their lower ones.
    high_index: [u16; CELLS],
    low_index: [u32; CELLS],
    sizes: [u32; CELLS],
    sites: [u32; CELLS],
}

/// Returns what identifies a block in its region: the offset, and a bit that is always set.
#[inline(always)]
fn tag(address: u64) -> u64 {
    0x8000 | offset(address)
}

/// Returns the offset of an address in its region.
#[inline(always)]
pub(super) fn offset(address: u64) -> u64 {
    address & ((1 << REGION_LOG2) - 1)
}

/// Returns the first cell with this tag.
#[inline(always)]
fn find(tags: u64, tag: u64) -> Option<usize> {
    // Only the lowest of the bits is certain.
    let differ = tags ^ (LOW_BITS * tag);
    let equal = differ.wrapping_sub(LOW_BITS) & !differ & HIGH_BITS;
    (equal != 0).then(|| equal.trailing_zeros() as usize / 16)
}

impl Set {
    #[inline(always)]
    fn put(&mut self, cell: usize, tag: u64, block: Block) {
        let cell = cell & (CELLS - 1);
        self.tags = self.tags & !(0xffff << (16 * cell)) | tag << (16 * cell);
        self.high_index[cell] = (block.index >> 32) as u16;
        self.low_index[cell] = block.index as u32;
        self.sizes[cell] = block.size as u32;
        self.sites[cell] = block.site;
    }

    #[inline(always)]
    fn block(&self, cell: usize) -> Block {
        let cell = cell & (CELLS - 1);
        Block {
            index: u64::from(self.high_index[cell]) << 32 | u64::from(self.low_index[cell]),
            size: self.sizes[cell].into(),
            site: self.sites[cell],
        }
    }

    #[inline(always)]
    pub(super) fn get(&self, address: u64) -> Option<Block> {
        find(self.tags, tag(address)).map(|cell| self.block(cell))
    }

    /// Inserts a block whose size is below 2^32, if there is a free cell.
    #[inline(always)]
    pub(super) fn insert(&mut self, address: u64, block: Block) -> Inserted {
        match (find(self.tags, tag(address)), find(self.tags, 0)) {
            (Some(cell), _) => {
                let old = self.block(cell);
                self.put(cell, tag(address), block);
                Inserted::Replaced(old)
            }
            (None, Some(cell)) => {
                self.put(cell, tag(address), block);
                Inserted::New
            }
            (None, None) => Inserted::Full,
        }
    }

    /// Returns the cell of the block at an address.
    #[inline(always)]
    pub(super) fn cell(&self, address: u64) -> Option<usize> {
        find(self.tags, tag(address))
    }

    /// Removes the block in a cell, and returns it.
    #[inline(always)]
    pub(super) fn remove(&mut self, cell: usize) -> Block {
        let block = self.block(cell);
        self.tags &= !(0xffff << (16 * (cell & (CELLS - 1))));
        block
    }

    /// Makes all cells of the set free.
    pub(super) fn clear(&mut self) {
        self.tags = 0;
    }

    /// Returns whether the set has no blocks.
    pub(super) fn is_empty(&self) -> bool {
        self.tags == 0
    }

    /// Returns the offsets of the blocks in the region, and the blocks.
    pub(super) fn blocks(&self) -> impl Iterator<Item = (u64, Block)> {
        let tags = (0..CELLS).map(|cell| (cell, self.tags >> (16 * cell) & 0xffff));
        tags.filter(|(_, tag)| *tag != 0).map(|(cell, tag)| (offset(tag), self.block(cell)))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inserted {
    /// The address was free.
    New,
    /// This block was at the address, and was replaced.
    Replaced(Block),
    /// Nothing, since the set of the address is full or does not exist.
    Full,
}

/// The sets of one allocation of memory.
#[derive(Clone, Debug)]
pub(crate) struct Slab(pub [Set; SLAB_SETS]);

impl Default for Slab {
    fn default() -> Self {
        Slab([Set::default(); SLAB_SETS])
    }
}

impl Slab {
    /// Makes this slab equal to another one.
    pub(super) fn copy_from(&mut self, other: &Slab) {
        self.0.copy_from_slice(&other.0);
    }
}

//! The live blocks of regions: each region has a run of 1 to 512 sets, and each set has cells for
//! the four blocks of a part of the region.

use super::memory::{Memory, SlabMemory};
use super::{Block, REGION_LOG2};
use crate::sys::prefetch;
use std::sync::Arc;

/// Number of blocks of a set.
const CELLS: usize = 4;
/// Number of sets of a slab, a power of two.
const SLAB_SETS: usize = 1 << SLAB_LOG2;
const SLAB_LOG2: u32 = 10;
/// Binary logarithm of the number of sets of the largest run: one set for each 32 bytes.
pub const MAX_LOG2: u32 = REGION_LOG2 - 5;
/// The lowest bit of each tag.
const LOW_BITS: u64 = 0x0001_0001_0001_0001;
/// The highest bit of each tag, which is set for a cell that is taken.
const HIGH_BITS: u64 = 0x8000_8000_8000_8000;

/// Up to four blocks, apart from the addresses of their region, in one line of the cache.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Set {
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
pub fn tag(address: u64) -> u64 {
    0x8000 | offset(address)
}

#[inline(always)]
fn offset(address: u64) -> u64 {
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

    fn blocks(&self) -> impl Iterator<Item = (u64, Block)> {
        let tags = (0..CELLS).map(|cell| (cell, self.tags >> (16 * cell) & 0xffff));
        tags.filter(|(_, tag)| *tag != 0).map(|(cell, tag)| (tag, self.block(cell)))
    }
}

/// The sets of one allocation of memory.
#[derive(Clone, Debug)]
pub struct Slab([Set; SLAB_SETS]);

impl Default for Slab {
    fn default() -> Self {
        Slab([Set::default(); SLAB_SETS])
    }
}

impl Slab {
    /// Makes this slab equal to another one.
    pub fn copy_from(&mut self, other: &Slab) {
        self.0.copy_from_slice(&other.0);
    }
}

/// A slab. Sharing an owned one does not copy it.
#[derive(Debug)]
enum SharedSlab {
    Owned(SlabMemory),
    Shared(Arc<SlabMemory>),
}

/// The sets of a region. They are in one slab.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// Number of the first set.
    first: u32,
    /// Binary logarithm of the number of sets.
    log2: u32,
}

/// Number of a set that does not exist.
pub const NO_SET: u32 = u32::MAX;

impl Run {
    /// Returns the number of the set for an address of the region.
    #[inline(always)]
    pub fn set_of(self, address: u64) -> u32 {
        self.first + (offset(address) >> (REGION_LOG2 - self.log2)) as u32
    }
}

/// What [`Sets::insert`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// The address was free.
    New,
    /// This block was at the address, and was replaced.
    Replaced(Block),
    /// Nothing, since the set of the address is full or does not exist.
    Full,
}

/// The sets of all regions.
#[derive(Debug, Default)]
pub struct Sets {
    memory: Memory,
    slabs: Vec<SharedSlab>,
    /// The first sets of the free runs of each length.
    free: [Vec<u32>; SLAB_LOG2 as usize + 1],
}

impl Sets {
    #[inline(always)]
    fn set(&self, number: u32) -> Option<&Set> {
        let slab: &Slab = match self.slabs.get(number as usize >> SLAB_LOG2)? {
            SharedSlab::Owned(slab) => slab,
            SharedSlab::Shared(slab) => slab,
        };
        Some(&slab.0[number as usize % SLAB_SETS])
    }

    #[inline(always)]
    fn set_mut(&mut self, number: u32) -> Option<&mut Set> {
        let slab = self.slabs.get_mut(number as usize >> SLAB_LOG2)?;
        if let SharedSlab::Shared(shared) = slab {
            *slab = SharedSlab::Owned(self.memory.copy(shared));
        }
        match slab {
            SharedSlab::Owned(slab) => Some(&mut slab.0[number as usize % SLAB_SETS]),
            SharedSlab::Shared(_) => unreachable!("it was copied"),
        }
    }

    /// Prefetches a set.
    #[inline(always)]
    pub fn prefetch(&self, set: u32) {
        if let Some(set) = self.set(set) {
            prefetch(set);
        }
    }

    /// Returns the block at an address.
    pub fn get(&self, set: u32, address: u64) -> Option<Block> {
        let set = self.set(set)?;
        find(set.tags, tag(address)).map(|cell| set.block(cell))
    }

    /// Inserts a block whose size is below 2^32, if the set of its address exists and is not full.
    #[inline(always)]
    pub fn insert(&mut self, set: u32, address: u64, block: Block) -> Inserted {
        let Some(set) = self.set_mut(set) else { return Inserted::Full };
        match (find(set.tags, tag(address)), find(set.tags, 0)) {
            (Some(cell), _) => {
                let old = set.block(cell);
                set.put(cell, tag(address), block);
                Inserted::Replaced(old)
            }
            (None, Some(cell)) => {
                set.put(cell, tag(address), block);
                Inserted::New
            }
            (None, None) => Inserted::Full,
        }
    }

    /// Removes the block at an address.
    #[inline(always)]
    pub fn remove(&mut self, set: u32, address: u64) -> Option<Block> {
        // The block is searched for before a shared slab is copied: a child frees many blocks that
        // it does not have.
        let cell = find(self.set(set)?.tags, tag(address))?;
        let set = self.set_mut(set)?;
        let block = set.block(cell);
        set.tags &= !(0xffff << (16 * cell));
        Some(block)
    }

    fn sets(&self, run: Run) -> impl Iterator<Item = &Set> {
        (run.first..run.first + (1 << run.log2)).filter_map(|set| self.set(set))
    }

    /// Returns the blocks of a run with their tags, nearly in ascending order.
    pub fn blocks(&self, run: Run) -> impl Iterator<Item = (u64, Block)> {
        self.sets(run).flat_map(Set::blocks)
    }

    /// Returns whether a run has no blocks.
    pub fn is_empty(&self, run: Run) -> bool {
        self.sets(run).all(|set| set.tags == 0)
    }

    /// Takes a run of one set without blocks.
    pub fn take_run(&mut self) -> Run {
        self.take(0)
    }

    fn take(&mut self, log2: u32) -> Run {
        let first = self.free_run(log2);
        for set in first..first + (1 << log2) {
            if let Some(set) = self.set_mut(set) {
                set.tags = 0;
            }
        }
        Run { first, log2 }
    }

    /// Returns the first set of a free run: half of one of twice the length, if there is none of
    /// this length.
    fn free_run(&mut self, log2: u32) -> u32 {
        if let Some(first) = self.free[log2 as usize].pop() {
            return first;
        }
        if log2 == SLAB_LOG2 {
            self.slabs.push(SharedSlab::Owned(self.memory.empty()));
            return (self.slabs.len() as u32 - 1) << SLAB_LOG2;
        }
        let first = self.free_run(log2 + 1);
        self.free[log2 as usize].push(first + (1 << log2));
        first
    }

    /// Frees a run.
    pub fn free_again(&mut self, run: Run) {
        self.free[run.log2 as usize].push(run.first);
    }

    /// Moves the blocks of a run to one of twice the length, or longer ones if more than four of
    /// them belong to one set there. Returns the new run, or none if no length suffices.
    pub fn lengthened(&mut self, run: Run) -> Option<Run> {
        let blocks: Vec<(u64, Block)> = self.blocks(run).collect();
        for log2 in run.log2 + 1..=MAX_LOG2 {
            let longer = self.take(log2);
            if blocks.iter().all(|(tag, block)| self.insert(longer.set_of(*tag), *tag, *block) == Inserted::New) {
                self.free_again(run);
                return Some(longer);
            }
            self.free_again(longer);
        }
        None
    }

    /// Returns a copy that shares all slabs until one side changes them.
    pub fn snapshot(&mut self) -> Sets {
        let mut copy = Sets { free: self.free.clone(), ..Sets::default() };
        for slab in std::mem::take(&mut self.slabs) {
            let slab = match slab {
                SharedSlab::Owned(slab) => Arc::new(slab),
                SharedSlab::Shared(slab) => slab,
            };
            copy.slabs.push(SharedSlab::Shared(Arc::clone(&slab)));
            self.slabs.push(SharedSlab::Shared(slab));
        }
        copy
    }

    /// Returns the number of huge pages.
    #[cfg(test)]
    pub fn pages(&self) -> usize {
        self.memory.pages()
    }

    /// Returns the bytes of all slabs.
    pub fn bytes(&self) -> u64 {
        (self.slabs.len() * size_of::<Slab>()) as u64
    }
}

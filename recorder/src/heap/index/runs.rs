//! The sets of all regions: each region has a run of 1 to 512 of them, one for each part of the
//! region.

use super::memory::{Memory, SlabMemory};
use super::set::{Inserted, SLAB_LOG2, SLAB_SETS, Set, Slab, offset};
use super::{Block, REGION_LOG2};
use crate::os::processor::prefetch;
use std::sync::Arc;

/// Binary logarithm of the number of sets of the largest run: one set for each 32 bytes.
const MAX_LOG2: u32 = REGION_LOG2 - 5;

/// A slab. Sharing an owned one does not copy it.
#[derive(Debug)]
enum SharedSlab {
    Owned(SlabMemory),
    Shared(Arc<SlabMemory>),
}

/// The sets of a region. They are in one slab.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Run {
    first: u32,
    /// Binary logarithm of the number of sets.
    log2: u32,
}

/// Number of a set that does not exist.
pub(crate) const NO_SET: u32 = u32::MAX;

impl Run {
    /// Returns the number of the set for an address of the region.
    #[inline(always)]
    pub(super) fn set_of(self, address: u64) -> u32 {
        self.first + (offset(address) >> (REGION_LOG2 - self.log2)) as u32
    }
}

/// The sets of all regions.
#[derive(Debug, Default)]
pub(super) struct Runs {
    memory: Memory,
    slabs: Vec<SharedSlab>,
    /// The first sets of the free runs of each length.
    free: [Vec<u32>; SLAB_LOG2 as usize + 1],
}

impl Runs {
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

    #[inline(always)]
    pub(super) fn prefetch(&self, set: u32) {
        if let Some(set) = self.set(set) {
            prefetch(set);
        }
    }

    pub(super) fn get(&self, set: u32, address: u64) -> Option<Block> {
        self.set(set)?.get(address)
    }

    /// Inserts a block whose size is below 2^32, if the set of its address exists and is not full.
    #[inline(always)]
    pub(super) fn insert(&mut self, set: u32, address: u64, block: Block) -> Inserted {
        self.set_mut(set).map_or(Inserted::Full, |set| set.insert(address, block))
    }

    #[inline(always)]
    pub(super) fn remove(&mut self, set: u32, address: u64) -> Option<Block> {
        // The block is searched for before a shared slab is copied: a child frees many blocks that
        // it does not have.
        let cell = self.set(set)?.cell(address)?;
        Some(self.set_mut(set)?.remove(cell))
    }

    fn sets(&self, run: Run) -> impl Iterator<Item = &Set> {
        (run.first..run.first + (1 << run.log2)).filter_map(|set| self.set(set))
    }

    /// Returns the offsets and blocks of a run, nearly in ascending order.
    pub(super) fn blocks(&self, run: Run) -> impl Iterator<Item = (u64, Block)> {
        self.sets(run).flat_map(Set::blocks)
    }

    /// Returns whether a run has no blocks.
    pub(super) fn is_empty(&self, run: Run) -> bool {
        self.sets(run).all(Set::is_empty)
    }

    /// Takes a run of one set without blocks.
    pub(crate) fn take_run(&mut self) -> Run {
        self.take(0)
    }

    fn take(&mut self, log2: u32) -> Run {
        let first = self.free_run(log2);
        for set in first..first + (1 << log2) {
            if let Some(set) = self.set_mut(set) {
                set.clear();
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

    pub(crate) fn free_again(&mut self, run: Run) {
        self.free[run.log2 as usize].push(run.first);
    }

    /// Moves the blocks of a run to one of twice the length, or longer ones if more than four of
    /// them belong to one set there. Returns the new run, or none if no length suffices.
    pub(crate) fn lengthened(&mut self, run: Run) -> Option<Run> {
        if run.log2 == MAX_LOG2 {
            return None;
        }
        let blocks: Vec<(u64, Block)> = self.blocks(run).collect();
        for log2 in run.log2 + 1..=MAX_LOG2 {
            let longer = self.take(log2);
            if blocks
                .iter()
                .all(|(offset, block)| self.insert(longer.set_of(*offset), *offset, *block) == Inserted::New)
            {
                self.free_again(run);
                return Some(longer);
            }
            self.free_again(longer);
        }
        None
    }

    /// Returns a copy that shares all slabs until one side changes them.
    pub(super) fn snapshot(&mut self) -> Runs {
        let mut copy = Runs { free: self.free.clone(), ..Runs::default() };
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
    pub(super) fn pages(&self) -> usize {
        self.memory.pages()
    }

    /// Returns the bytes of all slabs.
    pub(super) fn bytes(&self) -> u64 {
        (self.slabs.len() * size_of::<Slab>()) as u64
    }
}

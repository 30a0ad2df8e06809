//! The live blocks of one process: a map from the address to allocation index, size and site.
//!
//! The table follows the heap's own order: a [`directory`] leads to the blocks of each
//! region of 16 KiB, and the offset of a block determines its [`set`]. So neighbors in the heap
//! are neighbors in the table, blocks are moved only when a region gets more sets, and nothing but
//! the offset is compared. A snapshot (for a forked child) shares the memory; a change of a shared
//! piece copies it first.
//!
//! The location of a block can be found long before the block is used. So the memory is requested
//! in time, and what must be done in order does not wait for the directory.
//!
//! A block takes 16 bytes in a set, and 16 to 41 on average with the free cells of its region; the
//! only one of its region takes 106.

mod directory;
#[allow(unsafe_code)]
mod memory;
mod runs;
mod set;

use directory::Directory;
use runs::{NO_SET, Run, Runs};
use set::Inserted;
use std::collections::HashMap;

/// Binary logarithm of the number of bytes of a region: its offsets and one more bit fit into 16
/// bits.
const REGION_LOG2: u32 = 14;

/// A live block, apart from its address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Block {
    /// Allocation index, below 2^48.
    pub index: u64,
    /// Requested bytes, below 2^48 (no CPU addresses more).
    pub size: u64,
    /// Site where the block was allocated.
    pub site: u32,
}

/// The largest size that is stored. Larger sizes, which only a hostile client sends, are reduced to
/// it.
pub(crate) const MAX_SIZE: u64 = (1 << 48) - 1;

/// Where the block at an address is or would be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Location {
    set: u32,
    /// The location is valid as long as the table has this number.
    moves: u32,
}

/// The table of live blocks.
#[derive(Debug)]
pub(crate) struct Index {
    directory: Directory,
    runs: Runs,
    /// How often blocks were moved.
    moves: u32,
    count: u64,
    /// Blocks that fit into no set: those of 4 GiB and more, more than four within 32 bytes, and
    /// those of regions that were chosen on purpose so that the directory cannot tell them apart.
    others: HashMap<u64, Block>,
}

impl Default for Index {
    fn default() -> Self {
        Index::new(random_multiplier())
    }
}

fn random_multiplier() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    // A value near the golden ratio spreads neighbors well; the random bits keep it secret.
    0x9e37_79b9_7f4a_7c15 ^ (RandomState::new().hash_one(0u8) & 0xffff_fffe)
}

#[inline(always)]
fn region(address: u64) -> u64 {
    address >> REGION_LOG2
}

impl Index {
    fn new(multiplier: u64) -> Index {
        Index {
            directory: Directory::new(multiplier),
            runs: Runs::default(),
            moves: 0,
            count: 0,
            others: HashMap::new(),
        }
    }

    /// Returns the number of live blocks.
    pub(crate) fn len(&self) -> u64 {
        self.count
    }

    /// Returns the number of bytes of memory that the table has. Memory that it shares with
    /// snapshots is included.
    pub(crate) fn memory(&self) -> u64 {
        self.directory.bytes() + self.runs.bytes() + 32 * self.others.len() as u64
    }

    #[inline(always)]
    fn set_of(&self, address: u64) -> u32 {
        self.directory.get(region(address)).map_or(NO_SET, |run| run.set_of(address))
    }

    /// Returns the location of an address, and prefetches its memory.
    #[inline(always)]
    pub(crate) fn location(&self, address: u64) -> Location {
        let set = self.set_of(address);
        self.runs.prefetch(set);
        Location { set, moves: self.moves }
    }

    /// Returns the set of an address, whose location was found before.
    #[inline(always)]
    fn set_at(&self, location: Location, address: u64) -> u32 {
        if location.moves == self.moves { location.set } else { self.set_of(address) }
    }

    /// Returns the number of huge pages of the table.
    #[cfg(test)]
    fn pages(&self) -> usize {
        self.runs.pages()
    }

    pub(crate) fn get(&self, address: u64) -> Option<Block> {
        let found = self.runs.get(self.set_of(address), address);
        if self.others.is_empty() { found } else { found.or_else(|| self.others.get(&address).copied()) }
    }

    /// Inserts a block at an address and returns the one that was there.
    pub(crate) fn insert(&mut self, address: u64, block: Block) -> Option<Block> {
        self.insert_at(self.location(address), address, block)
    }

    /// Inserts a block at an address, whose location was found before, and returns the one that was
    /// there.
    #[inline(always)]
    pub(crate) fn insert_at(&mut self, location: Location, address: u64, block: Block) -> Option<Block> {
        if block.size <= u32::MAX.into() {
            match self.runs.insert(self.set_at(location, address), address, block) {
                Inserted::New => {
                    self.count += 1;
                    return self.remove_other(address);
                }
                Inserted::Replaced(old) => return Some(old),
                Inserted::Full => {}
            }
        }
        self.insert_carefully(address, block)
    }

    pub(crate) fn remove(&mut self, address: u64) -> Option<Block> {
        self.remove_at(self.location(address), address)
    }

    /// Removes the block at an address, whose location was found before.
    #[inline(always)]
    pub(crate) fn remove_at(&mut self, location: Location, address: u64) -> Option<Block> {
        let found = self.runs.remove(self.set_at(location, address), address);
        if found.is_none() {
            return self.remove_other(address);
        }
        self.count -= 1;
        found
    }

    /// Removes a block that fits into no set.
    #[inline(always)]
    fn remove_other(&mut self, address: u64) -> Option<Block> {
        if self.others.is_empty() {
            return None;
        }
        let found = self.others.remove(&address);
        self.count -= u64::from(found.is_some());
        found
    }

    /// Inserts a block for which there is no free cell yet, or which fits into no set.
    #[cold]
    #[inline(never)]
    fn insert_carefully(&mut self, address: u64, block: Block) -> Option<Block> {
        let old = self.remove(address);
        self.count += 1;
        if block.size > u32::MAX.into() || !self.insert_into_set(address, block) {
            self.others.insert(address, block);
        }
        old
    }

    /// Inserts a block at a free address into a set, if that is possible. Returns whether it is.
    fn insert_into_set(&mut self, address: u64, block: Block) -> bool {
        let region = region(address);
        let Some(mut run) = self.directory.get(region).or_else(|| self.add_region(region)) else { return false };
        while self.runs.insert(run.set_of(address), address, block) == Inserted::Full {
            self.moves = self.moves.wrapping_add(1);
            let Some(longer) = self.runs.lengthened(run) else { return false };
            self.directory.replace(region, longer);
            run = longer;
        }
        true
    }

    /// Adds a region without blocks.
    fn add_region(&mut self, region: u64) -> Option<Run> {
        self.moves = self.moves.wrapping_add(1);
        let (run, runs) = (self.runs.take_run(), &mut self.runs);
        let free_if_empty = |run| {
            runs.is_empty(run) && {
                runs.free_again(run);
                true
            }
        };
        let added = self.directory.add(region, run, free_if_empty);
        if !added {
            self.runs.free_again(run);
        }
        added.then_some(run)
    }

    /// Returns a copy that shares all blocks until one side changes them.
    pub(crate) fn snapshot(&mut self) -> Index {
        let Index { directory, runs, moves, count, others } = self;
        let (directory, others) = (directory.clone(), others.clone());
        Index { directory, runs: runs.snapshot(), moves: *moves, count: *count, others }
    }

    /// Returns all live blocks with their addresses. The blocks of 16 KiB follow each other.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, Block)> + '_ {
        let stored = self.directory.iter().flat_map(|(region, run)| {
            let first = region << REGION_LOG2;
            self.runs.blocks(run).map(move |(offset, block)| (first | offset, block))
        });
        stored.chain(self.others.iter().map(|(address, block)| (*address, *block)))
    }
}

#[cfg(test)]
mod tests;

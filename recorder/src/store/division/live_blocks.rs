//! The live blocks of the index in ascending order of their addresses. The index is a hash table:
//! it is read once for each band of addresses, so that the sorted blocks take little memory.

use crate::heap::index::{Block, Index};
use formats::resident::{BlockSource, LiveBlock, arena_of};
use rustc_hash::{FxHashMap, FxHashSet};

/// Number of blocks of a band up to which the number of bands does not matter: 16 MiB.
const MIN_BAND: u64 = 1 << 19;
/// Number of bands of a table with more blocks: each of them reads the table once.
const BANDS: u64 = 8;
/// Binary logarithm of the unit of addresses in which bands are measured: 1 MiB.
const UNIT_LOG2: u32 = 20;

/// The blocks of several indexes.
#[derive(Debug)]
pub(super) struct LiveBlocks<'a> {
    indexes: &'a [Index],
    /// The first unit of each band but the first, in descending order.
    borders: Vec<u64>,
    /// The first unit of the next band; `None` after the last one.
    next: Option<u64>,
    arenas: FxHashSet<u64>,
    blocks: u64,
    inherited_blocks: u64,
    inherited_bytes: u64,
}

/// Returns a block of an index. Inherited ones have no call site in this process.
fn live_block(number: usize, address: u64, block: Block) -> LiveBlock {
    let Block { size, site, .. } = block;
    match number {
        0 => LiveBlock { address, size, site, tick: 1 },
        _ => LiveBlock { address, size, site: 0, tick: 0 },
    }
}

impl LiveBlocks<'_> {
    /// Prepares the bands of the blocks of these indexes. The first one has the own blocks of the
    /// process, the others those that it has inherited.
    pub(super) fn new(indexes: &[Index]) -> LiveBlocks<'_> {
        let mut units: FxHashMap<u64, u64> = FxHashMap::default();
        let mut found = LiveBlocks {
            indexes,
            borders: Vec::new(),
            next: Some(0),
            arenas: FxHashSet::default(),
            blocks: 0,
            inherited_blocks: 0,
            inherited_bytes: 0,
        };
        let (mut last_arena, mut last_unit, mut in_unit) = (u64::MAX, u64::MAX, 0);
        for (number, index) in indexes.iter().enumerate() {
            for (address, block) in index.iter() {
                let block = live_block(number, address, block);
                found.blocks += 1;
                if number > 0 {
                    found.inherited_blocks += 1;
                    found.inherited_bytes += block.size;
                }
                // Neighbors in the table are often neighbors in memory.
                if let Some(arena) = arena_of(&block).filter(|arena| *arena != last_arena) {
                    found.arenas.insert(arena);
                    last_arena = arena;
                }
                if address >> UNIT_LOG2 != last_unit {
                    *units.entry(last_unit).or_default() += in_unit;
                    (last_unit, in_unit) = (address >> UNIT_LOG2, 0);
                }
                in_unit += 1;
            }
        }
        *units.entry(last_unit).or_default() += in_unit;
        let mut units: Vec<(u64, u64)> = units.into_iter().filter(|(_, blocks)| *blocks > 0).collect();
        units.sort_unstable();
        let (most, mut in_band) = (MIN_BAND.max(found.blocks / BANDS), 0);
        for (unit, blocks) in units {
            if in_band > 0 && in_band + blocks > most {
                found.borders.push(unit);
                in_band = 0;
            }
            in_band += blocks;
        }
        found.borders.reverse();
        found
    }

    pub(super) fn blocks(&self) -> u64 {
        self.blocks
    }

    pub(super) fn inherited_blocks(&self) -> u64 {
        self.inherited_blocks
    }

    pub(super) fn inherited_bytes(&self) -> u64 {
        self.inherited_bytes
    }
}

impl BlockSource for LiveBlocks<'_> {
    fn arenas(&self) -> FxHashSet<u64> {
        self.arenas.clone()
    }

    fn next(&mut self, blocks: &mut Vec<LiveBlock>) -> bool {
        let Some(from) = self.next else { return false };
        self.next = self.borders.pop();
        let band = from..self.next.unwrap_or(u64::MAX);
        let before = blocks.len();
        for (number, index) in self.indexes.iter().enumerate() {
            let inside = index.iter().filter(|(address, _)| band.contains(&(address >> UNIT_LOG2)));
            blocks.extend(inside.map(|(address, block)| live_block(number, address, block)));
        }
        let band = &mut blocks[before..];
        if self.inherited_blocks == 0 {
            band.sort_unstable_by_key(|block| block.address);
            return true;
        }
        band.sort_unstable_by_key(|block| (block.address, std::cmp::Reverse(block.tick)));
        // An own block replaces an inherited one, whose free was not seen.
        let mut last = None;
        let mut kept = before;
        for index in before..blocks.len() {
            if last != Some(blocks[index].address) {
                last = Some(blocks[index].address);
                blocks[kept] = blocks[index];
                kept += 1;
            }
        }
        blocks.truncate(kept);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(indexes: &[Index]) -> Vec<LiveBlock> {
        let (mut source, mut blocks) = (LiveBlocks::new(indexes), Vec::new());
        while source.next(&mut blocks) {}
        blocks
    }

    #[test]
    fn blocks_are_in_the_order_of_their_addresses() {
        let (mut own, mut inherited) = (Index::default(), Index::default());
        let count = 2 * MIN_BAND;
        for number in 0..count {
            let index = number + 1;
            own.insert(0x5555_0000_0000 + number * 64, Block { index, size: 48, site: 7 });
        }
        inherited.insert(0x5555_0000_0000, Block { index: 1, size: 1, site: 3 });
        inherited.insert(0x7000_0000_0000, Block { index: 2, size: 2, site: 3 });
        let indexes = [own, inherited];
        let source = LiveBlocks::new(&indexes);
        assert!(source.borders.len() >= 2, "{:?}", source.borders);
        assert_eq!((source.blocks, source.inherited_blocks, source.inherited_bytes), (count + 2, 2, 3));
        assert!(source.arenas.contains(&0x5555_0000_0000) && source.arenas.contains(&0x7000_0000_0000));
        let blocks = all(&indexes);
        assert_eq!(blocks.len() as u64, count + 1);
        assert!(blocks.is_sorted_by_key(|block| block.address));
        assert_eq!((blocks[0].site, blocks[0].size), (7, 48), "the own block is kept");
        assert_eq!(blocks.last().map(|block| (block.site, block.size)), Some((0, 2)));
        assert!(all(&[Index::default()]).is_empty());
    }
}

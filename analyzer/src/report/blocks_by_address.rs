//! The live blocks in ascending order of their addresses, a slice at a time: ten million at once would
//! take 320 MiB. A slice takes a pass over all blocks, which is cheap beside the replay.

use heaptape_formats::resident::{BlockSource, LiveBlock, arena_of};
use rustc_hash::{FxHashMap, FxHashSet};
use std::cell::RefCell;

/// Most blocks of a slice, unless one granule has more. 32 bytes each.
const MOST: u64 = 2 << 20;
/// Binary logarithm of a granule of addresses, which is in one slice.
const GRANULE: u32 = 24;

/// Calls a function with each block, and the entry by which it was allocated.
pub(super) type Visit<'a> = &'a dyn Fn(&mut dyn FnMut(LiveBlock, u8));

/// The entries of the blocks of the current slice and the one before, where they are not those of
/// `malloc`.
#[derive(Debug, Default)]
pub(super) struct Entries(RefCell<[FxHashMap<u64, u8>; 2]>);

impl Entries {
    /// Returns the entry of a block.
    pub(super) fn of(&self, address: u64) -> Option<u8> {
        let slices = self.0.borrow();
        slices.iter().find_map(|slice| slice.get(&address)).copied()
    }
}

/// Returns whether an entry is that of an allocator inside the program.
pub(super) const fn is_inside(entry: u8) -> bool {
    matches!(entry, 14..=17 | 33..=36)
}

pub(super) struct Slices<'a> {
    visit: Visit<'a>,
    entries: &'a Entries,
    /// First granule of each slice, and the number of its blocks; the last one first.
    starts: Vec<(u64, u64)>,
    arenas: FxHashSet<u64>,
    /// The entry of a block of an allocator inside the program, if there is one.
    pub(super) inside: Option<u8>,
    pub(super) count: usize,
}

impl<'a> Slices<'a> {
    pub(super) fn new(visit: Visit<'a>, entries: &'a Entries) -> Slices<'a> {
        Slices::with(visit, entries, MOST)
    }

    fn with(visit: Visit<'a>, entries: &'a Entries, most: u64) -> Slices<'a> {
        let mut counts: FxHashMap<u64, u64> = FxHashMap::default();
        let (mut arenas, mut inside, mut count) = (FxHashSet::default(), None, 0);
        visit(&mut |block, entry| {
            *counts.entry(block.address >> GRANULE).or_default() += 1;
            arenas.extend(arena_of(&block));
            if is_inside(entry) {
                inside.get_or_insert(entry);
            }
            count += 1;
        });
        let mut granules: Vec<(u64, u64)> = counts.into_iter().collect();
        granules.sort_unstable();
        let mut starts: Vec<(u64, u64)> = Vec::new();
        for (granule, blocks) in granules {
            match starts.last_mut() {
                Some((_, in_slice)) if *in_slice + blocks <= most => *in_slice += blocks,
                _ => starts.push((granule, blocks)),
            }
        }
        starts.reverse();
        Slices { visit, entries, starts, arenas, inside, count }
    }
}

impl BlockSource for Slices<'_> {
    fn arenas(&self) -> FxHashSet<u64> {
        self.arenas.clone()
    }

    fn next(&mut self, blocks: &mut Vec<LiveBlock>) -> bool {
        let Some((start, count)) = self.starts.pop() else { return false };
        let end = self.starts.last().map_or(u64::MAX, |(next, _)| *next);
        let before = blocks.len();
        blocks.reserve_exact(count as usize);
        let mut entries = self.entries.0.borrow_mut();
        entries.swap(0, 1);
        entries[0].clear();
        (self.visit)(&mut |block, entry| {
            if !(start..end).contains(&(block.address >> GRANULE)) {
                return;
            }
            if is_inside(entry) {
                entries[0].insert(block.address, entry);
            }
            blocks.push(block);
        });
        // Of several ones with the same address the youngest one is kept.
        blocks[before..].sort_unstable_by_key(|block| (block.address, std::cmp::Reverse(block.tick)));
        let mut kept = before;
        for next in before..blocks.len() {
            if next == before || blocks[next].address != blocks[kept - 1].address {
                blocks[kept] = blocks[next];
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
    use heaptape_formats::resident::SortedBlocks;

    #[test]
    fn slices_are_what_is_sorted_at_once() {
        let of = |number: u64| LiveBlock {
            address: (number * 7919 % 1000) * 0x10_0000 + 16,
            size: number % 100,
            tick: number,
            site: 1,
        };
        let all: Vec<(LiveBlock, u8)> = (0..3000).map(|number| (of(number), 14 * (number % 2) as u8)).collect();
        let visit = |each: &mut dyn FnMut(LiveBlock, u8)| all.iter().for_each(|(block, entry)| each(*block, *entry));
        let entries = Entries::default();
        let mut slices = Slices::with(&visit, &entries, 100);
        assert_eq!((slices.count, slices.inside), (3000, Some(14)));
        let (mut found, mut rounds) = (Vec::new(), 0);
        loop {
            let before = found.len();
            if !slices.next(&mut found) {
                break;
            }
            rounds += 1;
            assert!(found.len() - before <= 100, "each address is there three times");
            assert!(
                found[before..]
                    .iter()
                    .filter(|block| block.tick % 2 == 1)
                    .all(|block| entries.of(block.address) == Some(14))
            );
        }
        let mut expected = Vec::new();
        SortedBlocks::new(all.iter().map(|(block, _)| *block).collect()).next(&mut expected);
        let addresses =
            |blocks: &[LiveBlock]| blocks.iter().map(|block| (block.address, block.tick)).collect::<Vec<_>>();
        assert_eq!(addresses(&found), addresses(&expected));
        assert!(rounds > 10, "{rounds}");
    }
}

//! Which freed blocks were in the free memory beside live blocks when each page was fullest: their
//! call sites share pages with the call sites whose blocks keep these pages.

use super::live_set::Block;
use super::{Model, row};
use crate::event::Event;
use rustc_hash::FxHashMap;
use std::ops::Range;

/// Maximum number of pages that are looked at. Of more pages, evenly spread ones are.
const MAX_PAGES: usize = 1 << 15;
/// Size of the pieces of a page for which the block in them is known. Blocks of most allocators are
/// aligned to it.
const PIECE: u64 = 16;

/// Pages with free bytes on which there are live blocks, each with the site of which most bytes are
/// on it.
#[derive(Clone, Debug, Default)]
pub struct HeldPages {
    pages: Vec<(u64, u32)>,
    /// Number of pages between two that are in `pages`.
    between: u64,
    seen: u64,
}

impl HeldPages {
    pub fn add(&mut self, page: u64, site: u32) {
        if self.seen.is_multiple_of(self.between + 1) {
            if self.pages.len() == MAX_PAGES {
                let mut is_kept = false;
                self.pages.retain(|_| {
                    is_kept = !is_kept;
                    is_kept
                });
                self.between = self.between * 2 + 1;
            }
            if self.seen.is_multiple_of(self.between + 1) {
                self.pages.push((page, site));
            }
        }
        self.seen += 1;
    }
}

/// Free memory beside the blocks of one call site that held blocks of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbor {
    /// The site whose blocks keep the pages.
    pub pinning: u32,
    /// The site of the freed blocks.
    pub freed: u32,
    /// Free bytes that held its blocks when the page was fullest.
    pub bytes: u64,
}

/// The freed blocks of a site that were on the pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Freed {
    pub blocks: u64,
    /// Sum of their lifetimes in ticks.
    pub ticks: u64,
}

/// Finds the freed blocks that were on the pages. It needs all events up to the snapshot.
#[derive(Debug)]
pub struct Neighbors {
    page: u64,
    pages: HeldPages,
    /// The index of each page in `pages`.
    indexes: FxHashMap<u64, usize>,
    fill: Vec<Fill>,
    /// For each piece of each page the site of the block in it, from 1; 0 where there is none.
    now: Vec<u32>,
    /// The same at the time when most pieces of the page had blocks.
    fullest: Vec<u32>,
    freed: Vec<Freed>,
}

/// Numbers of pieces of a page that have blocks.
#[derive(Clone, Copy, Debug, Default)]
struct Fill {
    now: usize,
    most: usize,
}

impl Neighbors {
    /// Prepares the search on these pages of `page` bytes each.
    pub fn new(pages: HeldPages, page: u64) -> Neighbors {
        let page = page.clamp(512, 1 << 16);
        let indexes = pages.pages.iter().enumerate().map(|(index, (number, _))| (*number, index)).collect();
        let count = pages.pages.len();
        let now = vec![0; count * (page / PIECE) as usize];
        let fullest = now.clone();
        Neighbors { page, pages, indexes, fill: vec![Fill::default(); count], now, fullest, freed: Vec::new() }
    }

    /// Calls a function with each page on which a block is, and the pieces of it.
    fn for_pages(
        &mut self,
        block: &Block,
        mut set: impl FnMut(&mut Fill, &mut [u32], &mut [u32], Range<usize>),
    ) -> bool {
        let (start, end) = (block.address, block.address.saturating_add(block.size.max(1)));
        let (first, last) = (start / self.page, (end - 1) / self.page);
        let pieces = (self.page / PIECE) as usize;
        let mut is_found = false;
        let mut visit = |number: u64, index: usize| {
            let from = start.saturating_sub(number * self.page) / PIECE;
            let to = (end - number * self.page).min(self.page).div_ceil(PIECE);
            let all = index * pieces..(index + 1) * pieces;
            let (now, fullest) = (&mut self.now[all.clone()], &mut self.fullest[all]);
            set(&mut self.fill[index], now, fullest, from as usize..to as usize);
            is_found = true;
        };
        // A large block may cover more pages than there are.
        if last - first >= self.indexes.len() as u64 {
            let inside = self.indexes.iter().filter(|(number, _)| (first..=last).contains(*number));
            inside.for_each(|(number, index)| visit(*number, *index));
        } else {
            for number in first..=last {
                if let Some(index) = self.indexes.get(&number) {
                    visit(number, *index);
                }
            }
        }
        is_found
    }

    fn enter(&mut self, block: &Block) {
        self.for_pages(block, |fill, now, _, range| {
            fill.now += now[range.clone()].iter().filter(|site| **site == 0).count();
            now[range].fill(block.site.saturating_add(1));
        });
    }

    fn leave(&mut self, event: &Event, block: &Block) {
        let is_found = self.for_pages(block, |fill, now, fullest, range| {
            if fill.now > fill.most {
                fill.most = fill.now;
                fullest.copy_from_slice(now);
            }
            fill.now -= now[range.clone()].iter().filter(|site| **site != 0).count();
            now[range].fill(0);
        });
        if is_found {
            let freed = row(&mut self.freed, block.site);
            freed.blocks += 1;
            freed.ticks = freed.ticks.saturating_add(event.tick.saturating_sub(block.tick));
        }
    }

    /// Returns the sites that share pages, and of each site the blocks that were freed on them.
    pub fn finish(self) -> (Vec<Neighbor>, Vec<Freed>) {
        let mut sums: FxHashMap<(u32, u32), u64> = FxHashMap::default();
        let pieces = (self.page / PIECE) as usize;
        let parts = self.now.chunks_exact(pieces).zip(self.fullest.chunks_exact(pieces));
        for (((_, pinning), (now, fullest)), fill) in self.pages.pages.iter().zip(parts).zip(&self.fill) {
            // A page that is as full as ever before has no free memory that was used.
            let is_fullest = fill.now > fill.most;
            for (_, then) in now.iter().zip(fullest).filter(|(now, then)| !is_fullest && **now == 0 && **then != 0) {
                *sums.entry((*pinning, then - 1)).or_default() += PIECE;
            }
        }
        let share = self.pages.between + 1;
        let neighbor = |((pinning, freed), bytes): ((u32, u32), u64)| Neighbor { pinning, freed, bytes: bytes * share };
        let mut found: Vec<Neighbor> = sums.into_iter().map(neighbor).collect();
        found.sort_by_key(|one| (std::cmp::Reverse(one.bytes), one.pinning, one.freed));
        (found, self.freed)
    }
}

impl Model for Neighbors {
    fn alloc(&mut self, _: &Event, block: &Block) {
        self.enter(block);
    }

    fn resize(&mut self, event: &Event, old: Option<&Block>, block: &Block) {
        if let Some(old) = old {
            self.leave(event, old);
        }
        self.enter(block);
    }

    fn free(&mut self, event: &Event, old: Option<&Block>) {
        if let Some(old) = old {
            self.leave(event, old);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Kind;

    fn event(tick: u64) -> Event {
        Event { entry: 1, thread: 1, index: 1, tick, ..Event::of(Kind::Free) }
    }

    fn block(address: u64, size: u64, site: u32) -> Block {
        Block { address, size, site, tick: 100, ..Block::default() }
    }

    #[test]
    fn free_memory_belongs_to_the_blocks_of_the_fullest_time() {
        let mut held = HeldPages::default();
        held.add(1, 7);
        held.add(3, 8);
        let mut neighbors = Neighbors::new(held, 4096);
        // The survivor of site 7 is beside blocks of the sites 1 and 2. Later a smaller block uses
        // their memory again.
        let survivor = block(4096, 96, 7);
        let (first, second, again) = (block(4192, 2000, 1), block(6192, 1008, 2), block(4192, 64, 3));
        [&survivor, &first, &second].into_iter().for_each(|block| neighbors.alloc(&event(0), block));
        neighbors.free(&event(130), Some(&first));
        neighbors.free(&event(110), Some(&second));
        neighbors.alloc(&event(0), &again);
        neighbors.free(&event(150), Some(&again));
        // A block that covers many pages, of which one is watched; it was reallocated.
        let (large, small) = (block(8192, 1 << 20, 4), block(3 * 4096, 64, 8));
        neighbors.alloc(&event(0), &large);
        neighbors.resize(&event(150), Some(&large), &small);
        // A page that is not watched.
        neighbors.free(&event(0), Some(&block(5 * 4096, 16, 9)));
        let (found, freed) = neighbors.finish();
        let neighbor = |pinning, freed, bytes| Neighbor { pinning, freed, bytes };
        assert_eq!(found, [neighbor(8, 4, 4096 - 64), neighbor(7, 1, 2000), neighbor(7, 2, 1008)]);
        assert_eq!(freed[1], Freed { blocks: 1, ticks: 30 });
        assert_eq!((freed[2].ticks, freed[3].ticks, freed[4].ticks, freed.len()), (10, 50, 50, 5));
    }

    #[test]
    fn page_that_is_as_full_as_ever_has_no_neighbors() {
        let mut held = HeldPages::default();
        held.add(1, 7);
        let mut neighbors = Neighbors::new(held, 4096);
        let (small, large) = (block(4096, 64, 1), block(6000, 1000, 7));
        neighbors.alloc(&event(0), &small);
        neighbors.free(&event(110), Some(&small));
        neighbors.alloc(&event(0), &large);
        assert_eq!(neighbors.finish().0, []);
    }

    #[test]
    fn of_many_pages_evenly_spread_ones_are_watched() {
        let mut held = HeldPages::default();
        let pages = 3 * MAX_PAGES as u64;
        (0..pages).for_each(|page| held.add(page, 1));
        assert_eq!(held.between, 3);
        assert!(held.pages.iter().map(|(page, _)| *page).eq((0..pages).step_by(4)), "{:?}", &held.pages[..9]);
        let mut neighbors = Neighbors::new(held, 4096);
        let large = block(0, pages * 4096, 2);
        neighbors.alloc(&event(0), &large);
        neighbors.free(&event(0), Some(&large));
        assert_eq!(neighbors.finish().0, [Neighbor { pinning: 1, freed: 2, bytes: pages * 4096 }]);
    }
}

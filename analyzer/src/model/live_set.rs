//! The allocations that are alive, by allocation index.
//!
//! Indexes are given in order of birth, so blocks that are born together lie together: in pages of 64 places, which come and
//! go with their blocks. A page that is no longer among the youngest and holds only few blocks gives them to a map and goes,
//! so that memory follows what lives whatever the indexes are (48 to 200 bytes a block, measured 60 on a program that keeps
//! most of what it allocates).

use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// Places of a page: one bit of a word each.
const PLACES: usize = 64;
/// An old page with fewer blocks than this is given up.
const FEW: u32 = 16;
/// Pages that are young: 512 of 3 KiB stay in the processor's second-level cache.
const YOUNG: usize = 512;

/// A block that is alive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// First byte.
    pub address: u64,
    /// Bytes that it counts for.
    pub size: u64,
    /// When it was born: tick.
    pub tick: u64,
    /// When it was born: events before.
    pub number: u64,
    /// Call site of its birth or latest resize.
    pub site: u32,
    /// Thread of that.
    pub thread: u32,
    /// Times it was resized.
    pub resizes: u32,
    /// The function called, a `tape::Entry` number.
    pub entry: u8,
    /// Got from the parent by fork: not one of this image's own.
    pub inherited: bool,
}

#[derive(Debug)]
struct Page {
    /// Number of the page: index / 64.
    number: u64,
    /// A bit for each place that holds a block.
    held: u64,
    young: bool,
    blocks: Box<[Block; PLACES]>,
}

/// Live allocations.
#[derive(Debug, Default)]
pub struct LiveSet {
    pages: Vec<Page>,
    /// Places in `pages` that can be used again.
    unused: Vec<u32>,
    /// Page number -> place in `pages`.
    places: FxHashMap<u64, u32>,
    /// Young pages, oldest first.
    young: VecDeque<u32>,
    /// Blocks of pages that were given up.
    sparse: FxHashMap<u64, Block>,
    /// The page that was used last: number and place.
    last: Option<(u64, u32)>,
}

impl LiveSet {
    const fn split(index: u64) -> (u64, usize) {
        (index / PLACES as u64, (index % PLACES as u64) as usize)
    }

    #[inline]
    fn page(&mut self, number: u64) -> Option<u32> {
        match self.last {
            Some((last, at)) if last == number => Some(at),
            _ => {
                let at = *self.places.get(&number)?;
                self.last = Some((number, at));
                Some(at)
            }
        }
    }

    /// Adds an allocation; gives what lived under its index, which no good file has.
    #[inline]
    pub fn insert(&mut self, index: u64, block: Block) -> Option<Block> {
        let (number, place) = Self::split(index);
        let at = match self.page(number) {
            Some(at) => at,
            None => self.new_page(number),
        };
        let page = &mut self.pages[at as usize];
        let bit = 1 << place;
        let before = std::mem::replace(&mut page.blocks[place], block);
        if page.held & bit != 0 {
            return Some(before);
        }
        page.held |= bit;
        if self.sparse.is_empty() { None } else { self.sparse.remove(&index) }
    }

    /// Takes an allocation out.
    #[inline]
    pub fn remove(&mut self, index: u64) -> Option<Block> {
        let (number, place) = Self::split(index);
        if let Some(at) = self.page(number) {
            let page = &mut self.pages[at as usize];
            let bit = 1 << place;
            if page.held & bit != 0 {
                page.held &= !bit;
                let block = page.blocks[place];
                if !page.young && page.held.count_ones() < FEW {
                    self.give_up(at);
                }
                return Some(block);
            }
        }
        self.sparse.remove(&index)
    }

    /// The allocation of an index.
    #[inline]
    pub fn get_mut(&mut self, index: u64) -> Option<&mut Block> {
        let (number, place) = Self::split(index);
        if let Some(at) = self.page(number)
            && self.pages[at as usize].held & 1 << place != 0
        {
            return Some(&mut self.pages[at as usize].blocks[place]);
        }
        self.sparse.get_mut(&index)
    }

    /// Everything alive, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Block)> {
        let pages = self.pages.iter().flat_map(|page| {
            let held = page.blocks.iter().zip(0u64..).filter(|(_, place)| page.held & 1 << place != 0);
            held.map(|(block, place)| (page.number * PLACES as u64 + place, block))
        });
        pages.chain(self.sparse.iter().map(|(index, block)| (*index, block)))
    }

    /// Keeps only what `keep` says.
    pub fn retain(&mut self, mut keep: impl FnMut(u64, &Block) -> bool) {
        for page in &mut self.pages {
            for place in 0..PLACES {
                let index = page.number * PLACES as u64 + place as u64;
                if page.held & 1 << place != 0 && !keep(index, &page.blocks[place]) {
                    page.held &= !(1 << place);
                }
            }
        }
        self.sparse.retain(|index, block| keep(*index, block));
    }

    #[cold]
    fn new_page(&mut self, number: u64) -> u32 {
        if self.young.len() == YOUNG
            && let Some(oldest) = self.young.pop_front()
        {
            let page = &mut self.pages[oldest as usize];
            page.young = false;
            if page.held.count_ones() < FEW {
                self.give_up(oldest);
            }
        }
        let at = match self.unused.pop() {
            Some(at) => at,
            None => {
                let blocks = Box::new([Block::default(); PLACES]);
                self.pages.push(Page { number, held: 0, young: true, blocks });
                self.pages.len() as u32 - 1
            }
        };
        let page = &mut self.pages[at as usize];
        (page.number, page.held, page.young) = (number, 0, true);
        self.young.push_back(at);
        self.places.insert(number, at);
        self.last = Some((number, at));
        at
    }

    /// Moves the few blocks of a page to the map.
    #[cold]
    fn give_up(&mut self, at: u32) {
        let page = &mut self.pages[at as usize];
        for place in 0..PLACES {
            if page.held & 1 << place != 0 {
                self.sparse.insert(page.number * PLACES as u64 + place as u64, page.blocks[place]);
            }
        }
        page.held = 0;
        self.places.remove(&page.number);
        self.unused.push(at);
        self.last = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]
        /// Against a plain map: runs of births as a program makes them, and indexes that lie far apart.
        #[test]
        fn behaves_like_a_map(steps in prop::collection::vec((0u8..8, 0u64..2000, 0u64..4), 0..60)) {
            let (mut live, mut plain, mut next) = (LiveSet::default(), HashMap::new(), 0);
            for (step, (kind, number, far)) in steps.into_iter().enumerate() {
                let index = number.wrapping_mul(37) % (next + 1) + [0, 0, 1 << 40, u64::MAX / 2][far as usize];
                let block = Block { size: step as u64, ..Block::default() };
                match kind {
                    0..3 => for _ in 0..number {
                        prop_assert_eq!(live.insert(next, block), plain.insert(next, block));
                        next += 1;
                    },
                    3 => for index in (0..next).step_by(3) {
                        prop_assert_eq!(live.remove(index), plain.remove(&index));
                    },
                    4 => prop_assert_eq!(live.insert(index, block), plain.insert(index, block)),
                    5 | 6 => prop_assert_eq!(live.remove(index), plain.remove(&index)),
                    _ => prop_assert_eq!(live.get_mut(index).copied(), plain.get(&index).copied()),
                }
            }
            let mut left: Vec<(u64, Block)> = live.iter().map(|(index, block)| (index, *block)).collect();
            let mut expected: Vec<(u64, Block)> = plain.into_iter().collect();
            left.sort_by_key(|pair| pair.0);
            expected.sort_by_key(|pair| pair.0);
            prop_assert_eq!(left, expected);
        }
    }

    /// One block in a hundred lives on: their pages must not.
    #[test]
    fn few_survivors_take_little() {
        let mut live = LiveSet::default();
        for index in 0..1_000_000 {
            live.insert(index, Block::default());
            if index % 100 != 0 {
                live.remove(index);
            }
        }
        assert!(live.pages.len() <= YOUNG + 1);
        assert_eq!(live.iter().count(), 10_000);
    }
}

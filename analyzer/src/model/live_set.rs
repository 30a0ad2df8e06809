//! The allocations that are alive, by allocation index.
//!
//! Indexes are given in order of birth, so blocks that are born together lie together: in pages of 64 places, which come and
//! go with their blocks. A page that is no longer among the youngest and holds only few blocks gives them to a map and goes,
//! so that memory follows what lives whatever the indexes are (48 to 200 bytes a block, measured 60 on a program that keeps
//! most of what it allocates). When more pages live than memory is meant for, those that nobody touched lie in a temporary
//! file.

mod spill;

use rustc_hash::FxHashMap;
use spill::Spill;
use std::collections::VecDeque;

/// Places of a page: one bit of a word each.
const PLACES: usize = 64;
/// An old page with fewer blocks than this is given up.
const FEW: u32 = 16;
/// Pages that are young: 512 of 3 KiB stay in the processor's second-level cache.
const YOUNG: usize = 512;

/// Pages in memory, 3 KiB each; the others lie in a file: 192 MiB, 4 million blocks where they lie densely.
const RESIDENT: usize = 64 << 10;
/// Old blocks in the map before pages with few blocks stay pages, which can go to the file: 64 MiB.
const SPARSE: usize = 512 << 10;

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
    /// Whether it was used since the search for a page to put away last passed it.
    touched: bool,
    /// Where it lies in the file, plus one; 0: in memory, or nowhere.
    slot: u32,
    /// None while it lies in the file.
    blocks: Option<Box<[Block; PLACES]>>,
}

/// Live allocations.
#[derive(Debug)]
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
    /// The page that was used last: number and place. It is in memory.
    last: Option<(u64, u32)>,
    /// Pages that may be in memory, and that are.
    budget: usize,
    resident: usize,
    spill: Spill,
    /// Where the search for a page to put away goes on.
    hand: usize,
}

impl Default for LiveSet {
    fn default() -> Self {
        LiveSet::within(RESIDENT)
    }
}

impl LiveSet {
    /// With so many pages in memory at most.
    pub fn within(budget: usize) -> Self {
        LiveSet {
            pages: Vec::new(),
            unused: Vec::new(),
            places: FxHashMap::default(),
            young: VecDeque::new(),
            sparse: FxHashMap::default(),
            last: None,
            budget: budget.max(2),
            resident: 0,
            spill: Spill::default(),
            hand: 0,
        }
    }

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
                let page = &mut self.pages[at as usize];
                page.touched = true;
                if page.blocks.is_none() {
                    self.fetch(at);
                }
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
        // Whatever `page` and `new_page` give is in memory.
        let Some(blocks) = &mut page.blocks else { return self.sparse.insert(index, block) };
        let before = std::mem::replace(&mut blocks[place], block);
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
            if page.held & bit != 0
                && let Some(blocks) = &page.blocks
            {
                page.held &= !bit;
                let block = blocks[place];
                if !page.young && page.held.count_ones() < FEW && (page.held == 0 || self.sparse.len() < SPARSE) {
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
            return self.pages[at as usize].blocks.as_mut().map(|blocks| &mut blocks[place]);
        }
        self.sparse.get_mut(&index)
    }

    /// Everything alive, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Block)> + '_ {
        let pages = self.pages.iter().filter(|page| page.held != 0).flat_map(|page| {
            let (number, held) = (page.number, page.held);
            let blocks = page.blocks.as_deref().copied().unwrap_or_else(|| self.spill.read(page.slot));
            let all = blocks.into_iter().zip(0u64..).filter(move |(_, place)| held & 1 << place != 0);
            all.map(move |(block, place)| (number * PLACES as u64 + place, block))
        });
        pages.chain(self.sparse.iter().map(|(index, block)| (*index, *block)))
    }

    /// Keeps only what `keep` says.
    pub fn retain(&mut self, mut keep: impl FnMut(u64, &Block) -> bool) {
        for page in &mut self.pages {
            let spilled = page.blocks.is_none().then(|| self.spill.read(page.slot));
            let Some(blocks) = page.blocks.as_deref().or(spilled.as_ref()) else { continue };
            for (place, block) in blocks.iter().enumerate() {
                let index = page.number * PLACES as u64 + place as u64;
                if page.held & 1 << place != 0 && !keep(index, block) {
                    page.held &= !(1 << place);
                }
            }
        }
        self.sparse.retain(|index, block| keep(*index, block));
    }

    /// Brings a page back from the file.
    #[cold]
    fn fetch(&mut self, at: u32) {
        self.make_room();
        let page = &mut self.pages[at as usize];
        page.blocks = Some(Box::new(self.spill.take(page.slot)));
        page.slot = 0;
        self.resident += 1;
    }

    /// Puts a page away that was not touched of late, when there are as many in memory as may be. Young ones stay: they are
    /// few.
    fn make_room(&mut self) {
        if self.resident < self.budget || self.spill.is_broken() {
            return;
        }
        // Twice around: the first time takes away the marks.
        for _ in 0..2 * self.pages.len() {
            self.hand = (self.hand + 1) % self.pages.len();
            let in_use = self.last.is_some_and(|(_, at)| at as usize == self.hand);
            let page = &mut self.pages[self.hand];
            if page.blocks.is_none() || page.held == 0 || page.young || in_use {
                continue;
            }
            if std::mem::take(&mut page.touched) {
                continue;
            }
            if let Some(blocks) = &page.blocks
                && let Some(slot) = self.spill.put(blocks)
            {
                (page.slot, page.blocks) = (slot, None);
                self.resident -= 1;
            }
            return;
        }
    }

    #[cold]
    fn new_page(&mut self, number: u64) -> u32 {
        if self.young.len() == YOUNG
            && let Some(oldest) = self.young.pop_front()
        {
            let page = &mut self.pages[oldest as usize];
            page.young = false;
            if page.held.count_ones() < FEW && (page.held == 0 || self.sparse.len() < SPARSE) {
                self.give_up(oldest);
            }
        }
        let at = match self.unused.pop() {
            Some(at) => at,
            None => {
                self.make_room();
                let blocks = Some(Box::new([Block::default(); PLACES]));
                self.resident += 1;
                self.pages.push(Page { number, held: 0, young: true, touched: true, slot: 0, blocks });
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
        for (place, block) in page.blocks.iter().flat_map(|blocks| blocks.iter()).enumerate() {
            if page.held & 1 << place != 0 {
                self.sparse.insert(page.number * PLACES as u64 + place as u64, *block);
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
        fn behaves_like_a_map(
            steps in prop::collection::vec((0u8..8, 0u64..2000, 0u64..4), 0..60),
            budget in prop::sample::select(vec![520usize, 560, RESIDENT]),
        ) {
            let (mut live, mut plain, mut next) = (LiveSet::within(budget), HashMap::new(), 0);
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
            let mut left: Vec<(u64, Block)> = live.iter().collect();
            let mut expected: Vec<(u64, Block)> = plain.into_iter().collect();
            left.sort_by_key(|pair| pair.0);
            expected.sort_by_key(|pair| pair.0);
            prop_assert_eq!(left, expected);
        }
    }

    /// What does not fit into memory lies in the file, and comes back.
    #[test]
    fn pages_go_to_the_file_and_come_back() {
        let mut live = LiveSet::within(1000);
        for index in 0..1_000_000 {
            live.insert(
                index,
                Block { size: index * 3, address: !index, tick: 7, inherited: index % 2 == 0, ..Block::default() },
            );
        }
        assert!(live.resident <= 1001, "{} pages in memory", live.resident);
        assert_eq!(live.iter().count(), 1_000_000);
        for index in (0..1_000_000).step_by(777) {
            let wanted =
                Block { size: index * 3, address: !index, tick: 7, inherited: index % 2 == 0, ..Block::default() };
            assert_eq!(live.remove(index), Some(wanted));
            assert_eq!(live.remove(index), None);
        }
        assert!(live.resident <= 1001);
        live.retain(|_, block| block.inherited);
        assert!(live.iter().all(|(index, block)| index % 2 == 0 && block.size == index * 3));
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

//! The allocations that are alive, by allocation index.
//!
//! Indexes are given in order of birth, so blocks that are born together lie together: in pages of
//! 64 places, which come and go with their blocks. A page that is no longer among the youngest
//! keeps only room for what still lives in it, a quarter full at least, so that memory follows what
//! lives whatever the indexes are: 60 to 230 bytes a block. What is more than memory is meant for
//! lies in a temporary file.

mod frames;
mod spill;

use frames::{Frames, KINDS, blocks, kind_for};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// Places of a page: one bit of a word each.
const PLACES: usize = 64;
/// The kind of a group that holds a whole page.
const WHOLE: u8 = KINDS as u8 - 1;
/// Pages that are young: 128 of 3 KiB stay in the processor's second-level cache.
const YOUNG: usize = 128;
/// Frames in memory, 3 KiB each; the others lie in a file: 192 MiB, 4 million blocks where they lie
/// densely.
const RESIDENT: usize = 64 << 10;
/// Page numbers, from the first on, that are looked up in a table; those beyond in a map. 64 MiB, a
/// thousand million allocations.
const NEAR: usize = 16 << 20;
/// The table may be so much longer than four times the pages that there ever were.
const SLACK: u64 = 1 << 16;

/// A block that is alive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
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

/// A page with live blocks, or the newest.
#[derive(Debug)]
struct Page {
    /// Its number: index / 64.
    number: u64,
    /// A bit for each place that holds a block.
    held: u64,
    /// A bit for each place that its group has room for, in their order.
    room: u64,
    /// Its group.
    at: u32,
    kind: u8,
    /// With so many blocks, or fewer, it gets a smaller group, or goes; none: it is the newest.
    few: Option<u8>,
}

impl Page {
    /// Where a place of it lies in memory.
    #[inline]
    const fn place(&self, place: usize) -> u32 {
        match self.kind {
            WHOLE => self.at + place as u32,
            _ => self.at + (self.room & ((1 << place) - 1)).count_ones(),
        }
    }
}

/// Live allocations.
#[derive(Debug)]
pub struct LiveSet {
    pages: Vec<Page>,
    /// Places in `pages` that can be used again.
    unused: Vec<u32>,
    /// Number of the first page that there was; the table starts there.
    base: Option<u64>,
    /// Page number - base -> place in `pages`, plus one; 0: there is none.
    near: Vec<u32>,
    /// The same for pages that are not in the table.
    far: FxHashMap<u64, u32>,
    /// How many pages there ever were.
    made: u64,
    /// Numbers of the young pages, oldest first; the last is the newest.
    young: VecDeque<u64>,
    frames: Frames,
}

impl Default for LiveSet {
    fn default() -> Self {
        LiveSet::within(RESIDENT)
    }
}

impl LiveSet {
    /// With so many frames of 64 blocks in memory at most.
    pub fn within(budget: usize) -> Self {
        LiveSet {
            pages: Vec::new(),
            unused: Vec::new(),
            base: None,
            near: Vec::new(),
            far: FxHashMap::default(),
            made: 0,
            young: VecDeque::new(),
            frames: Frames::within(budget),
        }
    }

    const fn split(index: u64) -> (u64, usize) {
        (index / PLACES as u64, (index % PLACES as u64) as usize)
    }

    /// Where a page number stands in the table, if it can.
    #[inline]
    fn near(&self, number: u64) -> usize {
        usize::try_from(number.wrapping_sub(self.base.unwrap_or(number))).unwrap_or(usize::MAX)
    }

    #[inline]
    fn page(&self, number: u64) -> Option<u32> {
        match self.near.get(self.near(number)) {
            Some(&at) if at > 0 => Some(at - 1),
            _ if self.far.is_empty() => None,
            _ => self.far.get(&number).copied(),
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
        let bit = 1 << place;
        if self.pages[at as usize].room & bit == 0 {
            self.change_room(at, self.pages[at as usize].held | bit);
        }
        let page = &mut self.pages[at as usize];
        let before = std::mem::replace(self.frames.block(page.place(place)), block);
        let doubled = page.held & bit != 0;
        page.held |= bit;
        doubled.then_some(before)
    }

    /// Takes an allocation out.
    #[inline]
    pub fn remove(&mut self, index: u64) -> Option<Block> {
        let (number, place) = Self::split(index);
        let at = self.page(number)?;
        let page = &mut self.pages[at as usize];
        let bit = 1 << place;
        if page.held & bit == 0 {
            return None;
        }
        page.held &= !bit;
        let block = *self.frames.block(page.place(place));
        if page.few.is_some_and(|few| page.held.count_ones() <= u32::from(few)) {
            self.settle(at);
        }
        Some(block)
    }

    /// The allocation of an index.
    #[inline]
    pub fn get_mut(&mut self, index: u64) -> Option<&mut Block> {
        let (number, place) = Self::split(index);
        let page = &self.pages[self.page(number)? as usize];
        (page.held & 1 << place != 0).then(|| self.frames.block(page.place(place)))
    }

    /// The sites of allocations, where they are in memory; else 0. Step by step for all of them, so
    /// that the processor waits for many places of its memory at the same time, and has the blocks
    /// at hand afterwards.
    #[inline]
    pub fn prefetch<const N: usize>(&self, indexes: &[u64; N]) -> [u32; N] {
        let pages = indexes.map(|index| self.page(index / PLACES as u64).unwrap_or(u32::MAX));
        let places: [u32; N] = std::array::from_fn(|at| {
            let (_, place) = Self::split(indexes[at]);
            let page = self.pages.get(pages[at] as usize).filter(|page| page.held & 1 << place != 0);
            page.map_or(u32::MAX, |page| page.place(place))
        });
        places.map(|place| {
            // A block may lie in two lines of the processor's cache.
            let block = self.frames.prefetch(place).map(|block| (block.site, block.address));
            std::hint::black_box(block).map_or(0, |(site, _)| site)
        })
    }

    /// Everything alive, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Block)> + '_ {
        self.pages.iter().filter(|page| page.held != 0).flat_map(|page| {
            let mut blocks = [Block::default(); PLACES];
            self.frames.read(page.at, page.room.count_ones() as usize, &mut blocks);
            let places = (0..PLACES).filter(|place| page.held & 1 << place != 0);
            places.map(move |place| {
                let block = blocks[(page.place(place) - page.at) as usize];
                (page.number * PLACES as u64 + place as u64, block)
            })
        })
    }

    /// Keeps only what `keep` says.
    pub fn retain(&mut self, mut keep: impl FnMut(u64, &Block) -> bool) {
        let mut blocks = [Block::default(); PLACES];
        for page in self.pages.iter_mut().filter(|page| page.held != 0) {
            self.frames.read(page.at, page.room.count_ones() as usize, &mut blocks);
            let held = page.held;
            for place in (0..PLACES).filter(|place| held & 1 << place != 0) {
                let block = &blocks[(page.place(place) - page.at) as usize];
                if !keep(page.number * PLACES as u64 + place as u64, block) {
                    page.held &= !(1 << place);
                }
            }
        }
    }

    /// A page that has become nearly empty gets a smaller group, or goes.
    #[cold]
    #[inline(never)]
    fn settle(&mut self, at: u32) {
        let page = &self.pages[at as usize];
        if page.held != 0 {
            if page.kind > kind_for(page.held.count_ones()) {
                self.change_room(at, page.held);
            }
            return;
        }
        let (number, kind, group) = (page.number, page.kind, page.at);
        self.frames.give(group, kind);
        let near = self.near(number);
        match self.near.get_mut(near) {
            Some(known) if *known == at + 1 => *known = 0,
            _ => drop(self.far.remove(&number)),
        }
        self.unused.push(at);
    }

    /// Moves what a page holds to a group with room for these places.
    #[cold]
    #[inline(never)]
    fn change_room(&mut self, at: u32, room: u64) {
        let kind = kind_for(room.count_ones());
        let group = self.frames.take(kind);
        let page = &mut self.pages[at as usize];
        let old =
            std::mem::replace(page, Page { at: group, kind, room: if kind == WHOLE { !0 } else { room }, ..*page });
        page.few = page.few.map(|_| few(kind));
        for place in (0..PLACES).filter(|place| old.held & 1 << place != 0) {
            let block = *self.frames.block(old.place(place));
            *self.frames.block(page.place(place)) = block;
        }
        self.frames.give(old.at, old.kind);
    }

    #[cold]
    #[inline(never)]
    fn new_page(&mut self, number: u64) -> u32 {
        if let Some(page) = self.young.back().and_then(|&newest| self.page(newest)) {
            self.pages[page as usize].few = Some(0);
            if self.pages[page as usize].held == 0 {
                self.settle(page);
            }
        }
        if self.young.len() >= YOUNG
            && let Some(old) = self.young.pop_front().and_then(|oldest| self.page(oldest))
        {
            self.pages[old as usize].few = Some(few(self.pages[old as usize].kind));
            self.settle(old);
        }
        let page = Page { number, held: 0, room: !0, at: self.frames.take(WHOLE), kind: WHOLE, few: None };
        let at = match self.unused.pop() {
            Some(at) => {
                self.pages[at as usize] = page;
                at
            }
            None => {
                self.pages.push(page);
                self.pages.len() as u32 - 1
            }
        };
        self.young.push_back(number);
        self.made += 1;
        self.base.get_or_insert(number);
        let near = self.near(number);
        if near < NEAR && near as u64 <= self.made * 4 + SLACK {
            if near >= self.near.len() {
                self.near.resize(near + 1, 0);
            }
            self.near[near] = at + 1;
        } else {
            self.far.insert(number, at);
        }
        at
    }
}

/// With so many blocks a page's group of this kind is left.
const fn few(kind: u8) -> u8 {
    if kind == 0 { 0 } else { blocks(kind - 1) as u8 }
}

#[cfg(test)]
mod tests;

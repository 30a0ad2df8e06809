//! The allocations that are alive, by allocation index.
//!
//! Indexes are given in order of birth and most blocks die young, so the youngest stand in a small table in which the index
//! itself is the place; whoever is still alive when a younger one needs the place moves to a map. The map then holds only
//! what lives long, and most events never touch it.

use rustc_hash::FxHashMap;

/// Places of the table for the young: 2^15 of 56 bytes stay in the processor's second-level cache.
const YOUNG: usize = 1 << 15;

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

/// Live allocations.
#[derive(Debug)]
pub struct LiveSet {
    young: Vec<(u64, Block)>,
    old: FxHashMap<u64, Block>,
}

/// Marks an empty place; no allocation has this index, since a place holds only indexes that end in its own number.
const fn empty(place: usize) -> u64 {
    !(place as u64)
}

impl Default for LiveSet {
    fn default() -> Self {
        let young = (0..YOUNG).map(|place| (empty(place), Block::default())).collect();
        LiveSet { young, old: FxHashMap::default() }
    }
}

impl LiveSet {
    const fn place(index: u64) -> usize {
        index as usize & (YOUNG - 1)
    }

    /// Adds an allocation; gives what lived under its index, which no good file has.
    #[inline]
    pub fn insert(&mut self, index: u64, block: Block) -> Option<Block> {
        let at = Self::place(index);
        let place = &mut self.young[at];
        let (was, before) = std::mem::replace(place, (index, block));
        if was == index {
            return Some(before);
        }
        if was != empty(at) {
            self.old.insert(was, before);
        }
        if self.old.is_empty() { None } else { self.old.remove(&index) }
    }

    /// Takes an allocation out.
    #[inline]
    pub fn remove(&mut self, index: u64) -> Option<Block> {
        let at = Self::place(index);
        let place = &mut self.young[at];
        if place.0 == index {
            place.0 = empty(at);
            return Some(place.1);
        }
        self.old.remove(&index)
    }

    /// The allocation of an index.
    #[inline]
    pub fn get_mut(&mut self, index: u64) -> Option<&mut Block> {
        let place = &mut self.young[Self::place(index)];
        if place.0 == index {
            return Some(&mut place.1);
        }
        self.old.get_mut(&index)
    }

    /// Everything alive, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Block)> {
        let young = self.young.iter().enumerate().filter(|(at, place)| place.0 != empty(*at)).map(|(_, place)| (place.0, &place.1));
        young.chain(self.old.iter().map(|(index, block)| (*index, block)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        /// Against a plain map, with indexes that share places and lie far apart.
        #[test]
        fn behaves_like_a_map(steps in prop::collection::vec((0u8..3, 0u64..6, 0u64..4), 0..300)) {
            let (mut live, mut plain) = (LiveSet::default(), HashMap::new());
            for (step, (kind, low, high)) in steps.into_iter().enumerate() {
                let index = low + (high << 15).wrapping_mul(if high == 3 { u64::MAX } else { 1 });
                let block = Block { size: step as u64, ..Block::default() };
                match kind {
                    0 => prop_assert_eq!(live.insert(index, block), plain.insert(index, block)),
                    1 => prop_assert_eq!(live.remove(index), plain.remove(&index)),
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
}

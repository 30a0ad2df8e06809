//! The live blocks of a graph of references, packed: 17 bytes each instead of 56, since a process
//! may have ten million.

use super::ascending::Ascending;
use heaptape_formats::tape::{FirstWords, ReferenceBlock};
use rustc_hash::FxHashMap;

/// Bits of a size that is packed; the allocation index has the others.
const SIZE_BITS: u32 = 24;
const INDEX_BITS: u32 = u64::BITS - SIZE_BITS;
/// Bytes after the requested ones of a block that is not packed.
const WIDE: u8 = u8::MAX;

/// How a block begins: the number of the pointer, from 1, and the counts.
#[derive(Clone, Copy, Debug)]
struct First {
    block: u32,
    pointer: u32,
    counts: (u16, u16),
}

/// Blocks in ascending order of their addresses.
#[derive(Debug, Default)]
pub struct Blocks {
    addresses: Ascending,
    /// Allocation index and size.
    numbers: Vec<u64>,
    sites: Vec<u32>,
    /// Usable bytes after the requested ones, or [`WIDE`].
    slack: Vec<u8>,
    /// Those that begin with a pointer into a file, or with counts.
    firsts: Vec<First>,
    /// Different pointers are few: vtables.
    pointers: Vec<u64>,
    known: FxHashMap<u64, u32>,
    /// Blocks whose numbers are too large for the rest.
    wide: FxHashMap<u32, ReferenceBlock>,
}

impl Blocks {
    /// Adds the block with the next number.
    pub fn push(&mut self, block: &ReferenceBlock) {
        let number = self.addresses.len() as u32;
        let slack = u8::try_from(block.usable.saturating_sub(block.size)).unwrap_or(WIDE);
        let is_wide = slack == WIDE
            || block.usable < block.size
            || block.size >> SIZE_BITS != 0
            || block.index >> INDEX_BITS != 0;
        self.addresses.push(block.address);
        self.sites.push(block.site);
        if is_wide {
            self.wide.insert(number, *block);
            self.numbers.push(0);
            self.slack.push(WIDE);
            return;
        }
        self.numbers.push(block.index << SIZE_BITS | block.size);
        self.slack.push(slack);
        if block.first != FirstWords::default() {
            let FirstWords { pointer, counts } = block.first;
            let pointer = if pointer == 0 { 0 } else { self.number_of(pointer) };
            self.firsts.push(First { block: number, pointer, counts });
        }
    }

    fn number_of(&mut self, pointer: u64) -> u32 {
        *self.known.entry(pointer).or_insert_with(|| {
            self.pointers.push(pointer);
            self.pointers.len() as u32
        })
    }

    /// Keeps the first blocks.
    pub fn truncate(&mut self, count: usize) {
        self.addresses.truncate(count);
        self.numbers.truncate(count);
        self.sites.truncate(count);
        self.slack.truncate(count);
        self.firsts.truncate(self.firsts.partition_point(|first| (first.block as usize) < count));
        self.wide.retain(|number, _| (*number as usize) < count);
    }

    /// Gives the allocation sites of all blocks other numbers.
    pub fn renumber_sites(&mut self, new: impl Fn(u32) -> u32) {
        self.sites.iter_mut().for_each(|site| *site = new(*site));
        self.wide.values_mut().for_each(|block| block.site = new(block.site));
    }

    /// Returns the number of blocks.
    pub fn len(&self) -> usize {
        self.addresses.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.addresses.len() == 0
    }

    /// Returns the address of a block.
    pub fn address(&self, number: usize) -> Option<u64> {
        self.addresses.get(number)
    }

    /// Returns the allocation site of a block.
    pub fn site(&self, number: u32) -> u32 {
        self.sites[number as usize]
    }

    /// Returns a block.
    ///
    /// # Panics
    /// Panics if there is none with this number.
    pub fn get(&self, number: u32) -> ReferenceBlock {
        let at = self.firsts.partition_point(|first| first.block < number);
        self.unpacked(number, self.firsts.get(at))
    }

    /// Returns all blocks.
    pub fn iter(&self) -> impl Iterator<Item = ReferenceBlock> + '_ {
        let mut firsts = self.firsts.iter().peekable();
        (0..self.len() as u32).map(move |number| {
            let block = self.unpacked(number, firsts.peek().copied());
            firsts.next_if(|first| first.block == number);
            block
        })
    }

    fn unpacked(&self, number: u32, first: Option<&First>) -> ReferenceBlock {
        let at = number as usize;
        if self.slack[at] == WIDE
            && let Some(wide) = self.wide.get(&number)
        {
            return *wide;
        }
        let size = self.numbers[at] & ((1 << SIZE_BITS) - 1);
        let first = first.filter(|first| first.block == number).map(|first| FirstWords {
            pointer: (first.pointer as usize).checked_sub(1).map_or(0, |known| self.pointers[known]),
            counts: first.counts,
        });
        ReferenceBlock {
            address: self.addresses.get(at).unwrap_or_default(),
            size,
            usable: size + u64::from(self.slack[at]),
            site: self.sites[at],
            index: self.numbers[at] >> SIZE_BITS,
            first: first.unwrap_or_default(),
        }
    }

    /// Returns the number of the block that contains an address.
    pub fn at(&self, address: u64) -> Option<u32> {
        let number = self.addresses.up_to(address).checked_sub(1)? as u32;
        let block = self.get(number);
        (address - block.address < block.usable.max(1)).then_some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn blocks() -> impl Strategy<Value = Vec<ReferenceBlock>> {
        let number = || prop_oneof![0u64..100, 0u64..(1 << 26), any::<u64>().prop_map(|n| n >> 2)];
        let first = prop_oneof![Just(0u64), 1u64..5, any::<u64>()];
        let counts = prop_oneof![Just((0u16, 0u16)), any::<(u16, u16)>()];
        let block = (1u64..1 << 20, number(), number(), any::<u32>(), number(), first, counts);
        proptest::collection::vec(block, 0..50).prop_map(|fields| {
            let mut address = 0;
            let mut blocks = Vec::new();
            for (gap, size, slack, site, index, pointer, counts) in fields {
                address += gap;
                let first = FirstWords { pointer, counts };
                blocks.push(ReferenceBlock { address, size, usable: size + slack, site, index, first });
            }
            blocks
        })
    }

    proptest! {
        #[test]
        fn what_is_packed_comes_out((given, cut) in (blocks(), 0usize..50)) {
            let mut packed = Blocks::default();
            given.iter().for_each(|block| packed.push(block));
            prop_assert_eq!(packed.iter().collect::<Vec<_>>(), given.clone());
            prop_assert_eq!((0..given.len() as u32).map(|n| packed.get(n)).collect::<Vec<_>>(), given.clone());
            packed.truncate(cut);
            let kept = &given[..cut.min(given.len())];
            prop_assert_eq!(packed.iter().collect::<Vec<_>>(), kept);
            // What was cut is replaced.
            let more = ReferenceBlock { address: u64::MAX / 2, size: 7, usable: 8, ..Default::default() };
            packed.push(&more);
            prop_assert_eq!(packed.get(kept.len() as u32), more);
        }
    }
}

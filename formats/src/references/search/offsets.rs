//! Offsets in place of addresses: fontconfig stores how far a block is from the block that has the word,
//! `boost::interprocess` how far it is from the word itself. Any small number may be one by chance, so they are
//! looked for only where no address leads, and reports look whether that is likely.

use super::{Piece, Put, Search, put_all, words};
use crate::tape::{Edge, EdgePacker, OFFSET_FROM_BLOCK, OFFSET_FROM_WORD, Record};
use rustc_hash::FxHashMap;
use std::io;

/// Most blocks that are looked for. So many are lost, or in another disguise.
pub(super) const MOST: usize = 1 << 16;
/// Bits of a first look at an address, which most numbers fail.
const FILTER: u64 = 1 << 20;

const fn place(address: u64) -> (usize, u64) {
    let bit = (address >> 4) % FILTER;
    (bit as usize / 64, 1 << (bit % 64))
}

impl Search<'_> {
    /// Searches the blocks for offsets of those to which no address leads.
    pub fn offsets(&mut self, put: Put<'_>) -> io::Result<()> {
        let is_alone = |number: &usize| self.referred[number / 64] & 1 << (number % 64) == 0;
        let alone = (0..self.table.len()).filter(is_alone).take(MOST + 1);
        let starts: FxHashMap<u64, u64> = alone.map(|number| (self.address(number), number as u64)).collect();
        self.found.has_too_many_alone = starts.len() > MOST;
        if starts.is_empty() || self.found.has_too_many_alone {
            return Ok(());
        }
        let mut filter = vec![0; FILTER as usize / 64];
        for address in starts.keys() {
            let (word, bit) = place(*address);
            filter[word] |= bit;
        }
        let mut edges = EdgePacker::default();
        self.each_piece(|_, Piece { number, at, offset, bytes }| {
            let (source, start) = (number as u64, at - offset);
            let skipped = at.next_multiple_of(8) - at;
            for (word, value) in (0..).zip(words(bytes.get(skipped as usize..).unwrap_or_default())) {
                if value == 0 {
                    continue;
                }
                let bases = [(OFFSET_FROM_BLOCK, start), (OFFSET_FROM_WORD, at + skipped + 8 * word)];
                for (inside, base) in bases {
                    let address = base.wrapping_add(value);
                    let (in_filter, bit) = place(address);
                    if filter[in_filter] & bit == 0 {
                        continue;
                    }
                    let Some(target) = starts.get(&address).copied().filter(|target| *target != source) else {
                        continue;
                    };
                    if edges.push(Edge { source, offset: (offset / 8 + word) * 8, target, inside }) {
                        put_all(edges.take_offsets()?.map(Record::ReferenceOffsets), put)?;
                    }
                }
            }
            Ok(())
        })?;
        put_all(edges.take_offsets()?.map(Record::ReferenceOffsets), put)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::references::{BlockTable, LiveBlock, Memory};
    use crate::resident::Allocator;
    use std::time::{Duration, Instant};

    /// Blocks side by side from this address.
    const FIRST: u64 = 0x10_0000;

    #[derive(Debug)]
    struct Heap(Vec<u64>);

    impl Memory for Heap {
        fn read(&self, at: u64, out: &mut [u8]) -> u64 {
            let words = self.0.iter().skip((at - FIRST) as usize / 8).flat_map(|word| word.to_le_bytes());
            out.iter_mut().zip(words).map(|(to, from)| *to = from).count() as u64
        }
    }

    /// Searches blocks of 32 bytes, and returns block, place in it, target and kind of each offset.
    fn offsets(words: Vec<u64>) -> (Vec<(u64, u64, u64, u64)>, bool) {
        let block = |index: u64| LiveBlock { address: FIRST + 32 * index, size: 32, index, site: 0 };
        let table = BlockTable::new((0..words.len() as u64 / 4).map(block).collect(), Allocator::Glibc);
        let heap = Heap(words);
        let mut search = Search::new(&table, &heap, [&[], &[]], None, Instant::now() + Duration::from_secs(60));
        let mut found = Vec::new();
        search.blocks(&mut |_| Ok(())).expect("no file");
        let put = &mut |record| {
            let Record::ReferenceOffsets(offsets) = record else { panic!("{record:?}") };
            offsets.each(|edge| found.push((edge.source, edge.offset, edge.target, edge.inside))).expect("edges");
            Ok(())
        };
        search.offsets(put).expect("no file");
        (found, search.found.has_too_many_alone)
    }

    #[test]
    fn offsets_are_from_the_block_or_from_the_word() {
        let mut words = vec![0; 24];
        // The third word of block 0: 96 from the block is block 3, and 80 from the word.
        words[2] = 96;
        assert_eq!(offsets(words.clone()).0, [(0, 16, 3, OFFSET_FROM_BLOCK)]);
        words[2] = 80;
        assert_eq!(offsets(words.clone()).0, [(0, 16, 3, OFFSET_FROM_WORD)]);
        // Backwards, from block 5.
        (words[2], words[21]) = (0, 64u64.wrapping_neg());
        assert_eq!(offsets(words.clone()).0, [(5, 8, 3, OFFSET_FROM_BLOCK)]);
        // An address leads to it: none is looked for.
        words[0] = FIRST + 96;
        assert_eq!(offsets(words).0, []);
    }

    #[test]
    fn too_many_blocks_without_an_address_are_said() {
        assert_eq!(offsets(vec![0; 4 * MOST]), (Vec::new(), false));
        assert_eq!(offsets(vec![0; 4 * (MOST + 1)]), (Vec::new(), true));
    }
}

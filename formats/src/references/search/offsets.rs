//! Offsets in place of addresses: fontconfig stores how far a block is from the block that has the word,
//! `boost::interprocess` how far it is from the word itself. Any small number may be one by chance, so they are
//! looked for only where no address leads, and reports look whether that is likely.

use super::{Piece, Put, Search, put_all, words};
use crate::tape::{Edge, EdgePacker, OFFSET_FROM_BLOCK, OFFSET_FROM_WORD, Record};
use rustc_hash::FxHashMap;
use std::io;

/// Most blocks that are looked for. So many are lost, or in another disguise.
const MOST: usize = 1 << 16;
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
        if starts.is_empty() || starts.len() > MOST {
            return Ok(());
        }
        let mut filter = vec![0; FILTER as usize / 64];
        for address in starts.keys() {
            let (word, bit) = place(*address);
            filter[word] |= bit;
        }
        let mut edges = EdgePacker::default();
        self.each_piece(|search, Piece { number, at, offset, bytes }| {
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
            let _ = search;
            Ok(())
        })?;
        put_all(edges.take_offsets()?.map(Record::ReferenceOffsets), put)
    }
}

//! Offsets in place of addresses: fontconfig stores how far a block is from the block that has the word,
//! `boost::interprocess` how far it is from the word itself. Any small number may be one by chance, so they are
//! looked for only where no address leads, and reports look whether that is likely.

use super::{Piece, Put, Search, put_all, words};
use crate::tape::{Edge, EdgePacker, LOOKED_FOR, OFFSET_FROM_BLOCK, OFFSET_FROM_WORD, Record};
use rustc_hash::FxHashMap;
use std::io;

/// Blocks up to which all are looked for. Of more, each site gets an equal share: among very many, nearly
/// any small number is the offset of one.
const MOST: usize = 1 << 16;
/// Bits of a first look at an address, which most numbers fail.
const FILTER: u64 = 1 << 20;

const fn place(address: u64) -> (usize, u64) {
    let bit = (address >> 4) % FILTER;
    (bit as usize / 64, 1 << (bit % 64))
}

/// Returns those of the blocks, each with its site, that are looked for: of each site evenly.
fn shares(blocks: &[(u32, usize)]) -> Vec<usize> {
    let mut of_site: FxHashMap<u32, (usize, usize)> = FxHashMap::default();
    for (site, _) in blocks {
        of_site.entry(*site).or_default().0 += 1;
    }
    let share = (MOST / of_site.len().max(1)).max(1);
    let mut chosen = Vec::new();
    for (site, number) in blocks {
        let (count, seen) = of_site.entry(*site).or_default();
        if seen.is_multiple_of(count.div_ceil(share)) {
            chosen.push(*number);
        }
        *seen += 1;
    }
    chosen
}

impl Search<'_> {
    /// Returns the blocks to which no address leads, if they are few, else those that are looked for
    /// with their marks.
    fn alone(&self, put: Put<'_>) -> io::Result<Vec<usize>> {
        let is_alone = |number: &usize| self.referred[number / 64] & 1 << (number % 64) == 0;
        let mut alone: Vec<usize> = (0..self.table.len()).filter(is_alone).collect();
        if alone.len() > MOST {
            let site = |number: &usize| (self.table.get(*number).map_or(0, |block| block.site), *number);
            alone = shares(&alone.iter().map(site).collect::<Vec<_>>());
            let mut marks = EdgePacker::default();
            for number in alone.iter().map(|number| *number as u64) {
                if marks.push(Edge { source: number, offset: 0, target: number, inside: LOOKED_FOR }) {
                    put_all(marks.take_offsets()?.map(Record::ReferenceOffsets), put)?;
                }
            }
            put_all(marks.take_offsets()?.map(Record::ReferenceOffsets), put)?;
        }
        Ok(alone)
    }

    /// Searches the blocks for offsets of those to which no address leads.
    pub fn offsets(&mut self, put: Put<'_>) -> io::Result<()> {
        let alone = self.alone(put)?;
        let starts: FxHashMap<u64, u64> =
            alone.into_iter().map(|number| (self.address(number), number as u64)).collect();
        if starts.is_empty() {
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

    /// Searches blocks of 32 bytes, of a site for each thousand, and returns block, place in it, target and
    /// kind of each offset.
    fn offsets(words: Vec<u64>) -> Vec<(u64, u64, u64, u64)> {
        let block = |index: u64| LiveBlock { address: FIRST + 32 * index, size: 32, index, site: index as u32 / 1000 };
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
        found
    }

    #[test]
    fn offsets_are_from_the_block_or_from_the_word() {
        let mut words = vec![0; 24];
        // The third word of block 0: 96 from the block is block 3, and 80 from the word.
        words[2] = 96;
        assert_eq!(offsets(words.clone()), [(0, 16, 3, OFFSET_FROM_BLOCK)]);
        words[2] = 80;
        assert_eq!(offsets(words.clone()), [(0, 16, 3, OFFSET_FROM_WORD)]);
        // Backwards, from block 5.
        (words[2], words[21]) = (0, 64u64.wrapping_neg());
        assert_eq!(offsets(words.clone()), [(5, 8, 3, OFFSET_FROM_BLOCK)]);
        // An address leads to it: none is looked for.
        words[0] = FIRST + 96;
        assert_eq!(offsets(words), []);
    }

    #[test]
    fn of_many_blocks_without_an_address_each_site_has_its_share() {
        assert_eq!(offsets(vec![0; 4 * MOST]), []);
        // 200 sites of 1,000 blocks, and one of a single block.
        let marked = offsets(vec![0; 4 * 200_001]);
        assert!(
            marked.iter().all(|(source, offset, target, kind)| { (source, *offset, *kind) == (target, 0, LOOKED_FOR) })
        );
        let mut of_site = vec![0; 201];
        marked.iter().for_each(|(source, ..)| of_site[*source as usize / 1000] += 1);
        assert!(of_site[..200].iter().all(|count| *count == 250), "{of_site:?}");
        assert_eq!(of_site[200], 1);
        // What leads to one of them is found.
        let mut words = vec![0; 4 * (MOST + 1)];
        words[1] = 32 * 1000;
        assert!(offsets(words).contains(&(0, 8, 1000, OFFSET_FROM_BLOCK)));
    }
}

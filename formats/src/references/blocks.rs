//! The live blocks in ascending order: given an address, finds the block that it is in.

use crate::resident::Allocator;

/// Blocks further apart than this are in different spans, so that the gap takes no memory.
const MAX_GAP: u64 = 1 << 20;
/// Binary logarithm of the smallest granule of a span: the size of a small block.
const MIN_SHIFT: u32 = 6;

/// A block that the process has.
#[derive(Clone, Copy, Debug)]
pub struct LiveBlock {
    /// Its first address.
    pub address: u64,
    /// Requested bytes.
    pub size: u64,
    /// Allocation index; 0 for an inherited one.
    pub index: u64,
    /// Number of its site; 0 if that is not known.
    pub site: u32,
}

/// A range of addresses with blocks. A granule has the number of the first block that begins in it
/// or after it.
#[derive(Debug)]
struct Span {
    start: u64,
    end: u64,
    shift: u32,
    /// Index of the first granule.
    granules: usize,
}

/// The live blocks of a process.
#[derive(Debug)]
pub struct BlockTable {
    blocks: Vec<LiveBlock>,
    allocator: Allocator,
    spans: Vec<Span>,
    granules: Vec<u32>,
}

impl BlockTable {
    /// Sorts the blocks of a process.
    pub fn new(mut blocks: Vec<LiveBlock>, allocator: Allocator) -> BlockTable {
        blocks.sort_unstable_by_key(|block| block.address);
        blocks.dedup_by_key(|block| block.address);
        let mut table = BlockTable { blocks, allocator, spans: Vec::new(), granules: Vec::new() };
        let mut first = 0;
        while first < table.blocks.len() {
            let start = table.blocks[first].address;
            let (mut end, mut next) = (table.end(first), first + 1);
            while next < table.blocks.len() && table.blocks[next].address <= end.saturating_add(MAX_GAP) {
                end = end.max(table.end(next));
                next += 1;
            }
            table.add_span(start, end, first..next);
            first = next;
        }
        table
    }

    fn add_span(&mut self, start: u64, end: u64, blocks: std::ops::Range<usize>) {
        let most = 4 * blocks.len() as u64 + 64;
        let mut shift = MIN_SHIFT;
        while (end - start) >> shift > most {
            shift += 1;
        }
        let granules = self.granules.len();
        let mut next = blocks.start;
        for granule in 0..=(end - start) >> shift {
            let at = start + (granule << shift);
            while next < blocks.end && self.blocks[next].address < at {
                next += 1;
            }
            self.granules.push(next as u32);
        }
        self.granules.push(blocks.end as u32);
        self.spans.push(Span { start, end, shift, granules });
    }

    /// Returns the number of blocks.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Returns a block by its number.
    pub fn get(&self, number: usize) -> Option<&LiveBlock> {
        self.blocks.get(number)
    }

    /// Returns the requested bytes of all blocks.
    pub fn bytes(&self) -> u64 {
        self.blocks.iter().map(|block| block.size).sum()
    }

    /// Returns the blocks that begin in a range.
    pub fn within(&self, start: u64, end: u64) -> &[LiveBlock] {
        let from = self.blocks.partition_point(|block| block.address < start);
        let length = self.blocks[from..].partition_point(|block| block.address < end);
        &self.blocks[from..from + length]
    }

    /// Returns the first address after what the program may use of a block: malloc_usable_size(3)
    /// permits more than was requested.
    pub fn end(&self, number: usize) -> u64 {
        let Some(block) = self.blocks.get(number) else { return 0 };
        let end = self.allocator.occupied(block.address, block.size).end;
        let end = end.max(block.address.saturating_add(block.size.max(1)));
        let next = self.blocks.get(number + 1).map_or(u64::MAX, |next| next.address);
        end.min(next.max(block.address + 1))
    }

    /// Returns the number of the block that an address is in. `span` is where the last search ended.
    #[inline]
    pub fn find(&self, address: u64, span: &mut usize) -> Option<usize> {
        let is_in = |span: &Span| (span.start..span.end).contains(&address);
        let found = match self.spans.get(*span) {
            Some(last) if is_in(last) => last,
            _ => {
                let next = self.spans.partition_point(|span| span.start <= address);
                *span = next.checked_sub(1)?;
                self.spans.get(*span).filter(|span| is_in(span))?
            }
        };
        let granule = found.granules + ((address - found.start) >> found.shift) as usize;
        let (from, to) = (self.granules[granule] as usize, self.granules[granule + 1] as usize);
        // The blocks that begin in the granule, and the last one before it.
        let begun = self.blocks[from..to].partition_point(|block| block.address <= address);
        let number = (from + begun).checked_sub(1)?;
        (address < self.end(number)).then_some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(blocks: &[(u64, u64)]) -> BlockTable {
        let live = |&(address, size): &(u64, u64)| LiveBlock { address, size, index: 1, site: 1 };
        BlockTable::new(blocks.iter().map(live).collect(), Allocator::Unknown)
    }

    #[test]
    fn addresses_lead_to_the_blocks_that_they_are_in() {
        let mut blocks: Vec<(u64, u64)> = (0..5000u64).map(|n| (0x10_0000 + 64 * n + n % 3 * 8, 1 + n % 40)).collect();
        blocks.extend([(0x7f00_0000_0000, 3 << 30), (0x7fff_0000_0000, 0), (0x5000_0000, 5)]);
        let table = table(&blocks);
        blocks.sort_unstable();
        let mut span = 0;
        for (number, (address, size)) in blocks.iter().enumerate() {
            let size = (*size).max(1);
            for inside in [0, size / 2, size - 1] {
                assert_eq!(table.find(address + inside, &mut span), Some(number), "{address:#x}+{inside}");
            }
            assert_eq!(table.find(address + size, &mut span), None, "{address:#x}+{size}");
        }
        for nowhere in [0, 1, 0xf_ffff, 0x6000_0000, u64::MAX] {
            assert_eq!(table.find(nowhere, &mut span), None);
        }
        assert!(table.granules.len() < 5 * blocks.len() + 4 * 66, "{} granules", table.granules.len());
    }

    #[test]
    fn no_block_has_no_address() {
        assert_eq!(table(&[]).find(0x1000, &mut 0), None);
    }
}

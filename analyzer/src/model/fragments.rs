//! Fragmentation: the pages of memory that live blocks are in, how full these are, and which sites
//! keep nearly empty ones in use.

use super::live_set::LiveSet;
use super::row;
use rustc_hash::FxHashMap;

/// Number of classes of pages by fill level. At least n tenths of a page of class n are live.
pub(crate) const TENTHS: usize = 11;
/// A page is nearly empty if less than this fraction of it is live: one in 4 bytes.
const NEARLY_EMPTY_DIVISOR: u64 = 4;

/// The blocks of a site in nearly empty pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pinned {
    /// Number of bytes of the pages that it keeps in use. A page with several sites is divided by
    /// their live bytes.
    pub bytes: u64,
    /// Number of its blocks in these pages.
    pub blocks: u64,
    /// Number of its live bytes in these pages.
    pub live: u64,
}

/// The fragmentation at one point in time.
#[derive(Debug, Default)]
pub struct Fragments {
    /// Number of live blocks.
    pub blocks: u64,
    /// Number of live bytes.
    pub live: u64,
    /// Number of pages with live bytes.
    pub pages: u64,
    /// Number of pages by fill level.
    pub tenths: [u64; TENTHS],
    /// Number of nearly empty pages.
    pub nearly_empty: u64,
    /// Largest gap between two live blocks, in bytes. Gaps of 64 MiB and more do not count.
    pub largest_gap: u64,
    /// Blocks in nearly empty pages by site.
    pub sites: Vec<Pinned>,
}

/// Minimum distance of blocks in different mappings, in bytes.
const MAPPING_DISTANCE: u64 = 64 << 20;

impl Fragments {
    /// Computes the fragmentation of live blocks in pages of `page` bytes.
    pub fn of(live: &LiveSet, page: u64) -> Fragments {
        let page = page.max(512);
        let mut blocks: Vec<(u64, u64, u32)> =
            live.iter().map(|(_, block)| (block.address, block.size, block.site)).collect();
        blocks.sort_unstable();
        let mut found = Fragments { blocks: blocks.len() as u64, ..Fragments::default() };
        // The number and live bytes of the current page, and the bytes and blocks of each site in
        // it.
        let mut current: Option<(u64, u64)> = None;
        let mut held: FxHashMap<u32, (u64, u64)> = FxHashMap::default();
        let mut end = 0u64;
        for &(address, size, site) in &blocks {
            found.live = found.live.saturating_add(size);
            let gap = address.saturating_sub(end);
            if end > 0 && gap < MAPPING_DISTANCE {
                found.largest_gap = found.largest_gap.max(gap);
            }
            let size = size.max(1).min(u64::MAX - address);
            let (first, last) = (address / page, (address + size - 1) / page);
            end = end.max(address + size);
            // A block on two nearly empty pages counts once.
            let mut is_counted = false;
            for number in [first, last] {
                if current.is_none_or(|(now, _)| now < number) {
                    if let Some((closed, bytes)) = current {
                        let is_nearly_empty = found.close(page, bytes, &mut held);
                        is_counted = closed == first && is_nearly_empty;
                    }
                    current = Some((number, 0));
                }
                let (from, to) = (address.max(number * page), (address + size).min((number + 1).saturating_mul(page)));
                if let Some((_, bytes)) = current.as_mut().filter(|(now, _)| *now == number) {
                    let inside = to.saturating_sub(from);
                    *bytes += inside;
                    let here = held.entry(site).or_default();
                    *here = (here.0 + inside, here.1 + u64::from(!is_counted));
                }
                if first == last {
                    break;
                }
            }
            // Pages between the first and the last are full.
            let between = (last - first).saturating_sub(1);
            found.pages += between;
            found.tenths[TENTHS - 1] += between;
        }
        if let Some((_, bytes)) = current {
            found.close(page, bytes, &mut held);
        }
        found
    }

    /// Counts a page after its last block. Returns whether it is nearly empty.
    fn close(&mut self, page: u64, bytes: u64, held: &mut FxHashMap<u32, (u64, u64)>) -> bool {
        self.pages += 1;
        self.tenths[(bytes.saturating_mul(10) / page).min(10) as usize] += 1;
        let nearly_empty = bytes < page / NEARLY_EMPTY_DIVISOR;
        self.nearly_empty += u64::from(nearly_empty);
        for (site, (live, blocks)) in held.drain() {
            if nearly_empty {
                let row = row(&mut self.sites, site);
                row.bytes += (page * live).checked_div(bytes).unwrap_or(0);
                row.blocks += blocks;
                row.live += live;
            }
        }
        nearly_empty
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::live_set::Block;

    #[test]
    fn pages_are_counted_once() {
        let mut live = LiveSet::default();
        let blocks = [(0x1000, 100, 1), (0x1100, 100, 2), (0x2ff0, 32, 1), (0x10000, 3 * 4096, 3), (0x20000, 4096, 4)];
        for (index, &(address, size, site)) in blocks.iter().enumerate() {
            live.insert(index as u64, Block { address, size, site, ..Block::default() });
        }
        let found = Fragments::of(&live, 4096);
        assert_eq!((found.pages, found.nearly_empty, found.blocks), (7, 3, 5));
        assert_eq!(found.tenths[0], 3);
        assert_eq!(found.tenths[10], 4);
        assert_eq!(found.sites[2], Pinned { bytes: 2048, blocks: 1, live: 100 });
        assert_eq!(found.sites[1], Pinned { bytes: 2048 + 8192, blocks: 2, live: 132 });
        assert_eq!(found.largest_gap, 0x20000 - 0x13000);
    }

    #[test]
    fn block_that_only_ends_on_a_nearly_empty_page_is_counted_there() {
        let mut live = LiveSet::default();
        for (index, (address, size)) in [(0x1000, 4096 + 100), (0x8000, 4096), (0x9000, 50)].into_iter().enumerate() {
            live.insert(index as u64, Block { address, size, site: 1, ..Block::default() });
        }
        let found = Fragments::of(&live, 4096);
        assert_eq!(found.sites[1], Pinned { bytes: 2 * 4096, blocks: 2, live: 150 });
    }
}

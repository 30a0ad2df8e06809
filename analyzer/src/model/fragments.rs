//! How live blocks lie in memory: which pages they touch, how full these are, and who keeps nearly
//! empty ones alive.

use super::live_set::LiveSet;
use super::row;
use rustc_hash::FxHashMap;

/// Classes of pages by how full they are: class n holds pages of which at least n tenths are live.
pub const TENTHS: usize = 11;
/// A page with fewer live bytes than one in so many is nearly empty.
const EMPTY: u64 = 4;

/// What a site holds in nearly empty pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pinned {
    /// Bytes of the pages that it keeps from being given back; a page of several sites is divided
    /// by their live bytes.
    pub bytes: u64,
    /// Its blocks there.
    pub blocks: u64,
    /// Their bytes.
    pub live: u64,
}

/// The picture at one moment.
#[derive(Debug, Default)]
pub struct Fragments {
    /// Live blocks.
    pub blocks: u64,
    /// Live bytes.
    pub live: u64,
    /// Pages that hold live bytes.
    pub pages: u64,
    /// By how full they are.
    pub tenths: [u64; TENTHS],
    /// Nearly empty pages.
    pub nearly_empty: u64,
    /// Largest run of bytes between two live blocks that lie less than 64 MiB apart.
    pub largest_gap: u64,
    /// By site: what it holds in nearly empty pages.
    pub sites: Vec<Pinned>,
}

/// Blocks farther apart lie in different mappings.
const APART: u64 = 64 << 20;

impl Fragments {
    /// The picture of what is alive.
    pub fn of(live: &LiveSet, page: u64) -> Fragments {
        let page = page.max(512);
        let mut blocks: Vec<(u64, u64, u32)> =
            live.iter().map(|(_, block)| (block.address, block.size, block.site)).collect();
        blocks.sort_unstable();
        let mut found = Fragments { blocks: blocks.len() as u64, ..Fragments::default() };
        // The page in work: number, live bytes, and what each site has there.
        let mut current: Option<(u64, u64)> = None;
        let mut held: FxHashMap<u32, (u64, u64)> = FxHashMap::default();
        let mut end = 0u64;
        for &(address, size, site) in &blocks {
            found.live = found.live.saturating_add(size);
            let gap = address.saturating_sub(end);
            if end > 0 && gap < APART {
                found.largest_gap = found.largest_gap.max(gap);
            }
            let size = size.max(1).min(u64::MAX - address);
            let (first, last) = (address / page, (address + size - 1) / page);
            end = end.max(address + size);
            for number in [first, last] {
                if current.is_none_or(|(now, _)| now < number) {
                    if let Some((_, bytes)) = current {
                        found.close(page, bytes, &mut held);
                    }
                    current = Some((number, 0));
                }
                let (from, to) = (address.max(number * page), (address + size).min((number + 1).saturating_mul(page)));
                if let Some((_, bytes)) = current.as_mut().filter(|(now, _)| *now == number) {
                    let inside = to.saturating_sub(from);
                    *bytes += inside;
                    let here = held.entry(site).or_default();
                    *here = (here.0 + inside, here.1 + u64::from(number == first));
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

    fn close(&mut self, page: u64, bytes: u64, held: &mut FxHashMap<u32, (u64, u64)>) {
        self.pages += 1;
        self.tenths[(bytes.saturating_mul(10) / page).min(10) as usize] += 1;
        let nearly_empty = bytes < page / EMPTY;
        self.nearly_empty += u64::from(nearly_empty);
        for (site, (live, blocks)) in held.drain() {
            if nearly_empty {
                let row = row(&mut self.sites, site);
                row.bytes += (page * live).checked_div(bytes).unwrap_or(0);
                row.blocks += blocks;
                row.live += live;
            }
        }
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
}

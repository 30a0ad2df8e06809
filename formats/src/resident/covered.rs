//! Which pages ever held a block.

use super::size_class::Allocator;
use crate::tape::PageRun;
use rustc_hash::FxHashMap;

/// Binary logarithm of the number of pages of a group.
const GROUP_LOG2: u32 = 9;
/// Number of groups that are found without a search.
const CACHED: usize = 64;
const MASKS: usize = (1 << GROUP_LOG2) / 64;
/// Number of pages of a group.
const GROUP: u64 = 1 << GROUP_LOG2;

/// A set of pages that ever held a block: of those that are resident in a snapshot, or of those on
/// which blocks were freed.
#[derive(Clone, Debug)]
pub struct Covered {
    /// Binary logarithm of the size of a page.
    page_log2: u32,
    /// Whether glibc is the allocator: it unmaps large blocks when they are freed, and others may
    /// get their addresses.
    unmaps: bool,
    groups: FxHashMap<u64, u32>,
    masks: Vec<[u64; MASKS]>,
    /// The groups that were used last, each with its index, at the number of the group modulo
    /// [`CACHED`].
    cache: [(u64, u32); CACHED],
    /// Number of groups up to which groups are added as they are needed.
    limit: usize,
}

impl Covered {
    /// Creates the set for these runs of resident pages of `page` bytes each. At most `limit`
    /// groups of 512 pages are kept: pages of further ones count as never covered. The memory of
    /// the set depends on the runs only.
    pub fn new(runs: &[PageRun], page: u64, limit: usize) -> Covered {
        let mut covered = Covered::growing(page, 0);
        covered.unmaps = false;
        covered.include(runs, limit);
        covered
    }

    /// Creates a set that grows with the pages on which blocks are freed, up to `limit` groups of
    /// 512 pages.
    pub fn growing(page: u64, limit: usize) -> Covered {
        let (groups, masks, cache) = (FxHashMap::default(), Vec::new(), [(u64::MAX, 0); CACHED]);
        // Blocks of other allocators are nearly never where those are that glibc maps.
        Covered { page_log2: page.max(1).ilog2(), unmaps: true, groups, masks, cache, limit }
    }

    /// Returns the number of groups.
    pub fn groups(&self) -> usize {
        self.masks.len()
    }

    fn add_group(&mut self, group: u64) -> u32 {
        let next = self.masks.len() as u32;
        let index = *self.groups.entry(group).or_insert(next);
        if index == next {
            self.masks.push([0; MASKS]);
        }
        index
    }

    /// Adds the pages of another snapshot to those that are watched, up to `limit` groups in all.
    pub fn include(&mut self, runs: &[PageRun], limit: usize) {
        for run in runs.iter().filter(|run| run.pages > 0) {
            for group in run.first >> GROUP_LOG2..=(run.end() - 1) >> GROUP_LOG2 {
                if self.masks.len() >= limit {
                    break;
                }
                self.add_group(group);
            }
        }
    }

    /// Removes the groups without a page in these runs.
    pub fn retain(&mut self, runs: &[PageRun]) {
        let is_used = |group: u64| {
            let next = runs.partition_point(|run| run.end() <= group << GROUP_LOG2);
            runs.get(next).is_some_and(|run| run.first < (group + 1) << GROUP_LOG2)
        };
        let old = std::mem::take(&mut self.masks);
        self.cache = [(u64::MAX, 0); CACHED];
        self.groups.retain(|group, index| {
            let is_used = is_used(*group);
            if is_used {
                let masks = old[*index as usize];
                *index = self.masks.len() as u32;
                self.masks.push(masks);
            }
            is_used
        });
    }

    /// Sets the allocator of the process.
    pub fn set_allocator(&mut self, allocator: Allocator) {
        self.unmaps = allocator == Allocator::Glibc;
    }

    /// Returns the number of pages from `from` to before `to` that held a block.
    pub fn count(&self, from: u64, to: u64) -> u64 {
        let Some(last) = to.checked_sub(1).filter(|last| *last >= from) else { return 0 };
        let (first_group, last_group) = (from >> GROUP_LOG2, last >> GROUP_LOG2);
        let of = |group: u64, index: u32| {
            let masks = &self.masks[index as usize];
            let (low, high) = (from.max(group << GROUP_LOG2), last.min((group << GROUP_LOG2) + GROUP - 1));
            (low % GROUP..=high % GROUP).filter(|bit| masks[*bit as usize / 64] >> (bit % 64) & 1 != 0).count() as u64
        };
        // A run of pages from a damaged file may have any length.
        if last_group - first_group > self.groups.len() as u64 {
            let inside = self.groups.iter().filter(|(group, _)| (first_group..=last_group).contains(group));
            return inside.map(|(group, index)| of(*group, *index)).sum();
        }
        (first_group..=last_group).filter_map(|group| Some(of(group, *self.groups.get(&group)?))).sum()
    }

    /// Adds the pages of a block.
    pub fn add(&mut self, address: u64, size: u64) {
        self.set(address, size, true);
    }

    /// Removes the pages of a freed block that had a mapping of its own.
    pub fn remove(&mut self, address: u64, size: u64) {
        if self.unmaps && Allocator::is_mapped_by_glibc(address, size) {
            self.set(address, size, false);
        }
    }

    /// Adds the pages of a freed block, or removes them if it had a mapping of its own. A live
    /// block needs no entry: its pages hold a block.
    #[inline(always)]
    pub fn freed(&mut self, address: u64, size: u64) {
        let page = address >> self.page_log2;
        let (group, index) = self.cache[(page >> GROUP_LOG2) as usize % CACHED];
        // A block of more than one page may have a mapping of its own.
        let is_one_page = address.saturating_add(size.max(1) - 1) >> self.page_log2 == page;
        if is_one_page && page >> GROUP_LOG2 == group {
            let bit = page % GROUP;
            self.masks[index as usize][bit as usize / 64] |= 1 << (bit % 64);
        } else {
            self.freed_elsewhere(address, size);
        }
    }

    #[inline(never)]
    fn freed_elsewhere(&mut self, address: u64, size: u64) {
        if self.unmaps && Allocator::is_mapped_by_glibc(address, size) {
            return self.set(address, size, false);
        }
        self.set(address, size, true);
        let group = (address >> self.page_log2) >> GROUP_LOG2;
        if let Some(index) = self.groups.get(&group) {
            self.cache[group as usize % CACHED] = (group, *index);
        }
    }

    fn set(&mut self, address: u64, size: u64, is_covered: bool) {
        let last = address.saturating_add(size.max(1) - 1) >> self.page_log2;
        let first = address >> self.page_log2;
        let (first_group, last_group) = (first >> GROUP_LOG2, last >> GROUP_LOG2);
        let set = |group: u64, masks: &mut [u64; MASKS]| {
            let from = first.max(group << GROUP_LOG2);
            let to = last.min((group << GROUP_LOG2) + GROUP - 1);
            for bit in from % GROUP..=to % GROUP {
                let mask = 1 << (bit % 64);
                let word = &mut masks[bit as usize / 64];
                *word = if is_covered { *word | mask } else { *word & !mask };
            }
        };
        if is_covered && self.masks.len() < self.limit {
            for group in (first_group..=last_group).take(self.limit - self.masks.len()) {
                self.add_group(group);
            }
        }
        // A size from a damaged file may be anything.
        if last_group - first_group > self.masks.len() as u64 {
            let inside = self.groups.iter().filter(|(group, _)| (first_group..=last_group).contains(group));
            return inside.for_each(|(group, index)| set(*group, &mut self.masks[*index as usize]));
        }
        for group in first_group..=last_group {
            if let Some(index) = self.groups.get(&group) {
                set(group, &mut self.masks[*index as usize]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tape::PageKind;

    #[test]
    fn pages_of_blocks_are_covered_as_far_as_they_are_resident() {
        let run = |first, pages| PageRun { first, pages, kind: PageKind::Anonymous, is_huge: false };
        let mut covered = Covered::new(&[run(10, 2), run(510, 4), run(1 << 30, 1)], 4096, 100);
        covered.add(10 * 4096 + 4000, 97);
        covered.add(511 * 4096, 2 * 4096);
        let pages: Vec<u64> = (0..2000).filter(|page| covered.count(*page, page + 1) > 0).collect();
        assert_eq!(pages, [10, 11, 511, 512]);
        assert_eq!((covered.count(11, 512), covered.count(0, u64::MAX), covered.count(12, 12)), (2, 4, 0));
        covered.add(1 << 40, u64::MAX);
        assert_eq!((covered.count(1 << 30, (1 << 30) + 1), covered.count(2000, 3000)), (1, 0));
    }

    /// glibc unmaps a large block when it is freed. What is at its address later is another
    /// mapping, and not a free page of the heap.
    #[test]
    fn pages_of_unmapped_blocks_are_covered_no_more() {
        let run = PageRun { first: 10, pages: 200, kind: PageKind::Anonymous, is_huge: false };
        let (large, small) = ((10 * 4096 + 16, 50 * 4096), (100 * 4096 + 16, 4096));
        for (allocator, covered_later) in [(Allocator::Glibc, 2), (Allocator::Jemalloc, 53)] {
            let mut covered = Covered::new(&[run], 4096, 100);
            covered.set_allocator(allocator);
            for (address, size) in [large, small] {
                covered.add(address, size);
                assert!(covered.count(address / 4096, address / 4096 + 2) == 2);
                covered.remove(address, size);
            }
            assert_eq!(covered.count(0, 1000), covered_later, "{allocator:?}");
        }
    }

    /// The recorder does not know which pages will be resident, and sees each free only.
    #[test]
    fn freed_blocks_cover_pages_in_groups_that_are_added() {
        let mut covered = Covered::growing(4096, 3);
        covered.freed(10 * 4096 + 16, 24);
        covered.freed(1 << 40, 2 * 4096);
        covered.freed(10 * 4096 + 64, 4096);
        assert_eq!((covered.count(0, 100), covered.count(1 << 28, (1 << 28) + 100), covered.groups()), (2, 2, 2));
        // A mapping of its own is gone.
        covered.freed(9 * 4096 + 16, 40 * 4096);
        assert_eq!(covered.count(0, 100), 0);
        // One group more, and then those that exist.
        covered.freed(1 << 41, 4 << 20);
        covered.freed(0, 1 << 62);
        assert_eq!((covered.groups(), covered.count(0, 512), covered.count(512, 1024)), (3, 512, 0));
        covered.retain(&[PageRun { first: 5, pages: 1, kind: PageKind::Anonymous, is_huge: false }]);
        assert_eq!((covered.groups(), covered.count(0, 512)), (1, 512));
    }
}

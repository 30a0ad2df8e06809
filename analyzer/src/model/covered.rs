//! Which of the resident pages ever held a block.

use super::Model;
use super::live_set::Block;
use super::size_class::Allocator;
use crate::event::{Event, Kind};
use heaptape_formats::tape::PageRun;
use rustc_hash::FxHashMap;

/// Binary logarithm of the number of pages of a group.
const GROUP_LOG2: u32 = 9;
const MASKS: usize = (1 << GROUP_LOG2) / 64;
/// Number of pages of a group.
const GROUP: u64 = 1 << GROUP_LOG2;

/// The set of the pages that ever held a block, of those that are resident in a snapshot. Its
/// memory depends on the snapshot only.
#[derive(Debug)]
pub struct Covered {
    page: u64,
    /// Whether glibc is the allocator: it unmaps large blocks when they are freed, and others may
    /// get their addresses.
    unmaps: bool,
    groups: FxHashMap<u64, [u64; MASKS]>,
}

impl Covered {
    /// Creates the set for these runs of resident pages of `page` bytes each. At most `limit`
    /// groups of 512 pages are kept: pages of further ones count as never covered.
    pub fn new(runs: &[PageRun], page: u64, limit: usize) -> Covered {
        let mut covered = Covered { page: page.max(1), unmaps: false, groups: FxHashMap::default() };
        covered.include(runs, limit);
        covered
    }

    /// Adds the pages of another snapshot to those that are watched, up to `limit` groups in all.
    pub fn include(&mut self, runs: &[PageRun], limit: usize) {
        for run in runs.iter().filter(|run| run.pages > 0) {
            for group in run.first >> GROUP_LOG2..=(run.end() - 1) >> GROUP_LOG2 {
                if self.groups.len() >= limit {
                    break;
                }
                self.groups.entry(group).or_insert([0; MASKS]);
            }
        }
    }

    /// Sets the allocator of the process.
    pub fn set_allocator(&mut self, allocator: Allocator) {
        self.unmaps = allocator == Allocator::Glibc;
    }

    /// Returns the number of pages from `from` to before `to` that held a block.
    pub fn count(&self, from: u64, to: u64) -> u64 {
        let Some(last) = to.checked_sub(1).filter(|last| *last >= from) else { return 0 };
        let (first_group, last_group) = (from >> GROUP_LOG2, last >> GROUP_LOG2);
        let of = |group: u64, masks: &[u64; MASKS]| {
            let (low, high) = (from.max(group << GROUP_LOG2), last.min((group << GROUP_LOG2) + GROUP - 1));
            (low % GROUP..=high % GROUP).filter(|bit| masks[*bit as usize / 64] >> (bit % 64) & 1 != 0).count() as u64
        };
        // A run of pages from a damaged file may have any length.
        if last_group - first_group > self.groups.len() as u64 {
            let inside = self.groups.iter().filter(|(group, _)| (first_group..=last_group).contains(group));
            return inside.map(|(group, masks)| of(*group, masks)).sum();
        }
        (first_group..=last_group).filter_map(|group| Some(of(group, self.groups.get(&group)?))).sum()
    }

    /// Adds the pages of a block.
    fn add(&mut self, address: u64, size: u64) {
        self.set(address, size, true);
    }

    /// Removes the pages of a freed block that had a mapping of its own.
    fn remove(&mut self, block: &Block) {
        if self.unmaps && Allocator::is_mapped_by_glibc(block.address, block.size) {
            self.set(block.address, block.size, false);
        }
    }

    fn set(&mut self, address: u64, size: u64, is_covered: bool) {
        let (first, last) = (address / self.page, address.saturating_add(size.max(1) - 1) / self.page);
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
        // A size from a damaged file may be anything.
        if last_group - first_group > self.groups.len() as u64 {
            let inside = self.groups.iter_mut().filter(|(group, _)| (first_group..=last_group).contains(group));
            return inside.for_each(|(group, masks)| set(*group, masks));
        }
        for group in first_group..=last_group {
            if let Some(masks) = self.groups.get_mut(&group) {
                set(group, masks);
            }
        }
    }
}

impl Model for Covered {
    fn alloc(&mut self, _: &Event, block: &Block) {
        self.add(block.address, block.size);
    }

    fn resize(&mut self, _: &Event, old: Option<&Block>, block: &Block) {
        if let Some(old) = old {
            self.remove(old);
        }
        self.add(block.address, block.size);
    }

    fn free(&mut self, _: &Event, old: Option<&Block>) {
        if let Some(old) = old {
            self.remove(old);
        }
    }

    fn inherited(&mut self, block: &Block, gone: Option<Kind>) {
        match gone {
            None => self.add(block.address, block.size),
            Some(_) => self.remove(block),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use heaptape_formats::tape::PageKind;

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
        let event = Event {
            kind: Kind::Free,
            entry: 1,
            thread: 1,
            site: 0,
            number: 0,
            index: 1,
            address: 0,
            size: 0,
            weight: 0,
            tick: 0,
        };
        let large = Block { address: 10 * 4096 + 16, size: 50 * 4096, ..Block::default() };
        let small = Block { address: 100 * 4096 + 16, size: 4096, ..Block::default() };
        for (allocator, covered_later) in [(Allocator::Glibc, 2), (Allocator::Jemalloc, 53)] {
            let mut covered = Covered::new(&[run], 4096, 100);
            covered.set_allocator(allocator);
            for block in [&large, &small] {
                covered.alloc(&event, block);
                assert!(covered.count(block.address / 4096, block.address / 4096 + 2) == 2);
                covered.free(&event, Some(block));
            }
            assert_eq!(covered.count(0, 1000), covered_later, "{allocator:?}");
            // It grows and moves.
            covered.alloc(&event, &large);
            let moved = Block { address: 120 * 4096 + 16, ..large };
            covered.resize(&event, Some(&large), &moved);
            assert_eq!(covered.count(120, 171), 51);
            assert_eq!(covered.count(10, 61) == 0, allocator == Allocator::Glibc);
        }
    }
}

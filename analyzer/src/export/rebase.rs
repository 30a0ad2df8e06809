//! Replacement addresses below 2^31 that keep which blocks are adjacent, and where in their page
//! they begin.
//!
//! mpatrol's own 64-bit mptrace shows numbers from 2^31 on incorrectly. Pages that blocks touched
//! are moved together, each run of adjacent pages as a unit, in the order of their addresses.

use std::collections::BTreeMap;

/// Size of a page in bytes.
const PAGE: u64 = 4096;
/// Number of the first page that is assigned. Lower addresses look like errors.
const FIRST: u64 = 16;
/// Number of pages below 2^31.
const PAGES: u64 = (1 << 31) / PAGE;

/// Runs of touched pages: the first page, and the page after the last one.
#[derive(Debug, Default)]
struct Runs(BTreeMap<u64, u64>);

impl Runs {
    fn add(&mut self, mut from: u64, mut to: u64) {
        if let Some((&start, &end)) = self.0.range(..=to).next_back() {
            if start <= from && to <= end {
                return;
            }
            // Runs that overlap or touch become one.
            let mut next = Some((start, end));
            while let Some((start, end)) = next.filter(|&(_, end)| end >= from) {
                self.0.remove(&start);
                (from, to) = (from.min(start), to.max(end));
                next = self.0.range(..=to).next_back().map(|(&start, &end)| (start, end));
            }
        }
        self.0.insert(from, to);
    }

    /// Returns the number of pages of all runs, with one page between each two.
    fn pages(&self) -> u64 {
        self.0.iter().fold(0u64, |sum, (start, end)| sum.saturating_add(end - start).saturating_add(1))
    }
}

/// Collects the addresses of blocks.
#[derive(Debug, Default)]
pub(crate) struct Learner {
    whole: Runs,
    starts: Runs,
}

impl Learner {
    /// Adds a block of the given address and size.
    pub(crate) fn block(&mut self, address: u64, size: u64) {
        let (first, last) = (address / PAGE, address.saturating_add(size.saturating_sub(1)) / PAGE);
        self.whole.add(first, last + 1);
        self.starts.add(first, first + 1);
    }

    /// Returns the mapping. When not all pages of all blocks fit, large blocks may overlap others.
    /// When not even the pages fit in which blocks begin, addresses are reused.
    pub(crate) fn finish(self) -> Rebase {
        let room = PAGES - FIRST;
        let (runs, fit) = match (self.whole.pages() <= room, self.starts.pages() <= room) {
            (true, _) => (self.whole, Fit::Whole),
            (false, true) => (self.starts, Fit::Starts),
            (false, false) => (self.starts, Fit::Folded),
        };
        let mut next = FIRST;
        let moved = runs.0.iter().map(|(&start, &end)| {
            let to = next;
            next = next.saturating_add(end - start).saturating_add(1);
            (start, to)
        });
        Rebase { moved: moved.collect(), fit }
    }
}

/// How well the addresses fit below 2^31.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// Blocks have the same distances as before.
    Whole,
    /// Each block begins at an address of its own page; large blocks may overlap others.
    Starts,
    /// Some addresses are used more than once.
    Folded,
}

/// Maps addresses to replacement addresses.
#[derive(Debug)]
pub(crate) struct Rebase {
    moved: BTreeMap<u64, u64>,
    /// How well the addresses fit.
    pub fit: Fit,
}

impl Rebase {
    /// Returns the replacement address of a block's first byte.
    pub(crate) fn of(&self, address: u64) -> u64 {
        let page = address / PAGE;
        let Some((&start, &to)) = self.moved.range(..=page).next_back() else { return address % PAGE };
        let page = to.saturating_add(page - start);
        let page = if page < PAGES { page } else { FIRST + page % (PAGES - FIRST) };
        page * PAGE + address % PAGE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_stay_neighbours() {
        let mut learner = Learner::default();
        let blocks = [(0x7fff_f7a0_1234, 100), (0x7fff_f7a0_2000, 9000), (0x5555_5555_0010, 1), (0x7fff_f7a0_1f00, 0)];
        blocks.iter().for_each(|&(address, size)| learner.block(address, size));
        let rebase = learner.finish();
        let moved = blocks.map(|(address, _)| rebase.of(address));
        assert_eq!(rebase.fit, Fit::Whole);
        assert!(moved.iter().all(|address| (FIRST * PAGE..1 << 31).contains(address)), "{moved:x?}");
        assert_eq!(moved[1] - moved[0], 0x2000 - 0x1234);
        assert_eq!(moved[3] - moved[0], 0x1f00 - 0x1234);
        assert!(moved[2] < moved[0] && moved[2] % PAGE == 0x10);
    }

    #[test]
    fn what_does_not_fit_still_gets_addresses() {
        let mut learner = Learner::default();
        learner.block(0x1000_0000_0000, 3 << 30);
        learner.block(0x1000_0000_0000 + (3 << 30), 16);
        learner.block(u64::MAX - 5, u64::MAX);
        let rebase = learner.finish();
        assert_eq!(rebase.fit, Fit::Starts);
        assert!(rebase.of(u64::MAX - 5) < 1 << 31);
        let mut learner = Learner::default();
        (0..PAGES).for_each(|page| learner.block(page * 2 * PAGE, 1));
        let rebase = learner.finish();
        assert_eq!(rebase.fit, Fit::Folded);
        assert!((0..PAGES).all(|page| rebase.of(page * 2 * PAGE) < 1 << 31));
    }

    #[test]
    fn runs_grow_together_as_a_set_of_pages_does() {
        let (mut runs, mut set, mut seed) = (Runs::default(), std::collections::BTreeSet::new(), 9u64);
        for _ in 0..500 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (from, length) = (seed >> 54, (seed >> 40) % 9 + 1);
            runs.add(from, from + length);
            set.extend(from..from + length);
            let pages: Vec<u64> = runs.0.iter().flat_map(|(&start, &end)| start..end).collect();
            assert!(pages.iter().eq(set.iter()));
        }
    }
}

//! The resident memory of a process, divided by what it is used for: its pages from a snapshot,
//! joined with the blocks that were live at that time.

mod bill;
mod blocks;
mod covered;
mod heaps;
mod size_class;
mod stored;

pub use crate::tape::Bill;
use crate::tape::{
    MAPPING_FILE, MAPPING_HEAPTAPE, MAPPING_HUGETLB, MAPPING_KERNEL, MAPPING_SHARED, MAPPING_STACK, PageKind, PageRun,
};
pub use bill::{LiveBlock, PART_NAMES, Ranges, short_name};
pub use blocks::{BlockSource, SortedBlocks};
use blocks::{Used, Window};
pub use covered::Covered;
use heaps::Heaps;
pub use heaps::{Heap, HeapKind, arena_of};
use rustc_hash::FxHashMap;
pub use size_class::{Allocator, Occupied};

/// What the blocks of a site keep in memory, and what they do not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SiteMemory {
    /// Free bytes of pages on which its blocks are. The free bytes of a page with blocks of
    /// several sites are divided by their bytes on it.
    pub pinned: u64,
    /// Number of its blocks on pages with free bytes.
    pub blocks: u64,
    /// Bytes of these blocks on such pages.
    pub live: u64,
    /// Number of pages on which there are blocks of no other site.
    pub alone_pages: u64,
    /// Bytes that its blocks occupy on such pages.
    pub alone_occupied: u64,
    /// Tick of the allocation of the oldest and the youngest of its blocks on pages with free
    /// bytes.
    pub ticks: Option<(u64, u64)>,
    /// Live bytes on pages that are not in memory and not swapped out.
    pub untouched: u64,
}

/// The resident memory by use and by site.
#[derive(Debug, Default)]
pub struct Resident {
    /// The bytes by use.
    pub bill: Bill,
    /// The heaps of the allocator, those with the most memory first. None if the blocks are not
    /// known.
    pub heaps: Vec<Heap>,
    /// The memory of each site.
    pub sites: Vec<SiteMemory>,
    /// Live bytes on pages that are not in memory and not swapped out.
    pub untouched: u64,
    /// Live bytes on pages that are swapped out, and the bytes of all such pages.
    pub swapped: (u64, u64),
    /// Bytes of pages that were read and never written: they are not resident.
    pub zero: u64,
    /// Bytes of resident pages that belong to huge pages.
    pub huge: u64,
    /// The memory that never was a block's, in ascending order.
    pub never_block: Vec<NeverBlock>,
}

/// A range of resident pages on which there are no blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeverBlock {
    /// First address of the range.
    pub start: u64,
    /// First address after the range.
    pub end: u64,
    /// Bytes of its pages that never were a block's.
    pub bytes: u64,
}

/// The blocks on one page.
#[derive(Debug, Default)]
struct PageUse {
    /// The blocks on the page.
    blocks: Vec<Used>,
    /// Live and occupied bytes, by site.
    sites: FxHashMap<u32, (u64, u64)>,
}

/// The pages and mappings of a snapshot.
#[derive(Clone, Copy, Debug)]
pub struct Pages<'a> {
    /// The runs of pages in ascending order.
    pub runs: &'a [PageRun],
    /// The mappings with their addresses.
    pub ranges: &'a Ranges,
    /// Size of a page in bytes.
    pub page: u64,
}

/// The blocks of a process, as far as they are known.
pub struct Blocks<'a> {
    /// The live blocks in their order.
    pub source: &'a mut dyn BlockSource,
    /// The allocator of the process.
    pub main: Allocator,
    /// Returns the allocator of a block.
    pub allocator: &'a dyn Fn(&LiveBlock) -> Allocator,
    /// The pages that ever held a block. Without it the blocks are not known.
    pub covered: Option<&'a Covered>,
}

impl std::fmt::Debug for Blocks<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Blocks").field("main", &self.main).finish_non_exhaustive()
    }
}

/// The state of a computation.
struct Join<'a> {
    page: u64,
    ranges: &'a Ranges,
    covered: Option<&'a Covered>,
    blocks: Window<'a>,
    /// Number of the first block that ends after the current address.
    first: usize,
    /// Number of the first block whose live bytes end after the last address of which it is known
    /// whether it was written.
    unwritten: usize,
    page_use: PageUse,
    /// Called with each page with free bytes on which there are live blocks, and the site that
    /// occupies most of it.
    held: &'a mut dyn FnMut(u64, u32),
    found: Resident,
}

/// Divides the resident memory. It reads the blocks once, in their order. `held` is called with the
/// number of each page with free bytes on which there are live blocks, and the site that occupies
/// most bytes of it.
pub fn divide(pages: Pages<'_>, blocks: Blocks<'_>, held: &mut dyn FnMut(u64, u32)) -> Resident {
    let Blocks { source, main, allocator, covered } = blocks;
    let mut heaps = covered.map(|_| Heaps::new(main, source.arenas()));
    let mut join = Join {
        page: pages.page.max(512),
        ranges: pages.ranges,
        covered,
        blocks: Window::new(source, allocator),
        first: 0,
        unwritten: 0,
        page_use: PageUse::default(),
        held,
        found: Resident::default(),
    };
    let mut untouched_from = 0;
    for run in pages.runs {
        let (start, end) = (run.first.saturating_mul(join.page), run.end().saturating_mul(join.page));
        join.advance(start);
        match run.kind {
            PageKind::Zero => {
                join.found.zero += end - start;
                continue;
            }
            PageKind::Swapped => {
                join.found.swapped.1 += end - start;
                join.untouched(untouched_from, start);
                join.found.swapped.0 += join.live_bytes(start, end);
                untouched_from = end;
                continue;
            }
            PageKind::Anonymous | PageKind::File => {}
        }
        if join.ranges.at(start).kind == MAPPING_HUGETLB {
            continue;
        }
        join.untouched(untouched_from, start);
        untouched_from = end;
        join.found.huge += if run.is_huge { end - start } else { 0 };
        let mut at = start;
        while at < end {
            join.advance(at);
            join.skip_written();
            let Some(heaps) = &mut heaps else {
                at = join.step(at, end, run.kind);
                continue;
            };
            let until = heaps.until(pages.ranges, at).min(end).max(at + join.page);
            let before = join.found.bill;
            at = join.step(at, until, run.kind);
            heaps.add(&before, &join.found.bill);
        }
    }
    join.untouched(untouched_from, u64::MAX);
    join.found.heaps = heaps.map(Heaps::finish).unwrap_or_default();
    join.found
}

/// Returns the memory of a site. Adds it, and all before it, on first use.
fn row(sites: &mut Vec<SiteMemory>, site: u32) -> &mut SiteMemory {
    let index = site as usize;
    if index >= sites.len() {
        sites.resize(index + 1, SiteMemory::default());
    }
    &mut sites[index]
}

impl Join<'_> {
    /// Finds the first block that ends after an address. Addresses ascend.
    fn advance(&mut self, at: u64) {
        while self.blocks.get(self.first).is_some_and(|one| one.end <= at) {
            self.first += 1;
            self.blocks.needed = self.first.min(self.unwritten);
        }
    }

    /// Notes that it is known of all blocks before the current address how much of them is in
    /// memory.
    fn skip_written(&mut self) {
        self.unwritten = self.unwritten.max(self.first);
        self.blocks.needed = self.first.min(self.unwritten);
    }

    /// Divides the pages from `at` on, up to `end` at most. Returns the first address that is not
    /// divided yet.
    fn step(&mut self, at: u64, end: u64, kind: PageKind) -> u64 {
        let page = self.page;
        match self.blocks.get(self.first) {
            // A block that covers whole pages.
            Some(one) if one.block.address <= at && one.live_end >= at + page => {
                let to = end.min(one.live_end / page * page);
                self.found.bill.live += to - at;
                to
            }
            // Whole pages that an allocator keeps for a block.
            Some(one) if one.live_end <= at && one.end >= at + page => {
                let to = end.min(one.end / page * page);
                self.found.bill.slack += to - at;
                to
            }
            Some(one) if one.start < at + page => {
                self.shared_page(at);
                at + page
            }
            next => {
                let limit = next.map_or(end, |one| one.start / page * page).clamp(at + page, end.max(at + page));
                self.empty_pages(at, limit, kind);
                limit
            }
        }
    }

    /// Divides a page on which there are blocks.
    fn shared_page(&mut self, at: u64) {
        let end = at + self.page;
        let inside = |from: u64, to: u64| to.min(end).saturating_sub(from.max(at));
        let (mut live, mut slack) = (0, 0);
        let mut here = std::mem::take(&mut self.page_use.blocks);
        here.clear();
        while let Some(one) = self.blocks.get(self.first + here.len()).filter(|one| one.start < end) {
            let own = inside(one.block.address, one.live_end);
            let occupied = inside(one.start, one.end).max(own);
            (live, slack) = (live + own, slack + occupied - own);
            let sums = self.page_use.sites.entry(one.block.site).or_default();
            *sums = (sums.0 + own, sums.1 + occupied);
            here.push(one);
        }
        let free = self.page.saturating_sub(live + slack);
        let bill = &mut self.found.bill;
        (bill.live, bill.slack, bill.held) = (bill.live + live, bill.slack + slack, bill.held + free);
        let is_alone = self.page_use.sites.len() == 1;
        let most = self.page_use.sites.iter().max_by_key(|(site, (_, occupied))| (*occupied, **site));
        if let Some((site, _)) = most.filter(|_| free > 0) {
            (self.held)(at / self.page, *site);
        }
        for (site, (own, occupied)) in self.page_use.sites.drain() {
            let memory = row(&mut self.found.sites, site);
            memory.pinned += free * occupied / (live + slack).max(1);
            memory.live += if free > 0 { own } else { 0 };
            if is_alone {
                memory.alone_pages += 1;
                memory.alone_occupied += occupied;
            }
        }
        if free > 0 {
            for (number, one) in (self.first..).zip(&here) {
                let memory = row(&mut self.found.sites, one.block.site);
                memory.blocks += u64::from(self.blocks.count(number));
                let tick = one.block.tick;
                memory.ticks = Some(memory.ticks.map_or((tick, tick), |(low, high)| (low.min(tick), high.max(tick))));
            }
        }
        self.page_use.blocks = here;
    }

    /// Divides pages on which there are no blocks.
    fn empty_pages(&mut self, from: u64, to: u64, kind: PageKind) {
        let (mut at, page) = (from, self.page);
        while at < to {
            let mapping = self.ranges.at(at);
            let (mapping, until) = (mapping.kind, mapping.end);
            let until = until.min(to).max(at + page) / page * page;
            let bytes = until - at;
            let free = match self.covered {
                Some(covered) => covered.count(at / page, until / page) * page,
                None => 0,
            };
            let bill = &mut self.found.bill;
            bill.free_pages += free;
            let other = match (mapping, kind) {
                (MAPPING_HEAPTAPE, _) => &mut bill.heaptape,
                (MAPPING_STACK, _) => &mut bill.stacks,
                (MAPPING_SHARED, _) => &mut bill.shared,
                (_, PageKind::File) => &mut bill.files,
                (MAPPING_FILE | MAPPING_KERNEL, _) => {
                    bill.written += bytes - free;
                    &mut bill.files
                }
                _ if self.covered.is_none() => &mut bill.undivided,
                _ => {
                    let never = NeverBlock { start: at, end: until, bytes: bytes - free };
                    match self.found.never_block.last_mut() {
                        Some(last) if last.end == at && last.bytes == last.end - last.start && free == 0 => {
                            (last.end, last.bytes) = (until, last.bytes + never.bytes);
                        }
                        _ => self.found.never_block.push(never),
                    }
                    &mut bill.never_block
                }
            };
            *other += bytes - free;
            at = until;
        }
    }

    /// Passes the live bytes of each block in a range to `add`. Ranges ascend.
    fn live_in(&mut self, from: u64, to: u64, add: &mut dyn FnMut(&mut Resident, &Used, u64)) {
        if from >= to {
            return;
        }
        while self.blocks.get(self.unwritten).is_some_and(|one| one.live_end <= from) {
            self.unwritten += 1;
            self.blocks.needed = self.first.min(self.unwritten);
        }
        while let Some(one) = self.blocks.get(self.unwritten).filter(|one| one.block.address < to) {
            let bytes = one.live_end.min(to).saturating_sub(one.block.address.max(from));
            add(&mut self.found, &one, bytes);
            // The next range has the rest of the block.
            if one.live_end >= to {
                break;
            }
            self.unwritten += 1;
            self.blocks.needed = self.first.min(self.unwritten);
        }
    }

    /// Returns the live bytes of an address range.
    fn live_bytes(&mut self, from: u64, to: u64) -> u64 {
        let mut sum = 0;
        self.live_in(from, to, &mut |_, _, bytes| sum += bytes);
        sum
    }

    /// Adds the live bytes of a range that is not in memory.
    fn untouched(&mut self, from: u64, to: u64) {
        self.live_in(from, to, &mut |found, one, bytes| {
            found.untouched += bytes;
            row(&mut found.sites, one.block.site).untouched += bytes;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tape::{MAPPING_ANONYMOUS, MAPPING_BRK, Mapping};
    use rustc_hash::FxHashSet;

    const PAGE: u64 = 4096;

    fn run(first: u64, pages: u64, kind: PageKind) -> PageRun {
        PageRun { first, pages, kind, is_huge: false }
    }

    fn block(address: u64, size: u64, site: u32) -> LiveBlock {
        LiveBlock { address, size, site, tick: address }
    }

    /// A source that has one block at a time.
    struct OneByOne {
        blocks: std::vec::IntoIter<LiveBlock>,
        arenas: FxHashSet<u64>,
    }

    impl BlockSource for OneByOne {
        fn arenas(&self) -> FxHashSet<u64> {
            self.arenas.clone()
        }

        fn next(&mut self, blocks: &mut Vec<LiveBlock>) -> bool {
            // The window keeps a few blocks only.
            assert!(blocks.len() < 8, "{blocks:?}");
            blocks.extend(self.blocks.next());
            true
        }
    }

    /// Divides, and checks that a source with one block at a time has the same result.
    fn divided(
        runs: &[PageRun],
        ranges: &Ranges,
        mut blocks: Vec<LiveBlock>,
        allocator: Allocator,
        covered: Option<&Covered>,
    ) -> Resident {
        let pages = Pages { runs, ranges, page: PAGE };
        let divide = |source: &mut dyn BlockSource| {
            let blocks = Blocks { source, main: allocator, allocator: &|_| allocator, covered };
            let mut held = Vec::new();
            (divide(pages, blocks, &mut |page, site| held.push((page, site))), held)
        };
        blocks.sort_by_key(|block| block.address);
        let (at_once, held) = divide(&mut SortedBlocks::new(blocks.clone()));
        let arenas = blocks.iter().filter_map(arena_of).collect();
        let one_by_one = divide(&mut OneByOne { blocks: blocks.into_iter(), arenas });
        assert_eq!(format!("{:?}", (&at_once, &held)), format!("{:?}", (&one_by_one.0, &one_by_one.1)));
        at_once
    }

    #[test]
    fn each_byte_of_resident_memory_is_counted_once() {
        let mappings = [
            Mapping { gap: 0x10 * PAGE, length: 64 * PAGE, kind: MAPPING_ANONYMOUS, name: 0 },
            Mapping { gap: 0, length: 4 * PAGE, kind: MAPPING_FILE, name: 0 },
            Mapping { gap: 0, length: 2 * PAGE, kind: MAPPING_HEAPTAPE, name: 0 },
            Mapping { gap: 0, length: 2 * PAGE, kind: MAPPING_STACK, name: 0 },
        ];
        let anonymous = PageKind::Anonymous;
        let runs = [
            run(0x10, 8, anonymous),
            run(0x18, 1, PageKind::Zero),
            run(0x19, 1, PageKind::Swapped),
            run(0x20, 4, anonymous),
            run(0x50, 1, PageKind::File),
            run(0x51, 1, anonymous),
            run(0x54, 2, PageKind::File),
            run(0x56, 1, anonymous),
        ];
        let blocks = vec![
            // Alone on its page.
            block(0x10 * PAGE + 16, 100, 1),
            // Two on one page, of which the second covers two and a half further ones.
            block(0x11 * PAGE, 1000, 1),
            block(0x11 * PAGE + 2048, 2048 + 2 * PAGE + 2048, 2),
            // Half of it is not in memory, one page of it is swapped out.
            block(0x19 * PAGE, 3 * PAGE, 3),
        ];
        let mut covered = Covered::new(&runs, PAGE, 100);
        covered.add(0x20 * PAGE, 2 * PAGE);
        let found = divided(&runs, &Ranges::of(&mappings), blocks, Allocator::Unknown, Some(&covered));
        let bill = found.bill;
        assert_eq!(bill.live, 100 + 1000 + 2048 + 2 * PAGE + 2048);
        assert_eq!(bill.slack, 0);
        assert_eq!(bill.held, (PAGE - 100) + (PAGE - 1000 - 2048) + 2048);
        assert_eq!(bill.free_pages, 2 * PAGE);
        assert_eq!(bill.never_block, 3 * PAGE + 2 * PAGE);
        assert_eq!((bill.files, bill.heaptape, bill.stacks), (2 * PAGE, 2 * PAGE, PAGE));
        assert_eq!(bill.sum(), (8 + 4 + 2 + 2 + 1) * PAGE, "all but the pages that are not resident");
        assert_eq!((found.zero, found.swapped, found.untouched), (PAGE, (PAGE, PAGE), 2 * PAGE));
        assert_eq!(found.sites[3].untouched, 2 * PAGE);
        assert_eq!((found.sites[1].blocks, found.sites[1].live, found.sites[1].alone_pages), (2, 1100, 1));
        let shared = PAGE - 1000 - 2048;
        assert_eq!(found.sites[1].pinned, PAGE - 100 + shared * 1000 / 3048);
        assert_eq!(found.sites[1].ticks, Some((0x10 * PAGE + 16, 0x11 * PAGE)));
    }

    #[test]
    fn slack_ends_at_the_next_block() {
        let runs = [run(1, 1, PageKind::Anonymous)];
        let blocks = vec![block(PAGE + 16, 24, 1), block(PAGE + 48, 1, 2), block(PAGE + 80, 1, 1)];
        let covered = Covered::new(&runs, PAGE, 1);
        let found = divided(&runs, &Ranges::default(), blocks, Allocator::Glibc, Some(&covered));
        assert_eq!((found.bill.live, found.bill.slack), (26, 3 * 32 - 26));
        assert_eq!(found.bill.sum(), PAGE);
    }

    #[test]
    fn memory_of_unknown_blocks_is_not_divided() {
        let runs = [run(1, 3, PageKind::Anonymous)];
        let found = divided(&runs, &Ranges::default(), Vec::new(), Allocator::Glibc, None);
        assert_eq!((found.bill.undivided, found.bill.sum()), (3 * PAGE, 3 * PAGE));
    }

    /// Two arenas whose mappings are one, the main one, and a block with a mapping of its own.
    #[test]
    fn memory_is_divided_by_arena() {
        const ARENA: u64 = 64 << 20;
        let run = |first, pages| run(first, pages, PageKind::Anonymous);
        let block = |address, size| LiveBlock { address, size, site: 1, tick: address };
        let mapping = |gap, length, kind| Mapping { gap, length, kind, name: 0 };
        let mappings = [
            mapping(PAGE, 4 * PAGE, MAPPING_BRK),
            mapping(ARENA - 5 * PAGE, 2 * ARENA, MAPPING_ANONYMOUS),
            mapping(PAGE, 100 * PAGE, MAPPING_ANONYMOUS),
        ];
        let runs = [run(2, 2), run(2 * ARENA / PAGE - 1, 3), run(3 * ARENA / PAGE + 1, 100)];
        let mapped = 3 * ARENA + PAGE + 16;
        let blocks = vec![
            block(2 * PAGE + 16, 24),
            block(2 * ARENA - PAGE + 16, 24),
            block(2 * ARENA + 16, 2 * PAGE),
            block(mapped, 98 * PAGE),
        ];
        let covered = Covered::new(&runs, PAGE, 100);
        let ranges = Ranges::of(&mappings);
        let found = divided(&runs, &ranges, blocks, Allocator::Glibc, Some(&covered));
        let heaps: Vec<(HeapKind, u64, u64, u64)> =
            found.heaps.iter().map(|heap| (heap.kind, heap.address, heap.bill.live, heap.bill.sum())).collect();
        assert_eq!(
            heaps,
            [
                (HeapKind::Mapped, 0, 98 * PAGE, 99 * PAGE),
                (HeapKind::Main, PAGE, 24, 2 * PAGE),
                (HeapKind::Arena, 2 * ARENA, 2 * PAGE - 16, 2 * PAGE),
                (HeapKind::Arena, ARENA, 24, PAGE),
            ]
        );
        // The page after the block with a mapping of its own is of no heap.
        assert_eq!(heaps.iter().map(|(.., sum)| sum).sum::<u64>() + PAGE, found.bill.sum());
    }
}

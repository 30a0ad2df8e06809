//! The profile of a process: for each site what it allocated, freed, holds now and held at the
//! peak; for each size how often it was allocated; the totals.
//!
//! The share of each site at the peak is found in O(1) per event. The process has a peak number
//! that rises whenever its live bytes exceed their maximum. A site that is about to change and has
//! not changed since then still holds what it held at the peak, and stores it with the peak's
//! number. An event touches one cache line of its site, as long as the sizes of the site are of one
//! class.

use formats::mptl::{self, Bins};
use formats::tape::{Site, SiteSums, Totals};

/// Upper bounds of the first three size classes, inclusive: mpatrol's defaults.
pub const BOUNDS: [u64; 3] = [32, 256, 2048];
/// Number of bins of exact sizes. The last one counts all larger sizes too.
pub const BINS: usize = 1024;
/// Number of size classes: the four of MPTL, and one for size 0, which MPTL counts as one small
/// byte.
const CLASSES: usize = 5;
/// Class of size 0.
const ZERO: usize = 4;

/// Numbers of blocks and bytes that were allocated and freed. Aligned, so that those of a class are
/// in one cache line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(align(32))]
pub struct Sums {
    /// Number of blocks allocated.
    pub allocs: u64,
    /// Number of bytes allocated.
    pub bytes: u64,
    /// Number of these blocks that were freed.
    pub frees: u64,
    pub freed_bytes: u64,
}

/// The amount that an event counts for: one block and its bytes, or, where blocks are sampled, all
/// that the block represents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Number of blocks represented.
    pub blocks: u64,
    /// Number of bytes represented.
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct CountedBlock {
    /// Site that allocated the block.
    pub site: u32,
    /// Size of the block in bytes.
    pub size: u64,
    pub amount: Amount,
}

impl CountedBlock {
    /// A block that represents itself alone.
    #[inline(always)]
    pub(crate) const fn whole(site: u32, size: u64) -> CountedBlock {
        CountedBlock { site, size, amount: Amount { blocks: 1, bytes: size } }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SiteLive {
    pub site: u32,
    pub blocks: u64,
    pub bytes: u64,
}

impl Sums {
    /// Adds the counts of `other`.
    pub fn add(&mut self, other: Sums) {
        self.allocs += other.allocs;
        self.bytes += other.bytes;
        self.frees += other.frees;
        self.freed_bytes += other.freed_bytes;
    }
}

/// The counters of a site that an event changes: one cache line.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct SiteCounters {
    live_bytes: u64,
    live_blocks: u64,
    /// Live bytes at the peak with number `peak_number`.
    peak_bytes: u64,
    peak_blocks: u64,
    peak_number: u64,
    allocs: u64,
    bytes: u64,
    /// Size class of the first block. Blocks of other classes are counted in `other_classes[row]`.
    class: u8,
    /// Row of `other_classes`; 0 if all blocks are of one class.
    row: u32,
}

const _: () = assert!(size_of::<SiteCounters>() == 64);

#[derive(Debug)]
pub struct Profile {
    sites: Vec<SiteCounters>,
    other_classes: Vec<[Sums; CLASSES]>,
    /// Number of the peak, which rises with each new one.
    peak: u64,
    totals: Totals,
    /// The maximum of the live bytes since this was last set.
    pub most_bytes: u64,
    /// How often each size was allocated and freed.
    bins: Bins,
}

impl Default for Profile {
    fn default() -> Self {
        Profile {
            sites: vec![SiteCounters::default()],
            other_classes: vec![[Sums::default(); CLASSES]],
            peak: 0,
            totals: Totals::default(),
            most_bytes: 0,
            bins: Bins::new(BINS),
        }
    }
}

#[inline(always)]
fn class(size: u64) -> usize {
    let [small, medium, large] = BOUNDS;
    let class = if size > large { 3 } else { usize::from(size > small) + usize::from(size > medium) };
    if size == 0 { ZERO } else { class }
}

impl Profile {
    /// Ensures capacity for sites up to `last`.
    pub fn grow(&mut self, last: u32) {
        if last as usize >= self.sites.len() {
            self.sites.resize(last as usize + 1, SiteCounters::default());
        }
    }

    #[inline(always)]
    pub fn prefetch(&self, site: u32) {
        if let Some(counters) = self.sites.get(site as usize) {
            crate::os::processor::prefetch(counters);
        }
    }

    #[inline(always)]
    fn touch(&mut self, site: u32) -> &mut SiteCounters {
        let counters = &mut self.sites[site as usize];
        if counters.peak_number != self.peak {
            (counters.peak_bytes, counters.peak_blocks, counters.peak_number) =
                (counters.live_bytes, counters.live_blocks, self.peak);
        }
        counters
    }

    /// Returns the sums of a class that is not the first one of the site.
    #[inline(always)]
    fn other(&mut self, site: u32, class: usize) -> &mut Sums {
        let mut row = self.sites[site as usize].row;
        if row == 0 {
            row = self.add_row(site);
        }
        &mut self.other_classes[row as usize][class]
    }

    #[cold]
    #[inline(never)]
    fn add_row(&mut self, site: u32) -> u32 {
        let row = self.other_classes.len() as u32;
        self.other_classes.push([Sums::default(); CLASSES]);
        self.sites[site as usize].row = row;
        row
    }

    /// Adds an allocation to the site, the bins and the totals.
    #[inline(always)]
    fn add_block(&mut self, CountedBlock { site, size, amount }: CountedBlock, tick: u64) {
        let class = class(size);
        let counters = self.touch(site);
        if counters.allocs == 0 {
            counters.class = class as u8;
        }
        counters.allocs += amount.blocks;
        counters.bytes += amount.bytes;
        counters.live_bytes += amount.bytes;
        counters.live_blocks += amount.blocks;
        if usize::from(counters.class) != class {
            let sums = self.other(site, class);
            sums.allocs += amount.blocks;
            sums.bytes += amount.bytes;
        }
        self.bins.alloc_many(size.max(1), amount.blocks);
        let totals = &mut self.totals;
        totals.bytes_allocated += amount.bytes;
        totals.live_bytes += amount.bytes;
        totals.live_blocks += amount.blocks;
        totals.peak_blocks = totals.peak_blocks.max(totals.live_blocks);
        self.most_bytes = self.most_bytes.max(totals.live_bytes);
        if totals.live_bytes > totals.peak_bytes {
            (totals.peak_bytes, totals.peak_tick) = (totals.live_bytes, tick);
            self.peak += 1;
        }
    }

    /// Removes a block from the site, the bins and the totals.
    #[inline(always)]
    fn remove_block(&mut self, CountedBlock { site, size, amount }: CountedBlock) {
        let class = class(size);
        let counters = self.touch(site);
        counters.live_bytes -= amount.bytes;
        counters.live_blocks -= amount.blocks;
        if usize::from(counters.class) != class {
            let sums = self.other(site, class);
            sums.frees += amount.blocks;
            sums.freed_bytes += amount.bytes;
        }
        self.bins.free_many(size.max(1), amount.blocks);
        self.totals.live_bytes -= amount.bytes;
        self.totals.live_blocks -= amount.blocks;
    }

    #[inline(always)]
    pub fn alloc(&mut self, block: CountedBlock, tick: u64) {
        self.totals.allocs += block.amount.blocks;
        self.add_block(block, tick);
    }

    /// Counts the free of a block. Its site is the one that allocated it.
    #[inline(always)]
    pub fn free(&mut self, block: CountedBlock) {
        self.totals.frees += block.amount.blocks;
        self.remove_block(block);
    }

    /// Counts a resize: a free of the old block and an allocation of the new one.
    #[inline(always)]
    pub fn resize(&mut self, old: CountedBlock, new: CountedBlock, tick: u64) {
        self.totals.resizes += new.amount.blocks;
        self.remove_block(old);
        self.add_block(new, tick);
    }

    /// Counts the resize of an inherited or unknown block: the new one is this process's.
    pub(crate) fn resize_unknown(&mut self, new: CountedBlock, tick: u64) {
        self.totals.resizes += new.amount.blocks;
        self.add_block(new, tick);
    }

    /// Counts the free of an inherited or unknown block.
    pub(crate) fn free_unknown(&mut self) {
        self.totals.frees += 1;
    }

    /// Counts a free that was not seen.
    pub(crate) fn free_implied(&mut self, block: CountedBlock) {
        self.totals.implied_frees += block.amount.blocks;
        self.remove_block(block);
    }

    /// How often each size was allocated and freed.
    pub fn bins(&self) -> &Bins {
        &self.bins
    }

    /// Returns the totals so far.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Returns a row for each site with allocations.
    pub fn site_sums(&self) -> Vec<SiteSums> {
        let rows = self.sites.iter().enumerate().filter(|(_, counters)| counters.allocs > 0);
        rows.map(|(site, counters)| {
            let (peak_bytes, peak_blocks) = self.at_peak(counters);
            SiteSums {
                site: site as u32,
                allocs: counters.allocs,
                bytes: counters.bytes,
                frees: counters.allocs - counters.live_blocks,
                freed_bytes: counters.bytes - counters.live_bytes,
                peak_blocks,
                peak_bytes,
            }
        })
        .collect()
    }

    /// Returns what lives of each site with live blocks, in the order of the sites.
    pub fn live(&self) -> impl Iterator<Item = SiteLive> {
        let live = self.sites.iter().enumerate().filter(|(_, counters)| counters.live_blocks > 0);
        live.map(|(site, counters)| SiteLive {
            site: site as u32,
            blocks: counters.live_blocks,
            bytes: counters.live_bytes,
        })
    }

    fn at_peak(&self, counters: &SiteCounters) -> (u64, u64) {
        if counters.peak_number == self.peak {
            (counters.peak_bytes, counters.peak_blocks)
        } else {
            (counters.live_bytes, counters.live_blocks)
        }
    }

    /// Returns the sums of a site in the four classes of MPTL, with size 0 counted as one byte;
    /// `None` when it allocated nothing.
    pub fn classes(&self, site: u32) -> Option<[Sums; 4]> {
        let counters = self.sites.get(site as usize).filter(|counters| counters.allocs > 0)?;
        let mut classes = self.other_classes[counters.row as usize];
        let mut first = Sums {
            allocs: counters.allocs,
            bytes: counters.bytes,
            frees: counters.allocs - counters.live_blocks,
            freed_bytes: counters.bytes - counters.live_bytes,
        };
        for other in &classes {
            first.allocs -= other.allocs;
            first.bytes -= other.bytes;
            first.frees -= other.frees;
            first.freed_bytes -= other.freed_bytes;
        }
        classes[usize::from(counters.class)].add(first);
        let zero = classes[ZERO];
        classes[0].add(Sums { bytes: zero.allocs, freed_bytes: zero.frees, ..zero });
        let [small, medium, large, extra, _] = classes;
        Some([small, medium, large, extra])
    }

    /// Returns the profile as a file. The sites are those of the tape, their names empty: readers
    /// find the names.
    pub fn to_mptl(&self, sites: &[Site]) -> Vec<u8> {
        let profile = mptl::Profile { bounds: BOUNDS, bins: self.bins.clone(), ..mptl::Profile::default() };
        let site = |number: usize| sites.get(number - 1).map_or((0, 0), |site| (site.parent.into(), site.address));
        let sums = |number: usize| {
            self.classes(number as u32).map(|classes| {
                let of = |value: fn(&Sums) -> u64| classes.each_ref().map(value);
                let allocated = mptl::Sums { counts: of(|sums| sums.allocs), totals: of(|sums| sums.bytes) };
                let freed = mptl::Sums { counts: of(|sums| sums.frees), totals: of(|sums| sums.freed_bytes) };
                (allocated, freed)
            })
        };
        let mut out = Vec::new();
        profile.write_with_sites(sites.len(), site, sums, &mut out);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The live blocks as a list, and those at the peak.
    #[derive(Default)]
    struct Model {
        live: Vec<(u32, u64)>,
        peak: u64,
        at_peak: Vec<(u32, u64)>,
    }

    impl Model {
        fn update_peak(&mut self) {
            let bytes = self.live.iter().map(|(_, size)| size).sum();
            if bytes > self.peak {
                (self.peak, self.at_peak) = (bytes, self.live.clone());
            }
        }
    }

    #[test]
    fn share_at_peak_and_classes_equal_brute_force() {
        for seed in 1..40u64 {
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut roll = |sides: u64| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 11) % sides
            };
            let (mut profile, mut model) = (Profile::default(), Model::default());
            let mut taken = Vec::new();
            profile.grow(9);
            for tick in 0..600 {
                let (site, size) = (roll(10) as u32, [0, 1, 32, 33, 256, 257, 2048, 2049, 5000][roll(9) as usize]);
                match roll(8) {
                    0..4 => {
                        profile.alloc(CountedBlock::whole(site, size), tick);
                        model.live.push((site, size));
                        taken.push((site, size));
                    }
                    4..7 if !model.live.is_empty() => {
                        let at = roll(model.live.len() as u64) as usize;
                        let (site, size) = model.live.swap_remove(at);
                        profile.free(CountedBlock::whole(site, size));
                    }
                    _ if !model.live.is_empty() => {
                        let at = roll(model.live.len() as u64) as usize;
                        let (old_site, old_size) = model.live[at];
                        profile.resize(CountedBlock::whole(old_site, old_size), CountedBlock::whole(site, size), tick);
                        model.live[at] = (site, size);
                        taken.push((site, size));
                    }
                    _ => {}
                }
                model.update_peak();
                assert_eq!(profile.totals().peak_bytes, model.peak);
            }
            assert_eq!(profile.totals().live_bytes, model.live.iter().map(|(_, size)| size).sum::<u64>());
            for row in profile.site_sums() {
                let of = |list: &[(u32, u64)]| {
                    let sizes = list.iter().filter(|(site, _)| *site == row.site).map(|(_, size)| *size);
                    (sizes.clone().count() as u64, sizes.sum::<u64>())
                };
                assert_eq!((row.peak_blocks, row.peak_bytes), of(&model.at_peak), "seed {seed} site {}", row.site);
                assert_eq!((row.allocs, row.bytes), of(&taken));
                let live = of(&model.live);
                assert_eq!((row.allocs - row.frees, row.bytes - row.freed_bytes), live);
                let classes = profile.classes(row.site).unwrap_or_default();
                for (number, sums) in classes.iter().enumerate() {
                    let mine = |list: &[(u32, u64)]| {
                        let here = |&&(site, size): &&(u32, u64)| site == row.site && class(size.max(1)) == number;
                        let sizes = list.iter().filter(here).map(|(_, size)| (*size).max(1));
                        (sizes.clone().count() as u64, sizes.sum::<u64>())
                    };
                    assert_eq!((sums.allocs, sums.bytes), mine(&taken));
                    assert_eq!((sums.allocs - sums.frees, sums.bytes - sums.freed_bytes), mine(&model.live));
                }
            }
            let bins: u64 = profile.bins.allocated.iter().sum();
            assert_eq!(bins, taken.len() as u64);
        }
    }
}

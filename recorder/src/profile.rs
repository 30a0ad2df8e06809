//! Sums: for each site what it allocated, freed, holds now and held at the peak; for each size how
//! often; for the image its totals.
//!
//! Share at peak in O(1) an event: the image has a peak number that rises whenever its live bytes
//! pass their maximum. A site that is about to change and has not changed since that moment still
//! holds what it held then, and notes it down with the peak's number. An event touches one cache
//! line of its site, as long as the site's sizes are of one class.

use formats::mptl::{self, Bins, Builder};
use formats::tape::{Site, SiteSums, Totals};

/// Upper bounds of the first three size classes, inclusive; as mpatrol's defaults.
pub const BOUNDS: [u64; 3] = [32, 256, 2048];
/// Bins of exact sizes; the last one counts all larger ones too.
pub const BINS: usize = 1024;
/// Classes: the four of MPTL, and size 0 apart, which MPTL counts as one small byte.
const CLASSES: usize = 5;
const ZERO: usize = 4;

/// Counts and bytes, allocated and freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Blocks allocated.
    pub allocs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Of these, freed.
    pub frees: u64,
    /// Their bytes.
    pub freed_bytes: u64,
}

/// What an event counts for: one block and its bytes, or, where blocks are sampled, what it stands
/// for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Blocks.
    pub blocks: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Sums {
    pub(crate) fn add(&mut self, other: Sums) {
        self.allocs += other.allocs;
        self.bytes += other.bytes;
        self.frees += other.frees;
        self.freed_bytes += other.freed_bytes;
    }
}

/// What an event of a site touches.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Hot {
    live_bytes: u64,
    live_blocks: u64,
    /// What was live at peak number `tag`.
    peak_bytes: u64,
    peak_blocks: u64,
    tag: u64,
    allocs: u64,
    bytes: u64,
    /// Size class of the first block; others are counted in `others[row]`.
    class: u8,
    /// 0: there are none.
    row: u32,
}

const _: () = assert!(size_of::<Hot>() == 64);

/// The sums of one process image.
#[derive(Debug)]
pub struct Profile {
    sites: Vec<Hot>,
    others: Vec<[Sums; CLASSES]>,
    /// Rises with each new peak; sites start behind it.
    peak: u64,
    totals: Totals,
    /// The most live bytes since this was last set.
    pub most_bytes: u64,
    /// How often each size was allocated and freed.
    bins: Bins,
}

impl Default for Profile {
    fn default() -> Self {
        let (sites, others) = (vec![Hot::default()], vec![[Sums::default(); CLASSES]]);
        let totals = Totals::default();
        Profile { sites, others, peak: 0, totals, most_bytes: 0, bins: Bins::new(BINS) }
    }
}

#[inline(always)]
fn class(size: u64) -> usize {
    if size == 0 { ZERO } else { BOUNDS.iter().map(|bound| usize::from(size > *bound)).sum() }
}

impl Profile {
    /// Makes room for sites up to `last`.
    pub fn grow(&mut self, last: u32) {
        if last as usize >= self.sites.len() {
            self.sites.resize(last as usize + 1, Hot::default());
        }
    }

    /// Asks for a site's line.
    #[inline(always)]
    pub fn prefetch(&self, site: u32) {
        if let Some(hot) = self.sites.get(site as usize) {
            crate::sys::prefetch(hot);
        }
    }

    #[inline(always)]
    fn touch(&mut self, site: u32) -> &mut Hot {
        let hot = &mut self.sites[site as usize];
        if hot.tag != self.peak {
            (hot.peak_bytes, hot.peak_blocks, hot.tag) = (hot.live_bytes, hot.live_blocks, self.peak);
        }
        hot
    }

    /// The sums of a class that is not the site's first one.
    #[cold]
    fn other(&mut self, site: u32, class: usize) -> &mut Sums {
        let hot = &mut self.sites[site as usize];
        if hot.row == 0 {
            hot.row = self.others.len() as u32;
            self.others.push([Sums::default(); CLASSES]);
        }
        &mut self.others[hot.row as usize][class]
    }

    #[inline(always)]
    fn take(&mut self, site: u32, size: u64, amount: Amount, tick: u64) {
        let class = class(size);
        let hot = self.touch(site);
        if hot.allocs == 0 {
            hot.class = class as u8;
        }
        hot.allocs += amount.blocks;
        hot.bytes += amount.bytes;
        hot.live_bytes += amount.bytes;
        hot.live_blocks += amount.blocks;
        if usize::from(hot.class) != class {
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

    #[inline(always)]
    fn give(&mut self, site: u32, size: u64, amount: Amount) {
        let class = class(size);
        let hot = self.touch(site);
        hot.live_bytes -= amount.bytes;
        hot.live_blocks -= amount.blocks;
        if usize::from(hot.class) != class {
            let sums = self.other(site, class);
            sums.frees += amount.blocks;
            sums.freed_bytes += amount.bytes;
        }
        self.bins.free_many(size.max(1), amount.blocks);
        self.totals.live_bytes -= amount.bytes;
        self.totals.live_blocks -= amount.blocks;
    }

    /// A block was allocated.
    #[inline(always)]
    pub fn alloc(&mut self, site: u32, size: u64, tick: u64) {
        self.alloc_as(site, size, Amount { blocks: 1, bytes: size }, tick);
    }

    /// A block allocated at `site` was freed.
    #[inline(always)]
    pub fn free(&mut self, site: u32, size: u64) {
        self.free_as(site, size, Amount { blocks: 1, bytes: size });
    }

    /// A block was allocated that stands for others too.
    #[inline(always)]
    pub fn alloc_as(&mut self, site: u32, size: u64, amount: Amount, tick: u64) {
        self.totals.allocs += amount.blocks;
        self.take(site, size, amount, tick);
    }

    /// Such a block was freed.
    #[inline(always)]
    pub fn free_as(&mut self, site: u32, size: u64, amount: Amount) {
        self.totals.frees += amount.blocks;
        self.give(site, size, amount);
    }

    /// Such a block became another such.
    #[inline(always)]
    pub fn resize_as(&mut self, old: (u32, u64, Amount), site: u32, size: u64, amount: Amount, tick: u64) {
        self.totals.resizes += amount.blocks;
        self.give(old.0, old.1, old.2);
        self.take(site, size, amount, tick);
    }

    /// A block became another: a free of the old one and an allocation of the new one.
    #[inline(always)]
    pub fn resize(&mut self, old: (u32, u64), site: u32, size: u64, tick: u64) {
        let one = |size| Amount { blocks: 1, bytes: size };
        self.resize_as((old.0, old.1, one(old.1)), site, size, one(size), tick);
    }

    /// A block that was not our own was resized: the new one is.
    pub fn resize_foreign(&mut self, site: u32, size: u64, amount: Amount, tick: u64) {
        self.totals.resizes += amount.blocks;
        self.take(site, size, amount, tick);
    }

    /// A block that is not our own was freed.
    pub fn free_foreign(&mut self) {
        self.totals.frees += 1;
    }

    /// A block must have been freed unseen.
    pub fn free_implied(&mut self, site: u32, size: u64, amount: Amount) {
        self.totals.implied_frees += amount.blocks;
        self.give(site, size, amount);
    }

    /// How often each size was allocated and freed.
    pub fn bins(&self) -> &Bins {
        &self.bins
    }

    /// The totals; fields that are not sums of own blocks may be set by the caller.
    pub fn totals_mut(&mut self) -> &mut Totals {
        &mut self.totals
    }

    /// The totals so far.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// A row for each site with allocations.
    pub fn site_sums(&self) -> Vec<SiteSums> {
        let rows = self.sites.iter().enumerate().filter(|(_, hot)| hot.allocs > 0);
        rows.map(|(site, hot)| {
            let (peak_bytes, peak_blocks) = self.at_peak(hot);
            SiteSums {
                site: site as u32,
                allocs: hot.allocs,
                bytes: hot.bytes,
                frees: hot.allocs - hot.live_blocks,
                freed_bytes: hot.bytes - hot.live_bytes,
                peak_blocks,
                peak_bytes,
            }
        })
        .collect()
    }

    /// What lives: site, blocks, bytes; in the order of the sites.
    pub fn live(&self) -> impl Iterator<Item = (u32, u64, u64)> {
        let live = self.sites.iter().enumerate().filter(|(_, hot)| hot.live_blocks > 0);
        live.map(|(site, hot)| (site as u32, hot.live_blocks, hot.live_bytes))
    }

    fn at_peak(&self, hot: &Hot) -> (u64, u64) {
        if hot.tag == self.peak { (hot.peak_bytes, hot.peak_blocks) } else { (hot.live_bytes, hot.live_blocks) }
    }

    /// A site's sums in the four classes of MPTL, size 0 counted as one byte; `None` when it
    /// allocated nothing.
    pub fn classes(&self, site: u32) -> Option<[Sums; 4]> {
        let hot = self.sites.get(site as usize).filter(|hot| hot.allocs > 0)?;
        let mut classes = self.others[hot.row as usize];
        let mut first = Sums {
            allocs: hot.allocs,
            bytes: hot.bytes,
            frees: hot.allocs - hot.live_blocks,
            freed_bytes: hot.bytes - hot.live_bytes,
        };
        for other in &classes {
            first.allocs -= other.allocs;
            first.bytes -= other.bytes;
            first.frees -= other.frees;
            first.freed_bytes -= other.freed_bytes;
        }
        classes[usize::from(hot.class)].add(first);
        let zero = classes[ZERO];
        classes[0].add(Sums { bytes: zero.allocs, freed_bytes: zero.frees, ..zero });
        let [small, medium, large, extra, _] = classes;
        Some([small, medium, large, extra])
    }

    /// The profile as a file: the sites are those of the tape, their names empty (the reading side
    /// knows how to find names).
    pub fn to_mptl(&self, sites: &[Site]) -> Vec<u8> {
        let mut builder = Builder::new(BOUNDS, self.bins.clone());
        for site in sites {
            let number = builder.site(site.parent.into(), site.address, None);
            if let Some(classes) = self.classes(number as u32) {
                let of = |value: fn(&Sums) -> u64| [0, 1, 2, 3].map(|class: usize| value(&classes[class]));
                let allocated = mptl::Sums { counts: of(|sums| sums.allocs), totals: of(|sums| sums.bytes) };
                let freed = mptl::Sums { counts: of(|sums| sums.frees), totals: of(|sums| sums.freed_bytes) };
                builder.sums(number, allocated, freed);
            }
        }
        let mut out = Vec::new();
        builder.build().write(&mut out);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every site's live blocks as a list, and what each held when the image held most.
    #[derive(Default)]
    struct Model {
        live: Vec<(u32, u64)>,
        peak: u64,
        at_peak: Vec<(u32, u64)>,
    }

    impl Model {
        fn judge(&mut self) {
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
                        profile.alloc(site, size, tick);
                        model.live.push((site, size));
                        taken.push((site, size));
                    }
                    4..7 if !model.live.is_empty() => {
                        let at = roll(model.live.len() as u64) as usize;
                        let (site, size) = model.live.swap_remove(at);
                        profile.free(site, size);
                    }
                    _ if !model.live.is_empty() => {
                        let at = roll(model.live.len() as u64) as usize;
                        profile.resize(model.live[at], site, size, tick);
                        model.live[at] = (site, size);
                        taken.push((site, size));
                    }
                    _ => {}
                }
                model.judge();
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

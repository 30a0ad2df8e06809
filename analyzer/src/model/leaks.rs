//! What is alive at the end, by site, with the evidence that a verdict needs: how the site's live
//! bytes went over the run, when the survivors were born, how long their freed siblings lived and
//! where those were freed.

use super::live_set::{Block, LiveSet};
use super::row;
use crate::event::{Event, Kind, Position, Span};
use crate::replay::Model;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;

/// Slices of the run in which live bytes and births are kept.
pub const SLICES: usize = 16;
/// Example blocks and threads kept of each site.
pub const EXAMPLES: usize = 4;

/// Classes of lifetimes: class n holds what lived less than 2^(9 + 3n) units and is in no class
/// before; the last the rest.
pub const LIFETIME_CLASSES: usize = 16;

/// Upper bound of a class of lifetimes, in the run's unit.
pub const fn lifetime_bound(class: usize) -> u64 {
    if class + 1 < LIFETIME_CLASSES { 1 << (9 + 3 * class) } else { u64::MAX }
}

/// How a run is measured: in ticks, or in events where these say more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Whether in ticks.
    pub by_tick: bool,
    /// The run's start.
    pub start: u64,
    /// Where the last slice ends. What comes later (taking down what was built up) counts to the
    /// last slice.
    pub end: u64,
}

/// A site over the run.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Allocations and resizes here.
    pub allocs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Of these, freed or resized away.
    pub frees: u64,
    /// Live blocks now.
    pub live_blocks: u64,
    /// Live bytes now.
    pub live_bytes: u64,
    /// The most live bytes ever.
    pub peak_bytes: u64,
    /// The most live blocks ever.
    pub peak_blocks: u64,
    /// The largest block ever.
    pub largest: u64,
    /// Blocks that were freed (not resized away).
    pub freed: u64,
    /// Sum of their lifetimes, in the run's unit.
    pub lifetime_sum: u64,
    /// The longest of these.
    pub longest_lifetime: u64,
    /// Of the freed ones, those freed right after a larger one was allocated here: a container that
    /// took a larger place.
    pub replaced: u64,
    /// Of the allocations, those that were resized away.
    pub resized: u64,
    /// Live blocks in the middle of the run.
    pub half_blocks: u64,
    /// Blocks that were freed, by how long they lived.
    pub lifetimes: [u32; LIFETIME_CLASSES],
    /// Live bytes at the end of each slice.
    pub series: [u64; SLICES],
}

/// The survivors of a site.
#[derive(Clone, Debug, Default)]
pub struct Survivors {
    /// How many.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Birth of the oldest: tick and number.
    pub first: (u64, u64),
    /// Birth of the youngest.
    pub last: (u64, u64),
    /// The smallest.
    pub smallest: u64,
    /// The largest.
    pub largest: u64,
    /// Survivors that were resized at least once.
    pub resized: u64,
    /// Births in each slice.
    pub allocs_by_slice: [u64; SLICES],
    /// The first threads met, by number.
    pub threads: Vec<u32>,
    /// The oldest: birth number, address, size.
    pub examples: Vec<(u64, u64, u64)>,
    /// Inherited from the parent by fork.
    pub inherited: bool,
}

/// What changes of a site with its events: an allocation touches the first of two lines of the
/// processor's cache, a free both. Where sites are many each is a miss.
#[derive(Clone, Debug, Default)]
#[repr(C, align(128))]
struct Row {
    allocs: u64,
    bytes: u64,
    live_bytes: u64,
    peak_bytes: u64,
    largest: u64,
    /// Size of the latest allocation here, until something of the site is freed.
    newest: u64,
    live_blocks: u32,
    peak_blocks: u32,
    /// Blocks whose end was not seen.
    implied: u32,
    /// Slices that are in the series.
    filled: u8,
    lifetime_sum: u64,
    longest_lifetime: u64,
    replaced: u64,
    resized: u64,
    /// Modulo 65,536; see [`Leaks::carried`].
    lifetimes: [u16; LIFETIME_CLASSES],
}

/// What changes of a site with the slices of the run alone.
#[derive(Clone, Debug, Default)]
struct Series {
    live_bytes: [u64; SLICES],
    half_blocks: u64,
}

/// Gathers evidence.
#[derive(Debug)]
pub struct Leaks {
    axis: Axis,
    width: u64,
    /// The slice of the latest event, and what belongs to it: from here on, and up to there.
    slice: usize,
    slice_start: u64,
    slice_end: u64,
    free_sites: bool,
    /// By site number.
    rows: Vec<Row>,
    series: Vec<Series>,
    /// How often a site's counter of a class of lifetimes ran over.
    carried: FxHashMap<(u32, usize), u32>,
    /// How often a block of the first site was freed at the second, where frees carry sites.
    freed_at: FxHashMap<(u32, u32), u64>,
    /// The same in order: a site, how often, where.
    freed_by: Vec<(u32, Reverse<u64>, u32)>,
}

impl Leaks {
    /// For a run that is measured so.
    pub fn new(axis: Axis, free_sites: bool) -> Self {
        let width = (axis.end.saturating_sub(axis.start) / SLICES as u64).saturating_add(1);
        Leaks {
            axis,
            width,
            slice: 0,
            slice_start: 0,
            slice_end: 0,
            free_sites,
            rows: Vec::new(),
            series: Vec::new(),
            carried: FxHashMap::default(),
            freed_at: FxHashMap::default(),
            freed_by: Vec::new(),
        }
    }

    /// The slice of an event: the next one's is the same, most likely.
    #[inline]
    fn slice_now(&mut self, at: u64) -> usize {
        if at < self.slice_start || at >= self.slice_end {
            self.slice = self.slice(at);
            let start = |slice: usize| self.axis.start.saturating_add(self.width.saturating_mul(slice as u64));
            self.slice_start = if self.slice == 0 { 0 } else { start(self.slice) };
            self.slice_end = if self.slice == SLICES - 1 { u64::MAX } else { start(self.slice + 1) };
        }
        self.slice
    }

    fn slice(&self, at: u64) -> usize {
        let slice = at.saturating_sub(self.axis.start) / self.width;
        usize::try_from(slice).map_or(SLICES - 1, |slice| slice.min(SLICES - 1))
    }

    const fn when(&self, event: &Event) -> u64 {
        if self.axis.by_tick { event.tick } else { event.number }
    }

    const fn birth(&self, block: &Block) -> u64 {
        if self.axis.by_tick { block.tick } else { block.number }
    }

    #[inline]
    fn row(&mut self, site: u32, slice: usize) -> &mut Row {
        let row = row(&mut self.rows, site);
        if usize::from(row.filled) < slice {
            row.fill(slice, super::row(&mut self.series, site));
        }
        row
    }

    #[inline]
    fn taken(&mut self, event: &Event, block: &Block) {
        let slice = self.slice_now(self.when(event));
        let row = self.row(block.site, slice);
        row.allocs += 1;
        row.bytes = row.bytes.saturating_add(block.size);
        row.newest = block.size;
        row.live_blocks = row.live_blocks.saturating_add(1);
        row.live_bytes = row.live_bytes.saturating_add(block.size);
        row.peak_blocks = row.peak_blocks.max(row.live_blocks);
        row.peak_bytes = row.peak_bytes.max(row.live_bytes);
        row.largest = row.largest.max(block.size);
    }

    #[inline]
    fn given(&mut self, event: &Event, old: &Block) {
        let slice = self.slice_now(self.when(event));
        let age = self.when(event).saturating_sub(self.birth(old));
        let row = self.row(old.site, slice);
        row.live_blocks = row.live_blocks.saturating_sub(1);
        row.live_bytes = row.live_bytes.saturating_sub(old.size);
        if event.is_implied() {
            let resized = event.kind == Kind::Resize;
            row.resized += u64::from(resized);
            row.implied = row.implied.saturating_add(u32::from(!resized));
            return;
        }
        row.lifetime_sum = row.lifetime_sum.saturating_add(age);
        row.longest_lifetime = row.longest_lifetime.max(age);
        row.replaced += u64::from(row.newest > old.size);
        row.newest = 0;
        let class = (u64::BITS - age.leading_zeros()).saturating_sub(7) as usize / 3;
        let class = class.min(LIFETIME_CLASSES - 1);
        row.lifetimes[class] = row.lifetimes[class].wrapping_add(1);
        if row.lifetimes[class] == 0 {
            *self.carried.entry((old.site, class)).or_default() += 1;
        }
        if self.free_sites && event.site != 0 {
            *self.freed_at.entry((old.site, event.site)).or_default() += 1;
        }
    }

    /// What a site did, once [`Leaks::survivors`] has completed the series.
    pub fn history(&self, site: u32) -> History {
        let place = site as usize;
        let (Some(row), Some(series)) = (self.rows.get(place), self.series.get(place)) else {
            return History::default();
        };
        let lifetimes = std::array::from_fn(|class| {
            let carried = self.carried.get(&(site, class)).copied().unwrap_or(0);
            carried.saturating_mul(1 << u16::BITS).saturating_add(row.lifetimes[class].into())
        });
        let frees = row.allocs.saturating_sub(row.live_blocks.into());
        History {
            allocs: row.allocs,
            bytes: row.bytes,
            frees,
            live_blocks: row.live_blocks.into(),
            live_bytes: row.live_bytes,
            peak_bytes: row.peak_bytes,
            peak_blocks: row.peak_blocks.into(),
            largest: row.largest,
            freed: frees.saturating_sub(row.resized).saturating_sub(row.implied.into()),
            lifetime_sum: row.lifetime_sum,
            longest_lifetime: row.longest_lifetime,
            replaced: row.replaced,
            resized: row.resized,
            half_blocks: series.half_blocks,
            lifetimes,
            series: series.live_bytes,
        }
    }

    /// Every site's number, and what it did.
    pub fn histories(&self) -> impl Iterator<Item = (u32, History)> + '_ {
        (0..self.rows.len() as u32).map(|site| (site, self.history(site)))
    }

    /// The survivors born in a span, by site, own ones and inherited ones apart; completes the
    /// series.
    pub fn survivors(&mut self, live: &LiveSet, born: Span) -> FxHashMap<(u32, bool), Survivors> {
        self.series.resize(self.rows.len(), Series::default());
        self.rows.iter_mut().zip(&mut self.series).for_each(|(row, series)| row.fill(SLICES, series));
        self.freed_by = self.freed_at.iter().map(|(&(from, at), &count)| (from, Reverse(count), at)).collect();
        self.freed_by.sort_unstable();
        let mut sites: FxHashMap<(u32, bool), Survivors> = FxHashMap::default();
        for (_, block) in live.iter() {
            if !born.contains(Position { number: block.number, tick: block.tick }) {
                continue;
            }
            let slice = self.slice(self.birth(&block));
            let row = sites.entry((block.site, block.inherited)).or_default();
            row.add(&block, slice);
        }
        sites
    }

    /// Where blocks of a site were freed, most often first, once [`Leaks::survivors`] was asked.
    pub fn freed_at(&self, site: u32) -> impl Iterator<Item = (u32, u64)> + '_ {
        let first = self.freed_by.partition_point(|&(from, ..)| from < site);
        let places = self.freed_by[first..].iter().take_while(move |&&(from, ..)| from == site);
        places.map(|&(_, Reverse(count), at)| (at, count))
    }
}

impl History {
    /// Both sites together.
    pub fn merge(&mut self, other: &History) {
        self.allocs += other.allocs;
        self.frees += other.frees;
        self.resized += other.resized;
        self.live_blocks += other.live_blocks;
        self.live_bytes = self.live_bytes.saturating_add(other.live_bytes);
        // Their own maxima need not have been at the same time: an upper bound.
        self.peak_blocks += other.peak_blocks;
        self.peak_bytes = self.peak_bytes.saturating_add(other.peak_bytes);
        self.largest = self.largest.max(other.largest);
        self.lifetime_sum = self.lifetime_sum.saturating_add(other.lifetime_sum);
        self.longest_lifetime = self.longest_lifetime.max(other.longest_lifetime);
        self.freed += other.freed;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.replaced += other.replaced;
        self.half_blocks += other.half_blocks;
        self.lifetimes
            .iter_mut()
            .zip(other.lifetimes)
            .for_each(|(sum, lifetimes)| *sum = sum.saturating_add(lifetimes));
        for (sum, bytes) in self.series.iter_mut().zip(other.series) {
            *sum = sum.saturating_add(bytes);
        }
    }
}

impl Row {
    fn fill(&mut self, until: usize, series: &mut Series) {
        let from = usize::from(self.filled).min(until);
        series.live_bytes[from..until].fill(self.live_bytes);
        if from < SLICES / 2 && until >= SLICES / 2 {
            series.half_blocks = self.live_blocks.into();
        }
        self.filled = until as u8;
    }
}

impl Survivors {
    /// Both sites together.
    pub fn merge(&mut self, other: &Survivors) {
        if self.blocks == 0 {
            *self = other.clone();
            return;
        }
        self.blocks += other.blocks;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.first = self.first.min(other.first);
        self.last = self.last.max(other.last);
        self.smallest = self.smallest.min(other.smallest);
        self.largest = self.largest.max(other.largest);
        self.resized += other.resized;
        self.allocs_by_slice
            .iter_mut()
            .zip(other.allocs_by_slice)
            .for_each(|(sum, allocs_by_slice)| *sum += allocs_by_slice);
        other.threads.iter().for_each(|thread| keep(&mut self.threads, *thread));
        other.examples.iter().for_each(|example| keep(&mut self.examples, *example));
    }

    fn add(&mut self, block: &Block, slice: usize) {
        let birth = (block.tick, block.number);
        if self.blocks == 0 {
            (self.first, self.last, self.smallest, self.inherited) = (birth, birth, block.size, block.inherited);
        }
        self.blocks += 1;
        self.bytes = self.bytes.saturating_add(block.size);
        self.first = self.first.min(birth);
        self.last = self.last.max(birth);
        self.smallest = self.smallest.min(block.size);
        self.largest = self.largest.max(block.size);
        self.resized += u64::from(block.resizes > 0);
        self.allocs_by_slice[slice] += 1;
        keep(&mut self.threads, block.thread);
        keep(&mut self.examples, (block.number, block.address, block.size));
    }
}

/// Keeps the smallest few, in order, whatever order they come in.
fn keep<T: Ord + Copy>(kept: &mut Vec<T>, new: T) {
    if let Err(place) = kept.binary_search(&new)
        && place < EXAMPLES
    {
        kept.truncate(EXAMPLES - 1);
        kept.insert(place, new);
    }
}

impl Model for Leaks {
    #[inline]
    fn alloc(&mut self, event: &Event, block: &Block) {
        self.taken(event, block);
    }

    #[inline]
    fn resize(&mut self, event: &Event, old: Option<&Block>, block: &Block) {
        if let Some(old) = old {
            self.given(event, old);
        }
        self.taken(event, block);
    }

    #[inline]
    fn free(&mut self, event: &Event, old: Option<&Block>) {
        if let Some(old) = old {
            self.given(event, old);
        }
    }

    #[inline]
    fn prefetch(&self, site: u32, freed: bool) {
        if let Some(row) = self.rows.get(site as usize) {
            std::hint::black_box(row.allocs);
            if freed {
                std::hint::black_box(row.lifetime_sum);
            }
        }
    }
}

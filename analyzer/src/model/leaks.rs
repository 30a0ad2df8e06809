//! What is alive at the end, by site, with the evidence that a verdict needs: how the site's live bytes went over the run,
//! when the survivors were born, how long their freed siblings lived and where those were freed.

use super::live_set::{Block, LiveSet};
use super::row;
use crate::event::{Event, Kind, Moment, Span};
use crate::replay::Model;
use rustc_hash::FxHashMap;

/// Slices of the run in which live bytes and births are kept.
pub const SLICES: usize = 16;
/// Example blocks and threads kept of each site.
pub const EXAMPLES: usize = 4;

/// Classes of lifetimes: class n holds what lived less than 2^(9 + 3n) units and is in no class before; the last the rest.
pub const LIVES: usize = 16;

/// Upper bound of a class of lifetimes, in the run's unit.
pub const fn life_bound(class: usize) -> u64 {
    if class + 1 < LIVES { 1 << (9 + 3 * class) } else { u64::MAX }
}

/// How a run is measured: in ticks, or in events where these say more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Whether in ticks.
    pub by_tick: bool,
    /// The run's start.
    pub start: u64,
    /// Where the last slice ends. What comes later (taking down what was built up) counts to the last slice.
    pub end: u64,
}

/// A site over the run. 320 bytes each, in the order in which they are used: an event touches the first two lines of the
/// processor's cache and one of the third; where sites are many, each is a miss.
#[derive(Clone, Debug, Default)]
#[repr(C, align(64))]
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
    pub most_bytes: u64,
    /// The most live blocks ever.
    pub most_blocks: u64,
    /// The largest block ever.
    pub largest: u64,
    /// Blocks that were freed (not resized away).
    pub died: u64,
    /// Sum of their lifetimes, in the run's unit.
    pub lived: u64,
    /// The longest of these.
    pub longest_life: u64,
    /// Of the freed ones, those freed right after a larger one was allocated here: a container that took a larger place.
    pub replaced: u64,
    /// Size of the latest allocation here, until something of the site is freed.
    newest: u64,
    /// Of the allocations, those that were resized away.
    pub resized: u64,
    /// Live blocks in the middle of the run.
    pub half_blocks: u64,
    filled: u8,
    /// Blocks that were freed, by how long they lived.
    pub lives: [u32; LIVES],
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
    pub births: [u64; SLICES],
    /// The first threads met, by number.
    pub threads: Vec<u32>,
    /// The oldest: birth number, address, size.
    pub examples: Vec<(u64, u64, u64)>,
    /// Inherited from the parent by fork.
    pub inherited: bool,
}

/// Gathers evidence.
#[derive(Debug)]
pub struct Leaks {
    axis: Axis,
    width: u64,
    free_sites: bool,
    /// By site number.
    pub rows: Vec<History>,
    /// How often a block of the first site was freed at the second, where frees carry sites.
    pub freed_at: FxHashMap<(u32, u32), u64>,
}

impl Leaks {
    /// For a run that is measured so.
    pub fn new(axis: Axis, free_sites: bool) -> Self {
        let width = (axis.end.saturating_sub(axis.start) / SLICES as u64).saturating_add(1);
        Leaks { axis, width, free_sites, rows: Vec::new(), freed_at: FxHashMap::default() }
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
    fn row(&mut self, site: u32, slice: usize) -> &mut History {
        let row = row(&mut self.rows, site);
        if usize::from(row.filled) < slice {
            row.fill(slice);
        }
        row
    }

    #[inline]
    fn taken(&mut self, event: &Event, block: &Block) {
        let slice = self.slice(self.when(event));
        let row = self.row(block.site, slice);
        row.allocs += 1;
        row.bytes = row.bytes.saturating_add(block.size);
        row.newest = block.size;
        row.live_blocks += 1;
        row.live_bytes = row.live_bytes.saturating_add(block.size);
        row.most_blocks = row.most_blocks.max(row.live_blocks);
        row.most_bytes = row.most_bytes.max(row.live_bytes);
        row.largest = row.largest.max(block.size);
    }

    #[inline]
    fn given(&mut self, event: &Event, old: &Block) {
        let slice = self.slice(self.when(event));
        let age = self.when(event).saturating_sub(self.birth(old));
        let row = self.row(old.site, slice);
        row.frees += 1;
        row.live_blocks = row.live_blocks.saturating_sub(1);
        row.live_bytes = row.live_bytes.saturating_sub(old.size);
        if event.is_implied() {
            row.resized += u64::from(event.kind == Kind::Resize);
            return;
        }
        row.died += 1;
        row.lived = row.lived.saturating_add(age);
        row.longest_life = row.longest_life.max(age);
        let class = (u64::BITS - age.leading_zeros()).saturating_sub(7) as usize / 3;
        let class = &mut row.lives[class.min(LIVES - 1)];
        *class = class.saturating_add(1);
        row.replaced += u64::from(row.newest > old.size);
        row.newest = 0;
        if self.free_sites && event.site != 0 {
            *self.freed_at.entry((old.site, event.site)).or_default() += 1;
        }
    }

    /// The survivors born in a span, by site, own ones and inherited ones apart; completes the series.
    pub fn survivors(&mut self, live: &LiveSet, born: Span) -> FxHashMap<(u32, bool), Survivors> {
        self.rows.iter_mut().for_each(|row| row.fill(SLICES));
        let mut sites: FxHashMap<(u32, bool), Survivors> = FxHashMap::default();
        for (_, block) in live.iter() {
            if !born.contains(Moment { number: block.number, tick: block.tick }) {
                continue;
            }
            let slice = self.slice(self.birth(&block));
            let row = sites.entry((block.site, block.inherited)).or_default();
            row.add(&block, slice);
        }
        sites
    }

    /// Where blocks of a site were freed, most often first.
    pub fn freed_at(&self, site: u32) -> Vec<(u32, u64)> {
        let mut places: Vec<(u32, u64)> =
            self.freed_at.iter().filter(|((from, _), _)| *from == site).map(|((_, at), count)| (*at, *count)).collect();
        places.sort_by_key(|&(site, count)| (std::cmp::Reverse(count), site));
        places
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
        self.most_blocks += other.most_blocks;
        self.most_bytes = self.most_bytes.saturating_add(other.most_bytes);
        self.largest = self.largest.max(other.largest);
        self.lived = self.lived.saturating_add(other.lived);
        self.longest_life = self.longest_life.max(other.longest_life);
        self.died += other.died;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.replaced += other.replaced;
        self.half_blocks += other.half_blocks;
        self.lives.iter_mut().zip(other.lives).for_each(|(sum, lives)| *sum = sum.saturating_add(lives));
        for (sum, bytes) in self.series.iter_mut().zip(other.series) {
            *sum = sum.saturating_add(bytes);
        }
    }

    fn fill(&mut self, until: usize) {
        let from = usize::from(self.filled).min(until);
        self.series[from..until].fill(self.live_bytes);
        if from < SLICES / 2 && until >= SLICES / 2 {
            self.half_blocks = self.live_blocks;
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
        self.births.iter_mut().zip(other.births).for_each(|(sum, births)| *sum += births);
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
        self.births[slice] += 1;
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
}

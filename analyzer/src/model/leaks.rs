//! Collects the evidence for the leak report by call site: the live bytes over the run, when the
//! survivors (the blocks that are live at the end) were allocated, how long other blocks of the
//! site lived, and where those were freed.

use super::axis::{Axis, SLICES, Slicing};
use super::live_set::{Block, LiveSet};
use super::row;
use crate::event::{Event, Kind, Position, Span, ticks_off};
use crate::model::Model;
use heaptape_formats::tape::Entry;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;

/// Maximum number of example blocks and of threads of a site.
pub const EXAMPLES: usize = 4;

/// Number of lifetime classes. Class n counts lifetimes below 2^(9 + 3n) units that are not in an
/// earlier class, and the last class all others.
pub(crate) const LIFETIME_CLASSES: usize = 16;

/// Returns the exclusive upper bound of a lifetime class, in the unit of the run's [`Axis`].
pub(crate) const fn lifetime_bound(class: usize) -> u64 {
    if class + 1 < LIFETIME_CLASSES { 1 << (9 + 3 * class) } else { u64::MAX }
}

/// The history of a site over the run.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Number of allocations and reallocations.
    pub allocs: u64,
    /// Number of allocated bytes.
    pub bytes: u64,
    /// Number of blocks that were freed or reallocated.
    pub frees: u64,
    /// Number of live blocks at the end.
    pub live_blocks: u64,
    /// Number of live bytes at the end.
    pub live_bytes: u64,
    /// Maximum number of live bytes.
    pub peak_bytes: u64,
    /// Maximum number of live blocks.
    pub peak_blocks: u64,
    /// Size of the largest block, in bytes.
    pub largest: u64,
    /// Number of blocks that were freed, without those that were reallocated.
    pub freed: u64,
    /// Sum of the lifetimes of freed blocks, in the unit of the axis.
    pub lifetime_sum: u64,
    /// Longest lifetime of a freed block, in the unit of the axis.
    pub longest_lifetime: u64,
    /// Number of blocks that were freed right after a larger one was allocated here, as by a
    /// container that grows.
    pub replaced: u64,
    /// Number of blocks that were reallocated.
    pub resized: u64,
    /// Number of live blocks in the middle of the run.
    pub half_blocks: u64,
    /// Number of bytes that were live before the run, in blocks whose time is not known.
    pub carried_bytes: u64,
    /// Number of freed blocks by lifetime class.
    pub lifetimes: [u32; LIFETIME_CLASSES],
    /// Number of live bytes at the end of each slice.
    pub series: [u64; SLICES],
    /// The least number of live bytes in each slice: what is not given back between two uses.
    pub least: [u64; SLICES],
    /// The most that was live since the exit began.
    pub at_exit: Held,
    /// Standard error of the rise of the live bytes in the second half of the run, if they are
    /// estimates.
    pub rise_error: Option<u64>,
}

/// What was live at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    pub blocks: u64,
    pub bytes: u64,
}

impl Held {
    /// Sums up what two sites held.
    const fn add(&mut self, other: Held) {
        self.blocks += other.blocks;
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

/// An example of a survivor, sorted by age.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Example {
    /// Number of events before its allocation.
    pub number: u64,
    pub address: u64,
    /// Size of the block in bytes.
    pub size: u64,
}

/// The survivors of a site: its blocks that are live at the end.
#[derive(Clone, Debug, Default)]
pub struct Survivors {
    /// Total number of blocks.
    pub blocks: u64,
    /// Total number of bytes.
    pub bytes: u64,
    /// When the first of them was allocated.
    pub first: Position,
    pub last: Position,
    /// Size of the smallest block, in bytes.
    pub smallest: u64,
    /// Size of the largest block, in bytes.
    pub largest: u64,
    /// Number of blocks that were reallocated at least once.
    pub resized: u64,
    /// Number of blocks by the slice of their allocation.
    pub allocs_by_slice: [u64; SLICES],
    /// The same for blocks that are older than any freed block of their site became.
    pub old_by_slice: [u64; SLICES],
    /// The lowest numbers of threads that allocated them.
    pub threads: Vec<u32>,
    /// The oldest of the blocks.
    pub examples: Vec<Example>,
    /// Whether the blocks were inherited from the parent process by fork.
    pub inherited: bool,
}

/// The numbers of a site that change with its events. An allocation accesses the first of two cache
/// lines, a free both. If there are many sites, each access is a cache miss.
#[derive(Clone, Debug, Default)]
#[repr(C, align(128))]
struct Row {
    allocs: u64,
    bytes: u64,
    live_bytes: u64,
    peak_bytes: u64,
    largest: u64,
    /// Size of the latest allocation, or 0 if a block of the site was freed since.
    newest: u64,
    live_blocks: u32,
    peak_blocks: u32,
    /// Number of blocks whose free was inferred.
    implied: u32,
    /// Number of slices of the series that are complete.
    filled: u8,
    /// The least number of live bytes since the last complete slice.
    least_bytes: u64,
    lifetime_sum: u64,
    longest_lifetime: u64,
    replaced: u32,
    resized: u32,
    /// Lifetime classes modulo 65,536. [`Leaks::overflows`] has the rest.
    lifetimes: [u16; LIFETIME_CLASSES],
}

/// The numbers of a site that change with the slices of the run only, or in its exit.
#[derive(Clone, Debug, Default)]
struct Series {
    live_bytes: [u64; SLICES],
    least_bytes: [u64; SLICES],
    half_blocks: u64,
    carried_bytes: u64,
    at_exit: Held,
}

/// How often blocks of a site were freed at another site. Sorts by site, then most frequent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FreeSite {
    site: u32,
    /// Total number of frees.
    count: Reverse<u64>,
    freed_at: u32,
}

/// The model that collects the evidence.
#[derive(Debug)]
pub struct Leaks {
    axis: Axis,
    width: u64,
    /// The slice of the latest event, with the positions of its start and end.
    slice: usize,
    slice_start: u64,
    slice_end: u64,
    /// When slices began, up to the latest one that has events, and the time of its latest event.
    starts: [u64; SLICES + 1],
    latest: usize,
    now: u64,
    free_sites: bool,
    /// Rows by site number.
    rows: Vec<Row>,
    /// Series by site number.
    series: Vec<Series>,
    /// How often the counter of a site and lifetime class overflowed.
    overflows: FxHashMap<(u32, usize), u32>,
    /// Number of frees by the site of the allocation and the site of the free, if frees have sites.
    freed_at: FxHashMap<(u32, u32), u64>,
    /// The content of `freed_at`, sorted.
    sorted_free_sites: Vec<FreeSite>,
}

impl Leaks {
    /// Creates a model for a run on an axis.
    pub fn new(axis: Axis, free_sites: bool) -> Self {
        Leaks {
            axis,
            width: axis.slice_width(),
            slice: 0,
            slice_start: 0,
            slice_end: 0,
            starts: [axis.start; SLICES + 1],
            latest: 0,
            now: axis.start,
            free_sites,
            rows: Vec::new(),
            series: Vec::new(),
            overflows: FxHashMap::default(),
            freed_at: FxHashMap::default(),
            sorted_free_sites: Vec::new(),
        }
    }

    /// Returns the slice of an event. It is likely the same as for the previous event.
    #[inline]
    fn current_slice(&mut self, event: &Event) -> usize {
        let at = self.axis.position(event.position());
        if at < self.slice_start || at >= self.slice_end {
            self.slice = self.slice(at);
            self.begin_slices(event);
            let start = |slice: usize| self.width.saturating_mul(slice as u64);
            self.slice_start = start(self.slice);
            self.slice_end = if self.slice == SLICES - 1 { u64::MAX } else { start(self.slice + 1) };
        }
        self.now = self.axis.unit(event.position());
        self.slice
    }

    /// Notes when the slices up to the current one began. `event` is its first.
    #[cold]
    fn begin_slices(&mut self, event: &Event) {
        let now = self.axis.unit(event.position()).max(self.now);
        for slice in self.latest + 1..=self.slice {
            let start = self.width.saturating_mul(slice as u64);
            // No event was between the previous one and the start.
            let past = self.axis.position(Position { tick: self.now, number: event.number });
            self.starts[slice] = self.now.saturating_add(start.saturating_sub(past)).clamp(self.now, now);
        }
        self.latest = self.latest.max(self.slice);
    }

    /// Returns the slice of a position on the axis.
    fn slice(&self, at: u64) -> usize {
        usize::try_from(at / self.width).map_or(SLICES - 1, |slice| slice.min(SLICES - 1))
    }

    /// Returns when the slices began. Without events, they are as long as each other.
    pub(crate) fn slicing(&self) -> Slicing {
        let mut starts = self.starts;
        let from = starts[self.latest];
        let rest = (SLICES - self.latest) as u64;
        for (after, start) in (1u64..).zip(&mut starts[self.latest + 1..]) {
            let share = u128::from(self.axis.end.saturating_sub(from)) * u128::from(after);
            *start = from.saturating_add((share / u128::from(rest)) as u64);
        }
        Slicing::new(starts)
    }

    const fn time_of(&self, event: &Event) -> u64 {
        self.axis.unit(event.position())
    }

    const fn allocation_time(&self, block: &Block) -> u64 {
        self.axis.unit(block.allocated())
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
    const fn is_exit(&self, event: &Event) -> bool {
        self.time_of(event) >= self.axis.exit
    }

    /// Notes how much is live of a site since the exit began.
    #[cold]
    fn note_exit(&mut self, site: u32) {
        let row = row(&mut self.rows, site);
        let held = &mut super::row(&mut self.series, site).at_exit;
        held.blocks = held.blocks.max(row.live_blocks.into());
        held.bytes = held.bytes.max(row.live_bytes);
    }

    #[inline]
    fn add(&mut self, event: &Event, block: &Block) {
        let slice = self.current_slice(event);
        let row = self.row(block.site, slice);
        row.allocs += 1;
        row.bytes = row.bytes.saturating_add(block.size);
        row.newest = block.size;
        row.live_blocks = row.live_blocks.saturating_add(1);
        row.live_bytes = row.live_bytes.saturating_add(block.size);
        row.peak_blocks = row.peak_blocks.max(row.live_blocks);
        row.peak_bytes = row.peak_bytes.max(row.live_bytes);
        row.largest = row.largest.max(block.size);
        if self.is_exit(event) {
            self.note_exit(block.site);
        }
        if event.entry == Entry::Carried as u8 {
            let series = super::row(&mut self.series, block.site);
            series.carried_bytes = series.carried_bytes.saturating_add(block.size);
        }
    }

    #[inline]
    fn remove(&mut self, event: &Event, old: &Block) {
        let slice = self.current_slice(event);
        let age = self.time_of(event).saturating_sub(self.allocation_time(old));
        // Below what an interpolated time is off by, only the longest possible lifetime is known.
        let error = if self.axis.by_tick { ticks_off([event.tick_error, old.tick_error]) } else { 0 };
        let most = if error > age { age.saturating_add(error) } else { age };
        if self.is_exit(event) {
            self.note_exit(old.site);
        }
        let row = self.row(old.site, slice);
        row.live_blocks = row.live_blocks.saturating_sub(1);
        row.live_bytes = row.live_bytes.saturating_sub(old.size);
        if event.kind != Kind::Resize {
            row.least_bytes = row.least_bytes.min(row.live_bytes);
        }
        if event.is_implied() {
            let resized = event.kind == Kind::Resize;
            row.resized = row.resized.saturating_add(u32::from(resized));
            row.implied = row.implied.saturating_add(u32::from(!resized));
            return;
        }
        row.lifetime_sum = row.lifetime_sum.saturating_add(age);
        row.longest_lifetime = row.longest_lifetime.max(age);
        row.replaced = row.replaced.saturating_add(u32::from(row.newest > old.size));
        row.newest = 0;
        let class = (u64::BITS - most.leading_zeros()).saturating_sub(7) as usize / 3;
        let class = class.min(LIFETIME_CLASSES - 1);
        row.lifetimes[class] = row.lifetimes[class].wrapping_add(1);
        if row.lifetimes[class] == 0 {
            *self.overflows.entry((old.site, class)).or_default() += 1;
        }
        if self.free_sites && event.site != 0 {
            *self.freed_at.entry((old.site, event.site)).or_default() += 1;
        }
    }

    /// Returns the history of a site. [`Leaks::survivors`] must have been called before.
    pub fn history(&self, site: u32) -> History {
        let index = site as usize;
        let (Some(row), Some(series)) = (self.rows.get(index), self.series.get(index)) else {
            return History::default();
        };
        let lifetimes = std::array::from_fn(|class| {
            let overflows = self.overflows.get(&(site, class)).copied().unwrap_or(0);
            overflows.saturating_mul(1 << u16::BITS).saturating_add(row.lifetimes[class].into())
        });
        let frees = row.allocs.saturating_sub(row.live_blocks.into());
        History {
            rise_error: None,
            allocs: row.allocs,
            bytes: row.bytes,
            frees,
            live_blocks: row.live_blocks.into(),
            live_bytes: row.live_bytes,
            peak_bytes: row.peak_bytes,
            peak_blocks: row.peak_blocks.into(),
            largest: row.largest,
            freed: frees.saturating_sub(row.resized.into()).saturating_sub(row.implied.into()),
            lifetime_sum: row.lifetime_sum,
            longest_lifetime: row.longest_lifetime,
            replaced: row.replaced.into(),
            resized: row.resized.into(),
            half_blocks: series.half_blocks,
            carried_bytes: series.carried_bytes,
            lifetimes,
            series: series.live_bytes,
            least: series.least_bytes,
            at_exit: series.at_exit,
        }
    }

    /// Returns the number and the history of every site.
    pub fn histories(&self) -> impl Iterator<Item = (u32, History)> + '_ {
        (0..self.rows.len() as u32).map(|site| (site, self.history(site)))
    }

    /// Returns the survivors that were allocated in a span, by site and whether they are inherited.
    /// Completes the series of all sites.
    pub fn survivors(&mut self, live: &LiveSet, span: Span) -> FxHashMap<(u32, bool), Survivors> {
        self.series.resize(self.rows.len(), Series::default());
        self.rows.iter_mut().zip(&mut self.series).for_each(|(row, series)| row.fill(SLICES, series));
        let free_site = |(&(site, freed_at), &count)| FreeSite { site, count: Reverse(count), freed_at };
        self.sorted_free_sites = self.freed_at.iter().map(free_site).collect();
        self.sorted_free_sites.sort_unstable();
        let mut sites: FxHashMap<(u32, bool), Survivors> = FxHashMap::default();
        for (_, block) in live.iter() {
            if !span.contains(block.allocated()) {
                continue;
            }
            let slice = self.slice(self.axis.position(block.allocated()));
            let age = self.axis.end.saturating_sub(self.allocation_time(&block));
            let longest = self.rows.get(block.site as usize).map_or(0, |row| row.longest_lifetime);
            let row = sites.entry((block.site, block.inherited)).or_default();
            row.add(&block, slice, age > longest);
        }
        sites
    }

    /// Returns the sites at which blocks of a site were freed with the number of frees, most
    /// frequent first. [`Leaks::survivors`] must have been called before.
    pub fn freed_at(&self, site: u32) -> impl Iterator<Item = (u32, u64)> + '_ {
        let first = self.sorted_free_sites.partition_point(|free_site| free_site.site < site);
        let free_sites = self.sorted_free_sites[first..].iter().take_while(move |free_site| free_site.site == site);
        free_sites.map(|free_site| (free_site.freed_at, free_site.count.0))
    }
}

impl History {
    /// Adds the history of another site.
    pub fn merge(&mut self, other: &History) {
        self.allocs += other.allocs;
        self.frees += other.frees;
        self.resized += other.resized;
        self.live_blocks += other.live_blocks;
        self.live_bytes = self.live_bytes.saturating_add(other.live_bytes);
        // The two maxima may have been at different times, so the sum is an upper bound.
        self.peak_blocks += other.peak_blocks;
        self.peak_bytes = self.peak_bytes.saturating_add(other.peak_bytes);
        self.largest = self.largest.max(other.largest);
        self.lifetime_sum = self.lifetime_sum.saturating_add(other.lifetime_sum);
        self.longest_lifetime = self.longest_lifetime.max(other.longest_lifetime);
        self.freed += other.freed;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.replaced += other.replaced;
        self.half_blocks += other.half_blocks;
        self.carried_bytes = self.carried_bytes.saturating_add(other.carried_bytes);
        self.lifetimes
            .iter_mut()
            .zip(other.lifetimes)
            .for_each(|(sum, lifetimes)| *sum = sum.saturating_add(lifetimes));
        self.at_exit.add(other.at_exit);
        let of_slices = self.series.iter_mut().zip(other.series).chain(self.least.iter_mut().zip(other.least));
        of_slices.for_each(|(sum, bytes)| *sum = sum.saturating_add(bytes));
        let errors = [self.rise_error, other.rise_error].map(|error| error.map(|error| error as f64));
        self.rise_error = match errors {
            [None, None] => None,
            [one, two] => Some(one.unwrap_or(0.0).hypot(two.unwrap_or(0.0)) as u64),
        };
    }
}

impl Row {
    /// Completes the series up to a slice.
    fn fill(&mut self, until: usize, series: &mut Series) {
        let from = usize::from(self.filled).min(until);
        series.live_bytes[from..until].fill(self.live_bytes);
        series.least_bytes[from..until].fill(self.live_bytes);
        if from < until {
            series.least_bytes[from] = self.least_bytes.min(self.live_bytes);
            self.least_bytes = self.live_bytes;
        }
        if from < SLICES / 2 && until >= SLICES / 2 {
            series.half_blocks = self.live_blocks.into();
        }
        self.filled = until as u8;
    }
}

impl Survivors {
    /// Adds the survivors of another site.
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
        self.allocs_by_slice.iter_mut().zip(other.allocs_by_slice).for_each(|(sum, allocs)| *sum += allocs);
        self.old_by_slice.iter_mut().zip(other.old_by_slice).for_each(|(sum, allocs)| *sum += allocs);
        other.threads.iter().for_each(|thread| keep_smallest(&mut self.threads, *thread));
        other.examples.iter().for_each(|example| keep_smallest(&mut self.examples, *example));
    }

    fn add(&mut self, block: &Block, slice: usize, is_old: bool) {
        let allocated = block.allocated();
        if self.blocks == 0 {
            (self.first, self.last, self.smallest, self.inherited) =
                (allocated, allocated, block.size, block.inherited);
        }
        self.blocks += 1;
        self.bytes = self.bytes.saturating_add(block.size);
        self.first = self.first.min(allocated);
        self.last = self.last.max(allocated);
        self.smallest = self.smallest.min(block.size);
        self.largest = self.largest.max(block.size);
        self.resized += u64::from(block.resizes > 0);
        self.allocs_by_slice[slice] += 1;
        self.old_by_slice[slice] += u64::from(is_old);
        keep_smallest(&mut self.threads, block.thread);
        let &Block { number, address, size, .. } = block;
        keep_smallest(&mut self.examples, Example { number, address, size });
    }
}

/// Inserts a value into a sorted list of at most [`EXAMPLES`] values, which keeps the smallest.
fn keep_smallest<T: Ord + Copy>(kept: &mut Vec<T>, new: T) {
    if let Err(index) = kept.binary_search(&new)
        && index < EXAMPLES
    {
        kept.truncate(EXAMPLES - 1);
        kept.insert(index, new);
    }
}

impl Model for Leaks {
    #[inline]
    fn alloc(&mut self, event: &Event, block: &Block) {
        self.add(event, block);
    }

    #[inline]
    fn resize(&mut self, event: &Event, old: Option<&Block>, block: &Block) {
        if let Some(old) = old {
            self.remove(event, old);
        }
        self.add(event, block);
    }

    #[inline]
    fn free(&mut self, event: &Event, old: Option<&Block>) {
        if let Some(old) = old {
            self.remove(event, old);
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

//! Live bytes and blocks over a run, in equal slices of its time, or of its events if it has no
//! times.

use super::live_set::Block;
use crate::event::{Event, Kind, Position};
use crate::model::Model;
use heaptape_formats::tape::SiteSums;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    /// Number of live blocks at its end.
    pub live_blocks: u64,
    /// Number of live bytes at its end.
    pub live_bytes: u64,
    /// Maximum number of live bytes in it.
    pub peak_bytes: u64,
    /// Number of allocations and reallocations in it.
    pub allocs: u64,
    /// Number of bytes allocated in it.
    pub bytes: u64,
    pub frees: u64,
}

/// The model that computes the slices.
#[derive(Debug)]
pub struct Timeline {
    by_tick: bool,
    start: u64,
    width: u64,
    /// The slices. [`Timeline::finish`] completes those after the last event.
    pub slices: Vec<Slice>,
    current: usize,
    live: (u64, u64),
}

impl Timeline {
    /// Creates slices between two positions. The model must receive the events before `from`, too,
    /// or start with [`Timeline::begin`].
    pub fn new(from: Position, to: Position, by_tick: bool, slices: usize) -> Self {
        let (start, end) = if by_tick { (from.tick, to.tick) } else { (from.number, to.number) };
        let slices = slices.max(1);
        let width = end.saturating_sub(start).div_ceil(slices as u64).max(1);
        Timeline { by_tick, start, width, slices: vec![Slice::default(); slices], current: 0, live: (0, 0) }
    }

    /// Starts with numbers of live blocks and bytes, without inherited ones.
    pub fn begin(&mut self, (live_blocks, live_bytes): (u64, u64)) {
        self.live = (live_blocks, live_bytes);
        self.slices[0] = Slice { live_blocks, live_bytes, peak_bytes: live_bytes, ..Slice::default() };
    }

    /// Returns the start of a slice, in ticks or events.
    pub const fn start_of(&self, slice: usize) -> u64 {
        self.start.saturating_add(self.width.saturating_mul(slice as u64))
    }

    /// Fills the slices after the last event with what is live.
    pub fn finish(&mut self) {
        self.advance(self.slices.len() - 1);
    }

    #[inline]
    fn advance(&mut self, to: usize) {
        while self.current < to {
            self.current += 1;
            let (live_blocks, live_bytes) = self.live;
            self.slices[self.current] = Slice { live_blocks, live_bytes, peak_bytes: live_bytes, ..Slice::default() };
        }
    }

    #[inline]
    fn change(&mut self, event: &Event, old: Option<&Block>, new: Option<&Block>) {
        let at = if self.by_tick { event.tick } else { event.number };
        let slice = usize::try_from(at.saturating_sub(self.start) / self.width).unwrap_or(usize::MAX);
        self.advance(slice.min(self.slices.len() - 1));
        let (mut blocks, mut bytes) = self.live;
        if let Some(new) = new {
            (blocks, bytes) = (blocks + 1, bytes.saturating_add(new.size));
        }
        if let Some(old) = old {
            (blocks, bytes) = (blocks.saturating_sub(1), bytes.saturating_sub(old.size));
        }
        self.live = (blocks, bytes);
        let slice = &mut self.slices[self.current];
        (slice.live_blocks, slice.live_bytes) = (blocks, bytes);
        if at < self.start {
            slice.peak_bytes = bytes;
            return;
        }
        slice.peak_bytes = slice.peak_bytes.max(bytes);
        slice.frees += u64::from(event.kind == Kind::Free);
        if let Some(new) = new {
            slice.allocs += 1;
            slice.bytes = slice.bytes.saturating_add(new.size);
        }
    }
}

impl Model for Timeline {
    #[inline]
    fn alloc(&mut self, event: &Event, block: &Block) {
        self.change(event, None, Some(block));
    }

    #[inline]
    fn resize(&mut self, event: &Event, old: Option<&Block>, block: &Block) {
        self.change(event, old, Some(block));
    }

    #[inline]
    fn free(&mut self, event: &Event, old: Option<&Block>) {
        self.change(event, old, None);
    }
}

/// The model that computes the live bytes of groups of sites at the end of each slice.
#[derive(Debug)]
pub struct ByGroup {
    by_tick: bool,
    start: u64,
    width: u64,
    slices: usize,
    /// Number of the group by site.
    group_of: Vec<u32>,
    live: Vec<u64>,
    /// Live bytes at the ends of the slices so far, by group.
    pub series: Vec<Vec<u64>>,
}

impl ByGroup {
    /// Creates a model with the same slices as a timeline. `group_of` has the group of each site.
    pub fn beside(timeline: &Timeline, group_of: Vec<u32>, groups: usize) -> Self {
        let Timeline { by_tick, start, width, .. } = *timeline;
        let slices = timeline.slices.len();
        ByGroup { by_tick, start, width, slices, group_of, live: vec![0; groups], series: vec![Vec::new(); groups] }
    }

    /// Starts with the live bytes of the sums of all sites.
    pub fn begin(&mut self, sums: &[SiteSums]) {
        for row in sums {
            let group = self.group_of.get(row.site as usize).map_or(0, |&group| group as usize);
            if let Some(live) = self.live.get_mut(group) {
                *live = live.saturating_add(row.bytes.saturating_sub(row.freed_bytes));
            }
        }
    }

    /// Fills the slices after the last event with what is live.
    pub fn finish(&mut self) {
        self.advance(self.slices);
    }

    fn advance(&mut self, to: usize) {
        if self.series.first().is_some_and(|series| series.len() < to) {
            for (series, live) in self.series.iter_mut().zip(&self.live) {
                series.resize(to, *live);
            }
        }
    }

    #[inline]
    fn change(&mut self, event: &Event, old: Option<&Block>, new: Option<&Block>) {
        let at = if self.by_tick { event.tick } else { event.number };
        let slice = usize::try_from(at.saturating_sub(self.start) / self.width).unwrap_or(usize::MAX);
        self.advance(slice.min(self.slices - 1));
        let group = |site: u32| self.group_of.get(site as usize).map_or(0, |&group| group as usize);
        if let Some(old) = old
            && let Some(live) = self.live.get_mut(group(old.site))
        {
            *live = live.saturating_sub(old.size);
        }
        let group = |site: u32| self.group_of.get(site as usize).map_or(0, |&group| group as usize);
        if let Some(new) = new
            && let Some(live) = self.live.get_mut(group(new.site))
        {
            *live = live.saturating_add(new.size);
        }
    }
}

impl Model for ByGroup {
    #[inline]
    fn alloc(&mut self, event: &Event, block: &Block) {
        self.change(event, None, Some(block));
    }

    #[inline]
    fn resize(&mut self, event: &Event, old: Option<&Block>, block: &Block) {
        self.change(event, old, Some(block));
    }

    #[inline]
    fn free(&mut self, event: &Event, old: Option<&Block>) {
        self.change(event, old, None);
    }
}

//! Filters for queries about some of the blocks. A filtered model receives only the events of
//! matching blocks.

use super::live_set::Block;
use crate::event::{Event, Kind, Position};
use crate::model::Model;
use rustc_hash::FxHashSet;
use std::ops::RangeInclusive;

/// A filter for blocks. All conditions must hold.
#[derive(Clone, Debug, Default)]
pub struct BlockFilter {
    /// Sizes in bytes, or `None` for all.
    pub sizes: Option<RangeInclusive<u64>>,
    /// Threads that allocated or last reallocated the block.
    pub threads: Option<FxHashSet<u32>>,
    /// Whether blocks of a site match, by site number.
    pub sites: Option<Vec<bool>>,
    /// Allocators, by the function and the site that allocated or last reallocated the block.
    pub allocators: Option<AllocatorFilter>,
    /// Bit set by allocation index: whether the age that the block reaches matches. See
    /// [`AgeFilter`].
    pub ages: Option<Vec<u64>>,
}

/// A filter for the allocators of blocks. One of the conditions must hold.
#[derive(Clone, Debug)]
pub struct AllocatorFilter {
    /// Whether blocks of a site match, by site number.
    pub sites: Vec<bool>,
    /// Whether blocks of a function match, by its entry.
    pub entries: [bool; 256],
}

impl AllocatorFilter {
    fn matches(&self, block: &Block) -> bool {
        self.entries[usize::from(block.entry)] || self.sites.get(block.site as usize).copied().unwrap_or(false)
    }
}

impl BlockFilter {
    /// Returns whether every block matches.
    pub const fn is_all(&self) -> bool {
        self.sizes.is_none()
            && self.threads.is_none()
            && self.sites.is_none()
            && self.ages.is_none()
            && self.allocators.is_none()
    }

    /// Returns whether a block matches. `index` is its allocation index.
    #[inline]
    pub fn matches(&self, index: u64, block: &Block) -> bool {
        self.sizes.as_ref().is_none_or(|sizes| sizes.contains(&block.size))
            && self.threads.as_ref().is_none_or(|threads| threads.contains(&block.thread))
            && self.sites.as_ref().is_none_or(|sites| sites.get(block.site as usize).copied().unwrap_or(false))
            && self.allocators.as_ref().is_none_or(|allocators| allocators.matches(block))
            && self
                .ages
                .as_ref()
                .is_none_or(|ages| ages.get((index / 64) as usize).is_some_and(|word| word & 1 << (index % 64) != 0))
    }
}

/// A model that passes the events of matching blocks on to another model. The model is not a type
/// parameter, so that the replay of filtered events is compiled once and not for each report.
pub struct Filtered<'a> {
    pub filter: &'a BlockFilter,
    /// The model that receives the events.
    pub model: &'a mut dyn Model,
}

impl Model for Filtered<'_> {
    fn alloc(&mut self, event: &Event, block: &Block) {
        if self.filter.matches(event.index, block) {
            self.model.alloc(event, block);
        }
    }

    fn resize(&mut self, event: &Event, old: Option<&Block>, block: &Block) {
        let old = old.filter(|old| self.filter.matches(event.index, old));
        match (old, self.filter.matches(event.index, block)) {
            (old, true) => self.model.resize(event, old, block),
            // The reallocated block does not match any more.
            (Some(old), false) => self.model.free(event, Some(old)),
            (None, false) => {}
        }
    }

    fn free(&mut self, event: &Event, old: Option<&Block>) {
        if let Some(old) = old
            && self.filter.matches(event.index, old)
        {
            self.model.free(event, Some(old));
        }
    }

    fn unmatched(&mut self, event: &Event) {
        if self.filter.is_all() {
            self.model.unmatched(event);
        }
    }

    fn inherited(&mut self, block: &Block, gone: Option<Kind>) {
        if self.filter.is_all() {
            self.model.inherited(block, gone);
        }
    }

    #[inline]
    fn prefetch(&self, site: u32, freed: bool) {
        self.model.prefetch(site, freed);
    }
}

/// The first pass of a query with a filter on ages: finds the allocations whose age matches.
#[derive(Debug)]
pub struct AgeFilter {
    by_tick: bool,
    ages: RangeInclusive<u64>,
    /// Bit set of the matching allocations, by allocation index.
    pub selected: Vec<u64>,
}

/// Limit of allocation indexes: 512 MiB of bits. Blocks with larger ones never match.
const MAX_INDEX: u64 = 1 << 32;

impl AgeFilter {
    /// Creates a filter for a range of ages, in ticks if `by_tick` is set, else in events.
    pub const fn new(by_tick: bool, ages: RangeInclusive<u64>) -> Self {
        AgeFilter { by_tick, ages, selected: Vec::new() }
    }

    /// Adds a block that is freed at a position, or that is live at the end of the run.
    pub fn end(&mut self, index: u64, block: &Block, at: Position) {
        let age =
            if self.by_tick { at.tick.saturating_sub(block.tick) } else { at.number.saturating_sub(block.number) };
        if index < MAX_INDEX && self.ages.contains(&age) {
            let word = (index / 64) as usize;
            if word >= self.selected.len() {
                self.selected.resize(word + 1, 0);
            }
            self.selected[word] |= 1 << (index % 64);
        }
    }
}

impl Model for AgeFilter {
    fn free(&mut self, event: &Event, old: Option<&Block>) {
        if let Some(old) = old
            && event.kind == Kind::Free
        {
            self.end(event.index, old, event.position());
        }
    }
}

//! A question about some of the blocks: what the chosen blocks did is handed on, as if there were
//! no others.

use super::live_set::Block;
use crate::event::{Event, Kind};
use crate::replay::Model;
use rustc_hash::FxHashSet;
use std::ops::RangeInclusive;

/// Which blocks are chosen: all conditions must hold.
#[derive(Clone, Debug, Default)]
pub struct Chosen {
    /// Bytes; none: any.
    pub sizes: Option<RangeInclusive<u64>>,
    /// Threads that allocated or last resized them.
    pub threads: Option<FxHashSet<u32>>,
    /// For each site whether its blocks are.
    pub sites: Option<Vec<bool>>,
    /// By allocation index, a bit each: whether their whole life is long or short enough.
    pub aged: Option<Vec<u64>>,
}

impl Chosen {
    /// Whether every block is chosen.
    pub const fn is_all(&self) -> bool {
        self.sizes.is_none() && self.threads.is_none() && self.sites.is_none() && self.aged.is_none()
    }

    /// Whether a block is chosen.
    #[inline]
    pub fn admits(&self, index: u64, block: &Block) -> bool {
        self.sizes.as_ref().is_none_or(|sizes| sizes.contains(&block.size))
            && self.threads.as_ref().is_none_or(|threads| threads.contains(&block.thread))
            && self.sites.as_ref().is_none_or(|sites| sites.get(block.site as usize).copied().unwrap_or(false))
            && self
                .aged
                .as_ref()
                .is_none_or(|aged| aged.get((index / 64) as usize).is_some_and(|word| word & 1 << (index % 64) != 0))
    }
}

/// Hands on what chosen blocks do.
#[derive(Debug)]
pub struct Only<'a, M> {
    /// Which.
    pub chosen: &'a Chosen,
    /// To whom.
    pub model: &'a mut M,
}

impl<M: Model> Model for Only<'_, M> {
    fn alloc(&mut self, event: &Event, block: &Block) {
        if self.chosen.admits(event.index, block) {
            self.model.alloc(event, block);
        }
    }

    fn resize(&mut self, event: &Event, old: Option<&Block>, block: &Block) {
        let old = old.filter(|old| self.chosen.admits(event.index, old));
        match (old, self.chosen.admits(event.index, block)) {
            (old, true) => self.model.resize(event, old, block),
            // It goes on as a block that nobody asked for.
            (Some(old), false) => self.model.free(event, Some(old)),
            (None, false) => {}
        }
    }

    fn free(&mut self, event: &Event, old: Option<&Block>) {
        if let Some(old) = old
            && self.chosen.admits(event.index, old)
        {
            self.model.free(event, Some(old));
        }
    }

    fn unmatched(&mut self, event: &Event) {
        if self.chosen.is_all() {
            self.model.unmatched(event);
        }
    }

    fn inherited(&mut self, block: &Block, gone: Option<Kind>) {
        if self.chosen.is_all() {
            self.model.inherited(block, gone);
        }
    }

    #[inline]
    fn soon(&self, site: u32, freed: bool) {
        self.model.soon(site, freed);
    }
}

/// First pass of a question about ages: which allocations live so long, in the run's unit.
#[derive(Debug)]
pub struct Ages {
    by_tick: bool,
    ages: RangeInclusive<u64>,
    /// A bit for each allocation index.
    pub chosen: Vec<u64>,
}

/// Allocation indexes beyond this are refused: 512 MiB of bits.
const MOST: u64 = 1 << 32;

impl Ages {
    /// Ages in ticks, or in events.
    pub const fn new(by_tick: bool, ages: RangeInclusive<u64>) -> Self {
        Ages { by_tick, ages, chosen: Vec::new() }
    }

    /// A block reached its end, or the run's.
    pub fn ended(&mut self, index: u64, block: &Block, tick: u64, number: u64) {
        let age = if self.by_tick { tick.saturating_sub(block.tick) } else { number.saturating_sub(block.number) };
        if index < MOST && self.ages.contains(&age) {
            let word = (index / 64) as usize;
            if word >= self.chosen.len() {
                self.chosen.resize(word + 1, 0);
            }
            self.chosen[word] |= 1 << (index % 64);
        }
    }
}

impl Model for Ages {
    fn free(&mut self, event: &Event, old: Option<&Block>) {
        if let Some(old) = old
            && event.kind == Kind::Free
        {
            self.ended(event.index, old, event.tick, event.number);
        }
    }
}

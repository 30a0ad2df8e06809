//! When the program was stopped whose memory a core has: the number of events after which the live
//! blocks are those that the allocator's own bookkeeping in the core shows.
//!
//! The core file has no time of it, and the file's own is lost when somebody copies it.

use super::live_set::Block;
use super::{Kind, Model};
use crate::event::Event;
use heaptape_formats::glibc_heap::{Heap, State};

/// How a recorded block fits the memory of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// It is live there.
    Live,
    /// It is free there, or something else.
    Other,
    /// It is in memory that the bookkeeping does not describe.
    Elsewhere,
}

impl Fit {
    /// Compares a block with what a core shows.
    pub(crate) fn of(heap: &Heap, address: u64, size: u64) -> Fit {
        match heap.at(address) {
            // What follows a broken size may be anything.
            Some(chunk) if chunk.state() == State::Unknown => Fit::Elsewhere,
            Some(chunk) if chunk.state() != State::Live => Fit::Other,
            Some(chunk) if chunk.address == address && size <= chunk.usable() => Fit::Live,
            Some(_) => Fit::Other,
            None => {
                let after = heap.ranges.partition_point(|(start, _)| *start <= address);
                let is_within = heap.ranges[..after].last().is_some_and(|(_, end)| address < *end);
                if is_within { Fit::Other } else { Fit::Elsewhere }
            }
        }
    }

    const fn score(self) -> i64 {
        match self {
            Fit::Live => 1,
            Fit::Other => -1,
            Fit::Elsewhere => 0,
        }
    }
}

/// Finds the moment. Of several that fit alike, the last one before the file was written is it.
#[derive(Debug)]
pub(crate) struct CoreMoment<'a> {
    heap: &'a Heap,
    /// When the file was written; the end of time if that is not known.
    written: u64,
    score: i64,
    best: (i64, u64),
    /// The best one until then.
    until: (i64, u64),
}

impl CoreMoment<'_> {
    pub(crate) const fn new(heap: &Heap, written: u64) -> CoreMoment<'_> {
        CoreMoment { heap, written, score: 0, best: (0, 0), until: (0, 0) }
    }

    /// Returns whether the memory showed any block at all.
    pub(crate) const fn is_known(&self) -> bool {
        self.best.0 > 0
    }

    /// Returns the number of events until then.
    pub(crate) const fn events(&self) -> u64 {
        if self.until.0 == self.best.0 { self.until.1 } else { self.best.1 }
    }

    fn add(&mut self, event: &Event, old: Option<&Block>, new: Option<&Block>) {
        let score =
            |block: Option<&Block>| block.map_or(0, |block| Fit::of(self.heap, block.address, block.size).score());
        self.score += score(new) - score(old);
        let now = (self.score, event.number + 1);
        self.best = self.best.max(now);
        if event.tick <= self.written {
            self.until = self.until.max(now);
        }
    }
}

impl Model for CoreMoment<'_> {
    fn alloc(&mut self, event: &Event, block: &Block) {
        self.add(event, None, Some(block));
    }

    fn resize(&mut self, event: &Event, old: Option<&Block>, block: &Block) {
        self.add(event, old, Some(block));
    }

    fn free(&mut self, event: &Event, old: Option<&Block>) {
        self.add(event, old, None);
    }

    fn inherited(&mut self, block: &Block, gone: Option<Kind>) {
        // They were live from the start on, when nobody had counted them.
        if gone.is_none() {
            self.score += Fit::of(self.heap, block.address, block.size).score();
        }
    }
}

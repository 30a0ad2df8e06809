//! Temporary allocations: freed with nothing between, or with at most a given number of events of
//! the same thread. Such blocks could live on the stack, or be reused.

use super::live_set::Block;
use super::row;
use crate::event::Event;
use crate::replay::Model;
use rustc_hash::FxHashMap;

/// The most events between that can be asked for: each free looks so far back.
pub const MAX_EVENTS_BETWEEN: usize = 255;

/// What a site allocated, and how much of it was temporary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Allocations and resizes here.
    pub allocs: u64,
    /// Temporary ones: freed, or resized away.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Of these, those that a resize ended.
    pub resized: u64,
}

/// The latest events of a thread: the indexes that they allocated, 0 for others.
#[derive(Debug, Default)]
struct Recent {
    indexes: Vec<u64>,
    next: usize,
}

/// Counts temporary allocations.
#[derive(Debug)]
pub struct Temporary {
    remembered: usize,
    /// By the site that allocated them.
    pub rows: Vec<Row>,
    threads: FxHashMap<u32, Recent>,
}

impl Temporary {
    /// Freed with at most `between` events of the same thread between (at most [`MOST_BETWEEN`]).
    pub fn within(between: usize) -> Self {
        Temporary { remembered: between.min(MAX_EVENTS_BETWEEN) + 1, rows: Vec::new(), threads: FxHashMap::default() }
    }

    #[inline]
    fn event(&mut self, thread: u32, index: u64, old: Option<&Block>, takes: bool) {
        let recent = self.threads.entry(thread).or_default();
        if let Some(old) = old
            && old.thread == thread
            && recent.indexes.contains(&index)
        {
            let row = row(&mut self.rows, old.site);
            row.blocks += 1;
            row.bytes = row.bytes.saturating_add(old.size);
            row.resized += u64::from(takes);
        }
        // A second end of the same allocation must not find it again.
        recent.indexes.iter_mut().filter(|known| **known == index).for_each(|known| *known = 0);
        let index = if takes { index } else { 0 };
        if recent.indexes.len() < self.remembered {
            recent.indexes.push(index);
        } else {
            recent.indexes[recent.next] = index;
        }
        recent.next = (recent.next + 1) % self.remembered;
    }
}

impl Model for Temporary {
    #[inline]
    fn alloc(&mut self, event: &Event, block: &Block) {
        row(&mut self.rows, block.site).allocs += 1;
        self.event(event.thread, event.index, None, true);
    }

    #[inline]
    fn resize(&mut self, event: &Event, old: Option<&Block>, block: &Block) {
        row(&mut self.rows, block.site).allocs += 1;
        self.event(event.thread, event.index, old, true);
    }

    #[inline]
    fn free(&mut self, event: &Event, old: Option<&Block>) {
        if !event.is_implied() {
            self.event(event.thread, event.index, old, false);
        }
    }
}

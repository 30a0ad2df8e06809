//! Temporary blocks: freed by the thread that allocated them, with at most a given number of its
//! events between. Such blocks could be on the stack, or be reused.

use super::live_set::Block;
use super::row;
use crate::event::Event;
use crate::model::Model;
use rustc_hash::FxHashMap;

/// Maximum number of events between allocation and free that can be chosen. Each free searches this
/// number of events.
pub const MAX_EVENTS_BETWEEN: usize = 255;

/// Number of events between allocation and free by default. A string that grows as text is added to
/// it, and that is copied at the end, lives for a few events of other strings.
pub const DEFAULT_EVENTS_BETWEEN: usize = 16;

/// The numbers of one site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Number of allocations and reallocations.
    pub allocs: u64,
    /// Number of temporary blocks, which were freed or reallocated.
    pub blocks: u64,
    /// Number of bytes of the temporary blocks.
    pub bytes: u64,
    /// Number of temporary blocks that were reallocated.
    pub resized: u64,
}

/// A ring of the latest events of a thread.
#[derive(Debug, Default)]
struct Recent {
    /// Indexes of the allocations, and 0 for other events.
    indexes: Vec<u64>,
    /// Position of the next event in the ring.
    next: usize,
}

/// The model that counts temporary blocks.
#[derive(Debug)]
pub struct Temporary {
    remembered: usize,
    /// The rows by the site of the allocation.
    pub rows: Vec<Row>,
    threads: FxHashMap<u32, Recent>,
}

impl Temporary {
    /// Creates a model for blocks with at most `between` events of the same thread between
    /// allocation and free. The maximum is [`MAX_EVENTS_BETWEEN`].
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
        // A second free of the same allocation must not find it again.
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

//! Numbers by thread, with frees of blocks of other threads.

use super::live_set::Block;
use crate::event::Event;
use crate::model::Model;
use rustc_hash::FxHashMap;

/// The numbers of one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Total number of allocations.
    pub allocs: u64,
    /// Total number of reallocations.
    pub resizes: u64,
    /// Total number of frees.
    pub frees: u64,
    /// Number of frees and reallocations of unknown addresses.
    pub unknown_frees: u64,
    /// Number of bytes of its allocations and reallocations.
    pub bytes: u64,
    /// Number of live blocks that it allocated or reallocated last.
    pub live_blocks: u64,
    /// Number of bytes of these blocks.
    pub live_bytes: u64,
    /// Number of frees of blocks that another thread allocated.
    pub frees_of_others: u64,
    pub first_tick: u64,
    pub last_tick: u64,
}

/// The model that counts by thread.
#[derive(Debug, Default)]
pub struct Threads {
    /// The rows by thread number. This is a map, because the numbers come from a file and may be
    /// sparse.
    pub rows: FxHashMap<u32, Row>,
}

impl Threads {
    /// Returns the rows by thread number, those with the most bytes first.
    pub fn largest_first(&self) -> Vec<(u32, &Row)> {
        let mut rows: Vec<(u32, &Row)> = self.rows.iter().map(|(&number, row)| (number, row)).collect();
        rows.sort_by_key(|&(number, row)| (std::cmp::Reverse(row.bytes), number));
        rows
    }

    #[inline]
    fn row(&mut self, event: &Event) -> &mut Row {
        let row = self.rows.entry(event.thread).or_insert_with(|| Row { first_tick: event.tick, ..Row::default() });
        row.last_tick = event.tick;
        row
    }

    #[inline]
    fn remove(&mut self, old: Option<&Block>) {
        if let Some(old) = old {
            let owner = self.rows.entry(old.thread).or_default();
            owner.live_blocks = owner.live_blocks.saturating_sub(1);
            owner.live_bytes = owner.live_bytes.saturating_sub(old.size);
        }
    }

    #[inline]
    fn add(&mut self, event: &Event, block: &Block) {
        let row = self.row(event);
        row.bytes = row.bytes.saturating_add(block.size);
        row.live_blocks += 1;
        row.live_bytes = row.live_bytes.saturating_add(block.size);
    }
}

impl Model for Threads {
    fn alloc(&mut self, event: &Event, block: &Block) {
        self.row(event).allocs += 1;
        self.add(event, block);
    }

    fn resize(&mut self, event: &Event, old: Option<&Block>, block: &Block) {
        self.row(event).resizes += 1;
        self.remove(old);
        self.add(event, block);
    }

    fn free(&mut self, event: &Event, old: Option<&Block>) {
        if !event.is_implied() {
            let row = self.row(event);
            row.frees += 1;
            row.frees_of_others += u64::from(old.is_some_and(|old| old.thread != event.thread));
        }
        self.remove(old);
    }

    fn unmatched(&mut self, event: &Event) {
        let row = self.row(event);
        row.frees += 1;
        row.unknown_frees += 1;
    }
}

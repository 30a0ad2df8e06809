//! Finds blocks that one allocator allocated and another one freed or resized.

use super::live_set::Block;
use crate::event::{Event, Kind, Span};
use crate::model::Model;
use rustc_hash::FxHashMap;

/// Number of the allocator of each entry: 0 for the C library's, or the library that replaces it.
/// `None` if the entry does not say which allocator it was.
pub type AllocatorOfEntry = [Option<u8>; 256];

/// Two allocators that disagree about a block, with the sites of both calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Crossing {
    /// Number of the allocator that allocated the block.
    pub allocated_by: u8,
    /// Number of the allocator that freed or resized it.
    pub freed_by: u8,
    /// Call site of the allocation.
    pub site: u32,
    /// Call site of the free or resize, or 0 if it was not recorded.
    pub freed_at: u32,
}

/// Blocks and bytes of a crossing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Crossed {
    pub blocks: u64,
    /// Number of bytes in these blocks.
    pub bytes: u64,
}

/// The model that finds them.
#[derive(Debug)]
pub struct Crossings {
    allocators: AllocatorOfEntry,
    span: Span,
    /// The crossings, with their numbers of blocks and bytes.
    pub found: FxHashMap<Crossing, Crossed>,
}

impl Crossings {
    /// Creates a model for a process whose entries belong to these allocators. Calls outside of the
    /// span do not count.
    pub fn new(allocators: AllocatorOfEntry, span: Span) -> Crossings {
        Crossings { allocators, span, found: FxHashMap::default() }
    }

    fn ends(&mut self, event: &Event, old: Option<&Block>) {
        let Some(old) = old else { return };
        let allocator = |entry: u8| self.allocators[usize::from(entry)];
        let (Some(allocated_by), Some(freed_by)) = (allocator(old.entry), allocator(event.entry)) else { return };
        if allocated_by == freed_by || !self.span.contains(event.position()) {
            return;
        }
        let crossing = Crossing { allocated_by, freed_by, site: old.site, freed_at: event.site };
        let crossed = self.found.entry(crossing).or_default();
        crossed.blocks += 1;
        crossed.bytes = crossed.bytes.saturating_add(old.size);
    }
}

impl Model for Crossings {
    fn resize(&mut self, event: &Event, old: Option<&Block>, _: &Block) {
        self.ends(event, old);
    }

    fn free(&mut self, event: &Event, old: Option<&Block>) {
        // An allocation at the address of a block implies its free, by an unknown function.
        if event.kind != Kind::Alloc && !event.is_implied() {
            self.ends(event, old);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocators() -> AllocatorOfEntry {
        let mut all = [None; 256];
        (all[1], all[14], all[20], all[26], all[33]) = (Some(0), Some(1), Some(0), Some(1), Some(1));
        all
    }

    #[test]
    fn only_known_calls_of_different_allocators_cross() {
        let block = |entry| Block { entry, size: 100, site: 3, ..Block::default() };
        let event = |kind, entry| Event { entry, thread: 1, site: 7, number: 5, size: 100, tick: 9, ..Event::of(kind) };
        let mut model = Crossings::new(allocators(), Span { first: 5, ..Span::ALL });
        model.free(&event(Kind::Free, 20), Some(&block(1)));
        model.free(&event(Kind::Free, 26), Some(&block(14)));
        model.resize(&event(Kind::Resize, 33), Some(&block(14)), &block(33));
        // A carried-over block, a free that was not recorded, an unknown block.
        model.free(&event(Kind::Free, 20), Some(&block(42)));
        model.free(&event(Kind::Alloc, 14), Some(&block(1)));
        model.free(&event(Kind::Free, 41), Some(&block(14)));
        model.free(&event(Kind::Free, 26), None);
        // Before the span.
        model.free(&Event { number: 4, ..event(Kind::Free, 20) }, Some(&block(14)));
        assert!(model.found.is_empty(), "{:?}", model.found);
        model.free(&event(Kind::Free, 20), Some(&block(14)));
        model.free(&event(Kind::Free, 20), Some(&block(33)));
        model.resize(&event(Kind::Resize, 33), Some(&block(1)), &block(33));
        let crossing = |allocated_by, freed_by| Crossing { allocated_by, freed_by, site: 3, freed_at: 7 };
        // Entry 33 is that of a block after a resize.
        assert_eq!(model.found[&crossing(1, 0)], Crossed { blocks: 2, bytes: 200 });
        assert_eq!(model.found[&crossing(0, 1)], Crossed { blocks: 1, bytes: 100 });
    }
}

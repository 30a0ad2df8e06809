//! Models: each computes the numbers of one kind of report, from the events that a replay passes to
//! it. They know nothing of files.

pub mod address;
pub mod addresses;
mod ascending;
pub mod axis;
pub mod block_filter;
pub mod by_thread;
pub mod call_sites;
pub mod circles;
pub mod climb;
pub(crate) mod core_moment;
pub mod covered;
pub mod crossings;
pub(crate) mod disguised;
pub mod fragments;
pub mod free_sites;
pub mod leaks;
pub mod lifetimes;
pub mod live_set;
pub(crate) mod narrow;
pub mod neighbors;
pub mod peak;
mod phase;
pub mod reference_blocks;
pub mod references;
pub mod resizes;
pub mod retained;
pub mod run;
pub mod sizes;
pub mod slices;
pub mod snapshots;
pub mod temporary;
pub mod threads;
pub mod timeline;
pub mod totals;
pub mod verdict;

use crate::event::{Event, Kind};
use live_set::{Block, LiveSet};

/// A consumer of events that keeps sums. `old` is the block before the event. It is `None` if the
/// block was inherited by fork, or is unknown because it was allocated before the span or in a
/// damaged chunk.
pub trait Model {
    /// Handles the allocation of a block. `block` is the new block in the live set.
    fn alloc(&mut self, event: &Event, block: &Block) {
        let _ = (event, block);
    }
    /// Handles a reallocation. `block` is the block with its new size and address.
    fn resize(&mut self, event: &Event, old: Option<&Block>, block: &Block) {
        let _ = (event, old, block);
    }
    /// Handles the end of a block. If `event.kind` is not `Free`, the free was not recorded: the
    /// event reuses the index of the block.
    fn free(&mut self, event: &Event, old: Option<&Block>) {
        let _ = (event, old);
    }
    /// Handles a free or reallocation of an unknown address.
    fn unmatched(&mut self, event: &Event) {
        let _ = event;
    }
    /// Handles an inherited block: `gone` is `None` when it appears, and the kind of the event when
    /// it is freed, or reallocated and no longer inherited. The recorder writes an inherited block
    /// only when the process frees or reallocates it. A block of size 0 that is reallocated is of
    /// unknown origin.
    fn inherited(&mut self, block: &Block, gone: Option<Kind>) {
        let _ = (block, gone);
    }
    /// Returns the tick after whose events the model is stopped next. Only a model that is passed
    /// to a replay alone or in a tuple is stopped.
    fn next_stop(&self) -> u64 {
        u64::MAX
    }
    /// Handles the stop, with the blocks that are live after all events up to its tick.
    fn stop(&mut self, live: &LiveSet) {
        let _ = live;
    }
    /// Announces that a block of this site will soon be allocated, or freed if `freed` is set. A
    /// model with much data for each site may read it, so that it is in the CPU's cache then.
    fn prefetch(&self, site: u32, freed: bool) {
        let _ = (site, freed);
    }
}

impl Model for () {}

macro_rules! tuple {
    ($($name:ident)*) => {
        #[allow(non_snake_case)]
        impl<$($name: Model),*> Model for ($(&mut $name,)*) {
            #[inline]
            fn alloc(&mut self, event: &Event, block: &Block) {
                let ($($name,)*) = self;
                $($name.alloc(event, block);)*
            }
            #[inline]
            fn resize(&mut self, event: &Event, old: Option<&Block>, block: &Block) {
                let ($($name,)*) = self;
                $($name.resize(event, old, block);)*
            }
            #[inline]
            fn free(&mut self, event: &Event, old: Option<&Block>) {
                let ($($name,)*) = self;
                $($name.free(event, old);)*
            }
            #[inline]
            fn unmatched(&mut self, event: &Event) {
                let ($($name,)*) = self;
                $($name.unmatched(event);)*
            }
            #[inline]
            fn inherited(&mut self, block: &Block, gone: Option<Kind>) {
                let ($($name,)*) = self;
                $($name.inherited(block, gone);)*
            }
            #[inline]
            fn next_stop(&self) -> u64 {
                let ($($name,)*) = self;
                u64::MAX$(.min($name.next_stop()))*
            }
            fn stop(&mut self, live: &LiveSet) {
                let next = self.next_stop();
                let ($($name,)*) = self;
                $(if $name.next_stop() == next {
                    $name.stop(live);
                })*
            }
            #[inline]
            fn prefetch(&self, site: u32, freed: bool) {
                let ($($name,)*) = self;
                $($name.prefetch(site, freed);)*
            }
        }
    };
}
tuple!(A);
tuple!(A B);
tuple!(A B C);
tuple!(A B C D);

/// Returns the row of a dense number. Adds it, and all before it, on first use.
pub(crate) fn row<T: Default + Clone>(rows: &mut Vec<T>, number: u32) -> &mut T {
    let index = number as usize;
    if index >= rows.len() {
        rows.resize(index + 1, T::default());
    }
    &mut rows[index]
}

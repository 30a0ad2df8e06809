//! Call stacks: the bounds of a thread's own stack, captures with a cache, and the table that
//! numbers stacks.

mod bounds;
pub(crate) mod cache;
#[cfg(heaptape_verify)]
mod check;
pub(crate) mod modules;
mod pages;
mod path_cache;
pub(crate) mod table;
pub(crate) mod unwind;

#[cfg(test)]
pub(crate) use bounds::own_stack_end;
pub(crate) use bounds::{StackBounds, note_main_thread, note_reserved};

use cache::StackCache;
use pages::Pages;
use unwind::Frames;

/// What a thread knows of its stacks. It is used by that thread only.
#[repr(C)]
pub(crate) struct ThreadStacks {
    /// The known part of the thread's own stack.
    pub bounds: StackBounds,
    /// Pages of other stacks that can be read.
    pub other_pages: Pages,
    /// The value of `other_pages` before the current walk. It is a field and not a local variable
    /// because the walk may run on a very small stack.
    pages_before: Pages,
    /// The last captures of this thread.
    pub cache: StackCache,
    /// The frames of a capture that interrupted another capture.
    deferred_frames: Frames,
}

impl ThreadStacks {
    /// Initializes the stacks of a new thread, whose first event is at `sp`, in memory that may
    /// hold those of an earlier one.
    pub(crate) fn reset(&mut self, sp: usize, tid: u32) {
        self.bounds = StackBounds::new(sp, tid);
        self.other_pages = Pages::new();
        self.cache.forget();
    }

    /// Returns whether `sp` is on the thread's own stack, which can then be read from `sp` up. The
    /// known part of the stack is extended page by page if `sp` is deeper than ever before.
    #[inline(always)]
    pub(crate) fn is_own(&mut self, sp: usize) -> bool {
        self.bounds.contains(sp) || self.bounds.grow(sp, &self.other_pages)
    }
}

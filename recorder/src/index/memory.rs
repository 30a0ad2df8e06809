//! The memory of segments. An operation on a live block goes to another page of the table nearly
//! each time, and a large table has more pages than the processor knows the translations of. So the
//! segments of a large table share huge pages, where the system has them.

use super::Groups;
use crate::huge_pages::ADVICE;
use crate::{clock, sys};
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Number of segments that have memory of their own, so that a small table stays small.
const SMALL: usize = 16;
/// Number of bytes of a huge page.
const HUGE: usize = 2 << 20;
/// Number of segments in a huge page, at most the bits of a word.
const SLOTS: usize = HUGE / size_of::<Groups>();
const LAYOUT: Layout = match Layout::from_size_align(HUGE, HUGE) {
    Ok(layout) => layout,
    Err(_) => panic!("the alignment is a power of two"),
};

/// A huge page, or the same bytes in small pages.
#[derive(Debug)]
struct HugePage {
    memory: NonNull<Groups>,
    /// One bit for each free slot. Only the owning [`Memory`] clears bits.
    free: AtomicU64,
}

// SAFETY: a slot is used by the one segment that has taken it, and the word is atomic.
unsafe impl Send for HugePage {}
// SAFETY: as above.
unsafe impl Sync for HugePage {}

impl HugePage {
    fn new() -> HugePage {
        // SAFETY: the layout has a size.
        let memory = unsafe { alloc(LAYOUT) };
        let Some(memory) = NonNull::new(memory.cast()) else { handle_alloc_error(LAYOUT) };
        if ADVICE.wants_huge() {
            sys::prefer_huge_pages(memory.cast(), HUGE);
            let begun = clock::thread_time();
            // SAFETY: the memory belongs to this page, and nothing refers to it yet.
            unsafe { memory.cast::<u8>().write_volatile(0) };
            ADVICE.note_cost(clock::thread_time().saturating_sub(begun));
        }
        HugePage { memory, free: AtomicU64::new((1 << SLOTS) - 1) }
    }

    /// Takes a free slot.
    fn take(&self) -> Option<usize> {
        let slot = self.free.load(Acquire).trailing_zeros() as usize;
        (slot < SLOTS).then(|| self.free.fetch_and(!(1 << slot), Relaxed)).map(|_| slot)
    }
}

impl Drop for HugePage {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout; no segment has a slot, since each holds the page.
        unsafe { dealloc(self.memory.as_ptr().cast(), LAYOUT) }
    }
}

/// Where one table allocates its segments.
#[derive(Debug, Default)]
pub struct Memory {
    small: usize,
    pages: Vec<Arc<HugePage>>,
}

/// The owned memory of one segment.
#[derive(Debug)]
pub struct SegmentMemory {
    groups: NonNull<Groups>,
    /// The page in which it is a slot; else it is a box.
    page: Option<Arc<HugePage>>,
}

// SAFETY: it owns its groups, which are integers, as a box does.
unsafe impl Send for SegmentMemory {}
// SAFETY: as above.
unsafe impl Sync for SegmentMemory {}

impl Memory {
    /// Allocates an empty segment.
    pub fn empty(&mut self) -> SegmentMemory {
        if self.small < SMALL {
            self.small += 1;
            let groups = Box::new(Groups::default());
            return SegmentMemory { groups: NonNull::from(Box::leak(groups)), page: None };
        }
        let taken = self.pages.iter().rev().find_map(|page| Some((page, page.take()?)));
        let (page, slot) = match taken {
            Some((page, slot)) => (Arc::clone(page), slot),
            None => {
                let page = Arc::new(HugePage::new());
                self.pages.push(Arc::clone(&page));
                // A new page has free slots.
                let slot = page.take().unwrap_or(0);
                (page, slot)
            }
        };
        // SAFETY: the slot is inside the page, and no other segment has it. All zeros are valid
        // groups.
        let groups = unsafe {
            let groups = page.memory.add(slot);
            groups.write_bytes(0, 1);
            groups
        };
        SegmentMemory { groups, page: Some(page) }
    }

    /// Returns the number of huge pages.
    #[cfg(test)]
    pub fn pages(&self) -> usize {
        self.pages.len()
    }

    /// Allocates a copy of a segment.
    pub fn copy(&mut self, other: &Groups) -> SegmentMemory {
        let mut copy = self.empty();
        copy.0.copy_from_slice(&other.0);
        copy
    }
}

impl Deref for SegmentMemory {
    type Target = Groups;

    #[inline(always)]
    fn deref(&self) -> &Groups {
        // SAFETY: valid groups that this value owns.
        unsafe { self.groups.as_ref() }
    }
}

impl DerefMut for SegmentMemory {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Groups {
        // SAFETY: valid groups that this value owns.
        unsafe { self.groups.as_mut() }
    }
}

impl Drop for SegmentMemory {
    fn drop(&mut self) {
        let Some(page) = &self.page else {
            // SAFETY: without a page it is a leaked box, which nothing else refers to.
            drop(unsafe { Box::from_raw(self.groups.as_ptr()) });
            return;
        };
        // SAFETY: the pointer is to a slot of this page.
        let slot = unsafe { self.groups.offset_from(page.memory) };
        page.free.fetch_or(1 << slot, Release);
    }
}

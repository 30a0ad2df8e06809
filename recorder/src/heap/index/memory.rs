//! The memory of slabs. An operation on a live block often goes to another page of the table than
//! the one before, and a large table has more pages than the processor knows the translations of.
//! So the slabs of a large table share huge pages, where the system has them.

use super::set::Slab;
use crate::os::clock;
use crate::os::huge_pages::ADVICE;
use crate::os::sys;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Number of slabs that have memory of their own, so that a small table stays small.
const SMALL: usize = 16;
/// Number of bytes of a huge page.
const HUGE: usize = 2 << 20;
/// Number of slabs in a huge page, at most the bits of a word.
const SLOTS: usize = HUGE / size_of::<Slab>();
const LAYOUT: Layout = match Layout::from_size_align(HUGE, HUGE) {
    Ok(layout) => layout,
    Err(_) => panic!("the alignment is a power of two"),
};

/// A huge page, or the same bytes in small pages.
#[derive(Debug)]
struct HugePage {
    memory: NonNull<Slab>,
    /// One bit for each free slot. Only the owning [`Memory`] clears bits.
    free: AtomicU64,
}

// SAFETY: a slot is used by the one slab that has taken it, and the word is atomic.
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
        // SAFETY: allocated with this layout; no slab has a slot, since each holds the page.
        unsafe { dealloc(self.memory.as_ptr().cast(), LAYOUT) }
    }
}

/// Where one table allocates its slabs.
#[derive(Debug, Default)]
pub(super) struct Memory {
    small: usize,
    pages: Vec<Arc<HugePage>>,
}

#[derive(Debug)]
pub(crate) struct SlabMemory {
    slab: NonNull<Slab>,
    /// The page in which it is a slot; else it is a box.
    page: Option<Arc<HugePage>>,
}

// SAFETY: it owns its slab, which is made of integers, as a box does.
unsafe impl Send for SlabMemory {}
// SAFETY: as above.
unsafe impl Sync for SlabMemory {}

impl Memory {
    pub(super) fn empty(&mut self) -> SlabMemory {
        if self.small < SMALL {
            self.small += 1;
            let slab = Box::new(Slab::default());
            return SlabMemory { slab: NonNull::from(Box::leak(slab)), page: None };
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
        // SAFETY: the slot is inside the page, and no other slab has it. All zeros are a
        // valid slab.
        let slab = unsafe {
            let slab = page.memory.add(slot);
            slab.write_bytes(0, 1);
            slab
        };
        SlabMemory { slab, page: Some(page) }
    }

    /// Returns the number of huge pages.
    #[cfg(test)]
    pub(super) fn pages(&self) -> usize {
        self.pages.len()
    }

    pub(super) fn copy(&mut self, other: &Slab) -> SlabMemory {
        let mut copy = self.empty();
        copy.copy_from(other);
        copy
    }
}

impl Deref for SlabMemory {
    type Target = Slab;

    #[inline(always)]
    fn deref(&self) -> &Slab {
        // SAFETY: a valid slab that this value owns.
        unsafe { self.slab.as_ref() }
    }
}

impl DerefMut for SlabMemory {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Slab {
        // SAFETY: a valid slab that this value owns.
        unsafe { self.slab.as_mut() }
    }
}

impl Drop for SlabMemory {
    fn drop(&mut self) {
        let Some(page) = &self.page else {
            // SAFETY: without a page it is a leaked box, which nothing else refers to.
            drop(unsafe { Box::from_raw(self.slab.as_ptr()) });
            return;
        };
        // SAFETY: the pointer is to a slot of this page.
        let slot = unsafe { self.slab.offset_from(page.memory) };
        page.free.fetch_or(1 << slot, Release);
    }
}

//! The memory of the command. Tables of many blocks or call sites are used at random, and a table
//! of many pages is slower than one of few: the processor does not keep the translations of all
//! pages. So huge pages are requested for large allocations, which the kernel may ignore.
//!
//! A virtual machine that returns free memory to its host gets a huge page back piece by piece, at
//! 3 ms of CPU time instead of 0.2. Where that is seen, only some pages of the table of live
//! blocks, which grows piece by piece, are huge, so that it is seen when they have become cheap.

use crate::os::sys;
use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// Least number of bytes of an allocation in huge pages: two of them, so that alignment wastes less
/// than half.
const LARGE: usize = 4 << 20;

/// The system's allocator, which requests huge pages for allocations of 4 MiB and more.
#[derive(Debug)]
pub struct HugePages;

/// Number of bytes of a huge page.
const HUGE: usize = 2 << 20;

/// CPU time of a huge page that the kernel only has to clear, with a margin.
const CHEAP: Duration = Duration::from_millis(1);
/// Maximum number of pages that are not huge, after an expensive one.
const MAX_SKIPPED: u32 = 64;

/// Whether the next page should be a huge one.
#[derive(Debug, Default)]
pub(crate) struct Advice {
    /// Number of pages that are still to be skipped, and of those that the next expensive page
    /// causes to be skipped.
    skipped: AtomicU32,
    next: AtomicU32,
}

/// What this process has seen.
pub(crate) static ADVICE: Advice = Advice { skipped: AtomicU32::new(0), next: AtomicU32::new(1) };

impl Advice {
    /// Returns whether the page that is about to be used should be huge.
    pub(crate) fn wants_huge(&self) -> bool {
        self.skipped.fetch_update(Relaxed, Relaxed, |pages| pages.checked_sub(1)).is_err()
    }

    /// Notes the CPU time of the first use of a huge page.
    pub(crate) fn note_cost(&self, cost: Duration) {
        if cost <= CHEAP {
            return self.next.store(1, Relaxed);
        }
        let next = self.next.load(Relaxed);
        self.skipped.store(next, Relaxed);
        self.next.store((2 * next).min(MAX_SKIPPED), Relaxed);
    }
}

/// Requests huge pages for those that are wholly inside an allocation.
#[inline]
fn prefer(memory: *mut u8, bytes: usize) {
    if bytes >= LARGE {
        let before = memory.align_offset(HUGE);
        let inside = bytes.saturating_sub(before) / HUGE * HUGE;
        if let Some(first) = NonNull::new(memory).and_then(|_| NonNull::new(memory.wrapping_add(before))) {
            sys::prefer_huge_pages(first, inside);
        }
    }
}

// Not inlined: the functions that call these are compiled with the command, which is not optimized.
//
// SAFETY: all memory is the system allocator's; advice changes neither its content nor its use.
unsafe impl GlobalAlloc for HugePages {
    #[inline(never)]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller ensures.
        let memory = unsafe { System.alloc(layout) };
        prefer(memory, layout.size());
        memory
    }

    #[inline(never)]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller ensures.
        let memory = unsafe { System.alloc_zeroed(layout) };
        prefer(memory, layout.size());
        memory
    }

    #[inline(never)]
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as the caller ensures.
        let memory = unsafe { System.realloc(memory, layout, size) };
        prefer(memory, size);
        memory
    }

    #[inline(never)]
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as the caller ensures.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Returns whether huge pages are requested for the page at an address, by `/proc/self/smaps`.
    fn are_requested(address: usize) -> bool {
        let smaps = fs::read_to_string("/proc/self/smaps").expect("the own mappings");
        let mut is_inside = false;
        smaps.lines().any(|line| {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let range = range.map(|(start, end)| [start, end].map(|text| usize::from_str_radix(text, 16)));
            if let Some([Ok(start), Ok(end)]) = range {
                is_inside = (start..end).contains(&address);
            }
            is_inside && line.starts_with("VmFlags:") && line.split(' ').any(|flag| flag == "hg")
        })
    }

    #[test]
    fn expensive_pages_are_tried_again_and_again() {
        let advice = Advice { next: AtomicU32::new(1), ..Advice::default() };
        let huge_of = |pages: usize, cost| {
            let tries = (0..pages).filter(|_| {
                let is_huge = advice.wants_huge();
                if is_huge {
                    advice.note_cost(cost);
                }
                is_huge
            });
            tries.count()
        };
        assert_eq!(huge_of(100, Duration::from_micros(200)), 100);
        // Pages 0, 2, 5, 10, 19, 36, 69, 134, 199, ….
        assert_eq!(huge_of(200, 3 * CHEAP), 9);
        assert_eq!(huge_of(200, Duration::ZERO), 200 - MAX_SKIPPED as usize);
        assert_eq!(huge_of(100, Duration::ZERO), 100);
    }

    /// Huge pages are requested for an allocation from the size on that counts as large, also when
    /// it grows to that size, and its bytes stay.
    #[test]
    fn large_allocations_are_in_huge_pages() {
        let is_supported = fs::exists("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or(false);
        let small = Layout::from_size_align(LARGE / 4, 16).expect("a layout");
        let large = Layout::from_size_align(2 * LARGE, 16).expect("a layout");
        // SAFETY: each block is freed once with its layout, and used within its size.
        unsafe {
            let block = HugePages.alloc(small);
            assert!(!are_requested(block as usize + LARGE / 8));
            block.write_bytes(7, small.size());
            let block = HugePages.realloc(block, small, large.size());
            assert_eq!(are_requested(block as usize + LARGE), is_supported);
            assert!((0..small.size()).all(|index| *block.add(index) == 7));
            HugePages.dealloc(block, large);
            let block = HugePages.alloc_zeroed(large);
            assert_eq!(are_requested(block as usize + LARGE), is_supported);
            assert!((0..large.size()).all(|index| *block.add(index) == 0));
            HugePages.dealloc(block, large);
        }
    }
}

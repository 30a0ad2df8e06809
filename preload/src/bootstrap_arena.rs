//! A static arena that serves the calls made while the next allocator is being looked up, by
//! another thread or a signal handler. It usually stays empty. Blocks are never freed. Each block
//! is preceded by its size.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

pub(crate) const BYTES: usize = 64 << 10;
const HEADER: usize = 16;

#[repr(C, align(4096))]
pub(crate) struct Arena(UnsafeCell<[u8; BYTES]>);
// SAFETY: bytes are handed out once each by the atomic index below; the arena itself never reads or
// writes a block.
unsafe impl Sync for Arena {}

pub(crate) static ARENA: Arena = Arena(UnsafeCell::new([0; BYTES]));
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Returns whether a pointer points into the arena.
#[inline(always)]
pub(crate) fn owns(pointer: *const u8) -> bool {
    (pointer as usize).wrapping_sub(ARENA.0.get() as usize) < BYTES
}

/// Returns `size` zeroed bytes at a multiple of `align` (a power of two), or null if the arena is
/// full.
#[inline(never)]
pub(crate) fn alloc(size: usize, align: usize) -> *mut u8 {
    let align = align.clamp(HEADER, 4096);
    let base = ARENA.0.get() as usize;
    let mut start = 0;
    let found = NEXT.fetch_update(Relaxed, Relaxed, |next| {
        start = (base + next + HEADER).next_multiple_of(align) - base;
        let end = start.checked_add(size)?.checked_next_multiple_of(HEADER)?;
        (end <= BYTES).then_some(end)
    });
    if found.is_err() {
        return core::ptr::null_mut();
    }
    let block = (base + start) as *mut u8;
    // SAFETY: [start - HEADER, end) is inside the arena and was handed to this call alone: the
    // index never goes back.
    unsafe { block.sub(HEADER).cast::<usize>().write(size) };
    block
}

/// Returns the requested size of a block of the arena.
///
/// # Safety
/// `block` must come from [`alloc`].
pub(crate) unsafe fn size(block: *const u8) -> usize {
    // SAFETY: `alloc` wrote the size in front of the block.
    unsafe { block.sub(HEADER).cast::<usize>().read() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_apart_aligned_and_sized() {
        let (a, b, c) = (alloc(3, 1), alloc(100, 64), alloc(0, 4096));
        assert!(owns(a) && owns(b) && owns(c) && !owns(&raw const NEXT as *const u8));
        assert!(
            (a as usize).is_multiple_of(16) && (b as usize).is_multiple_of(64) && (c as usize).is_multiple_of(4096)
        );
        assert!(b as usize >= a as usize + 3);
        // SAFETY: both came from `alloc`.
        unsafe { assert_eq!((size(a), size(b)), (3, 100)) };
        assert!(alloc(BYTES, 1).is_null());
    }
}

//! A static arena that serves the calls made while the real allocator is being looked up: another
//! thread's, or a signal handler's. It mostly stays empty. Blocks are never given back; each has
//! its size in front.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes of the arena.
pub const BYTES: usize = 64 << 10;
const HEAD: usize = 16;

/// The arena.
#[repr(C, align(4096))]
pub struct Arena(UnsafeCell<[u8; BYTES]>);
// SAFETY: bytes are handed out once each by the atomic index below; the arena itself never reads or
// writes a block.
unsafe impl Sync for Arena {}

/// Where the blocks lie.
pub static ARENA: Arena = Arena(UnsafeCell::new([0; BYTES]));
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Whether a pointer came from here.
#[inline(always)]
pub fn owns(pointer: *const u8) -> bool {
    (pointer as usize).wrapping_sub(ARENA.0.get() as usize) < BYTES
}

/// Zeroed bytes at a multiple of `align` (a power of two), or null when the arena is used up.
pub fn take(size: usize, align: usize) -> *mut u8 {
    let align = align.clamp(HEAD, 4096);
    let base = ARENA.0.get() as usize;
    let mut start = 0;
    let found = NEXT.fetch_update(Relaxed, Relaxed, |next| {
        start = (base + next + HEAD).next_multiple_of(align) - base;
        let end = start.checked_add(size)?.checked_next_multiple_of(HEAD)?;
        (end <= BYTES).then_some(end)
    });
    if found.is_err() {
        return core::ptr::null_mut();
    }
    let block = (base + start) as *mut u8;
    // SAFETY: [start - HEAD, end) lies inside the arena and was handed to this call alone: the
    // index never goes back.
    unsafe { block.sub(HEAD).cast::<usize>().write(size) };
    block
}

/// Requested bytes of a block from here.
///
/// # Safety
/// `owns(block)`, and `block` came from [`take`].
pub unsafe fn size(block: *const u8) -> usize {
    // SAFETY: `take` wrote the size in front of the block.
    unsafe { block.sub(HEAD).cast::<usize>().read() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_apart_aligned_and_sized() {
        let (a, b, c) = (take(3, 1), take(100, 64), take(0, 4096));
        assert!(owns(a) && owns(b) && owns(c) && !owns(&raw const NEXT as *const u8));
        assert!(
            (a as usize).is_multiple_of(16) && (b as usize).is_multiple_of(64) && (c as usize).is_multiple_of(4096)
        );
        assert!(b as usize >= a as usize + 3);
        // SAFETY: both came from `take`.
        unsafe { assert_eq!((size(a), size(b)), (3, 100)) };
        assert!(take(BYTES, 1).is_null());
    }
}

//! The thread pointer (`tpidr_el0`), and where libcs keep the thread's number.

use core::arch::asm;

/// Where libcs keep the number, in bytes from the thread pointer, which is behind `struct pthread`:
/// musl 1.2 and 1.1, glibc 2.31 to 2.41.
pub(crate) const NUMBER_OFFSETS: [usize; 4] =
    [(-168isize) as usize, (-160isize) as usize, (-1584isize) as usize, (-1568isize) as usize];

/// Returns the thread pointer, or 0 if the thread has none yet.
pub(crate) fn ask() -> usize {
    let pointer: usize;
    // SAFETY: reads a register.
    unsafe { asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, nomem, preserves_flags)) };
    pointer
}

/// Returns the thread pointer.
///
/// # Safety
/// None: without one it is 0.
#[inline(always)]
pub(crate) unsafe fn get() -> usize {
    ask()
}

//! The thread pointer (`fs`), and where libcs keep the thread's number.

use super::syscall;
use core::arch::asm;

/// Where libcs keep the number, in bytes from the thread pointer: musl 1.2, musl 1.1, glibc
/// (`struct pthread`).
pub(crate) const NUMBER_OFFSETS: [usize; 3] = [48, 56, 720];

/// Returns the thread pointer, or 0 if the thread has none yet.
pub(crate) fn ask() -> usize {
    const ARCH_GET_FS: usize = 0x1003;
    let mut pointer = 0usize;
    // SAFETY: the kernel writes one word to the variable.
    unsafe { syscall(libc::SYS_arch_prctl, [ARCH_GET_FS, &raw mut pointer as usize, 0, 0, 0, 0]) };
    pointer
}

/// Returns the thread pointer.
///
/// # Safety
/// The thread must have one.
#[inline(always)]
pub(crate) unsafe fn get() -> usize {
    let pointer: usize;
    // SAFETY: the psABI keeps the thread pointer's own value at fs:0.
    unsafe { asm!("mov {0}, qword ptr fs:[0]", out(reg) pointer, options(nostack, readonly, preserves_flags)) };
    pointer
}

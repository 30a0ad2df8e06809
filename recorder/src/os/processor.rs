//! What depends on the processor, with one interface: addresses and pages, the timestamp counter,
//! prefetches; registers of stopped threads and the frames by which they return; system calls and
//! functions that they run for us; jumps into functions, and the code that they lead to. Another
//! processor needs another folder with the same items. The library's part is `preload/src/arch`.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
use aarch64 as own;
#[cfg(target_arch = "x86_64")]
use x86_64 as own;

pub use own::ADDRESS_BITS;
pub(crate) use own::{
    Extended, HAS_DATA_ABOVE, MACHINE, MACHINE_NAME, NOTES_CALLS, OF_SYMBOL, RELATIVE, RETURN_ADDRESS, Registers, code,
    frame, moved, store_barrier,
};

use nix::unistd;

/// What a thread is to have when it is back.
#[derive(Clone, Debug)]
pub(crate) struct Home {
    /// The general registers of the thread when it was stopped.
    pub registers: Registers,
    /// The floating-point and vector registers of the thread.
    pub extended: Extended,
    /// The signal mask of the thread: bit N-1 is signal N.
    pub mask: u64,
}

/// The system call in which a thread waited before its stop was requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub number: i64,
    pub arguments: [u64; 6],
    /// Address of the instruction after it.
    pub next: u64,
}

/// Returns the size of this kernel's pages in bytes.
pub fn page_bytes() -> u64 {
    // The vector that the kernel gave to this process, which libc only passes on.
    unistd::sysconf(unistd::SysconfVar::PAGE_SIZE).ok().flatten().map_or(wire::area::PAGE, |bytes| bytes as u64)
}

/// Returns the CPU's timestamp counter. It is not read before all preceding instructions are
/// complete.
#[cfg(target_arch = "x86_64")]
pub fn tsc() -> u64 {
    // SAFETY: both instructions exist on every x86-64 CPU.
    unsafe {
        core::arch::x86_64::_mm_lfence();
        core::arch::x86_64::_rdtsc()
    }
}

/// Returns the frequency of the counter in Hz.
#[cfg(target_arch = "aarch64")]
pub(crate) fn counter_frequency() -> u64 {
    let frequency;
    // SAFETY: Linux lets programs read this register.
    unsafe {
        core::arch::asm!("mrs {}, cntfrq_el0", out(reg) frequency, options(nomem, nostack, preserves_flags));
    }
    frequency
}

/// Returns the virtual counter, shifted as in the library (`preload/src/arch/aarch64`). It is not
/// read before all preceding instructions are complete.
#[cfg(target_arch = "aarch64")]
pub fn tsc() -> u64 {
    let ticks: u64;
    // SAFETY: Linux lets programs read this register.
    unsafe {
        core::arch::asm!("isb", "mrs {}, cntvct_el0", out(reg) ticks, options(nostack, preserves_flags));
    }
    ticks << (counter_frequency().leading_zeros().wrapping_sub(33) & 63)
}

/// Prefetches the cache line of a value that will soon be needed.
#[inline(always)]
pub fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint about an address and reads nothing.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(std::ptr::from_ref(value).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

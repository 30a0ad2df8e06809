//! What depends on the processor: addresses and pages, the timestamp counter, prefetches. The
//! library's part is `preload/src/arch`.

use nix::unistd;

/// Number of bits of an address that a program gets unless it asks for more.
pub const ADDRESS_BITS: u32 = if cfg!(target_arch = "aarch64") { 48 } else { 47 };

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

//! Whether an address is in code: what a guess has found may be anything, and must not be taken for
//! a return address. No system call is made for what is known.
//!
//! Objects describe their own code. For all other memory there is a list of the ranges that can be
//! executed: read from the kernel's map when the first unknown address comes up, and extended by
//! the hooks of `mmap` and `mprotect`. A range stays in the list after it is unmapped. That only
//! lets its bytes be looked at, and the kernel does that.

use crate::elf::maps;
use crate::sys::Need;
use core::cell::UnsafeCell;
use core::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

/// The most ranges in the list.
const MAX_RANGES: usize = 128;

/// The ranges that can be executed, each with its first address and the first one after it.
struct Ranges {
    list: [[AtomicU64; 2]; MAX_RANGES],
    used: AtomicUsize,
    /// Whether some did not fit. Then any address may be in code.
    has_overflowed: AtomicBool,
    is_claimed: AtomicBool,
    /// The space for reading the map, which is too large for the small stacks that a hook may run
    /// on.
    text: UnsafeCell<[u8; maps::TEXT]>,
}

// SAFETY: only the thread that has set `is_claimed` uses the text; all else is atomics.
unsafe impl Sync for Ranges {}

static RANGES: Ranges = Ranges {
    list: [const { [const { AtomicU64::new(0) }; 2] }; MAX_RANGES],
    used: AtomicUsize::new(0),
    has_overflowed: AtomicBool::new(false),
    is_claimed: AtomicBool::new(false),
    text: UnsafeCell::new([0; maps::TEXT]),
};

/// Number of times that something was not found.
static MISSES: AtomicU32 = AtomicU32::new(0);

/// Returns whether it is time to ask the kernel again about what was not found: program code may
/// map memory without our hooks. The calls become ever rarer.
pub(crate) fn is_time_to_ask() -> bool {
    let misses = MISSES.fetch_add(1, Relaxed).wrapping_add(1);
    misses == 1 || (misses >= 256 && misses.is_power_of_two())
}

impl Ranges {
    /// Returns whether one has an address from `start` to before `end`.
    #[inline(never)]
    fn overlap(&self, start: u64, end: u64) -> bool {
        let used = self.used.load(Acquire).min(MAX_RANGES);
        self.list[..used].iter().any(|[first, last]| start < last.load(Relaxed) && first.load(Relaxed) < end)
    }

    /// Adds a range. The caller has claimed the list.
    fn add(&self, start: u64, end: u64) {
        let used = self.used.load(Relaxed);
        for [first, last] in &self.list[..used] {
            if start <= last.load(Relaxed) && first.load(Relaxed) <= end {
                first.fetch_min(start, Relaxed);
                last.fetch_max(end, Relaxed);
                return;
            }
        }
        match self.list.get(used) {
            Some([first, last]) => {
                first.store(start, Relaxed);
                last.store(end, Relaxed);
                self.used.store(used + 1, Release);
            }
            None => self.has_overflowed.store(true, Relaxed),
        }
    }

    /// Reads the kernel's map, unless another thread does so, or the system calls are forbidden.
    #[cold]
    #[inline(never)]
    fn read(&self) {
        if !Need::ATTACH.is_allowed() || self.is_claimed.swap(true, Acquire) {
            return;
        }
        // SAFETY: `is_claimed` was set here.
        maps::code(unsafe { &mut *self.text.get() }, &mut |start, end| self.add(start, end));
        self.is_claimed.store(false, Release);
    }
}

/// Returns whether memory outside of all objects can be executed.
pub(crate) fn is_generated(address: u64) -> bool {
    let holds = || RANGES.overlap(address, address + 1) || RANGES.has_overflowed.load(Relaxed);
    holds()
        || (is_time_to_ask() && {
            RANGES.read();
            holds()
        })
}

/// Notes that the program can execute a range of memory from now on.
#[inline(never)]
pub(crate) fn mapped(start: u64, bytes: u64) {
    if RANGES.used.load(Acquire) == 0 || RANGES.is_claimed.swap(true, Acquire) {
        return;
    }
    RANGES.add(start, start.saturating_add(bytes));
    RANGES.is_claimed.store(false, Release);
}

/// Returns whether a range of memory has some that could be executed.
pub(crate) fn is_in(start: u64, bytes: u64) -> bool {
    RANGES.overlap(start, start.saturating_add(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_code_from_when_it_can_be_executed() {
        let here = memory_is_code_from_when_it_can_be_executed as fn() as usize as u64;
        assert!(is_generated(here), "this program's code is in the map");
        let local = 0u8;
        assert!(!is_generated(&raw const local as u64) && !is_generated(0x7000));
        mapped(0x7000, 0x1000);
        assert!(is_generated(0x7fff) && !is_generated(0x8000) && is_in(0x6000, 0x1001) && !is_in(0x6000, 0x1000));
        mapped(0x8000, 0x1000);
        assert!(is_generated(0x8000));
        // Claimed by a thread that a signal interrupted: nothing waits.
        RANGES.is_claimed.store(true, Relaxed);
        mapped(0x20_0000, 0x1000);
        RANGES.is_claimed.store(false, Relaxed);
        assert!(!is_in(0x20_0000, 0x1000));
    }
}

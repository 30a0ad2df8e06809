//! The memory of a stack, as far as it may be read.

use crate::stack::bounds;

/// The memory of a stack, as far as it may be read.
pub(crate) trait Memory {
    /// Whether this is the thread's own stack, all of which may be read in any order.
    const IS_OWN: bool;
    /// Returns the word at an address from the unwind tables, or `None` if it may not be read or is
    /// not aligned.
    fn word(&mut self, address: u64) -> Option<u64>;
    /// Returns the word at an address that a register happens to hold.
    fn guessed(&mut self, address: u64) -> Option<u64>;
    /// Returns whether a stack pointer is where a thread's first function has it.
    fn is_near_end(&self, _sp: u64) -> bool {
        false
    }
    /// Returns whether a stack pointer is where the code that starts a program has it. Some libcs
    /// describe that code by no unwind data (musl's `__libc_start_main`).
    fn is_at_start(&self, _sp: u64) -> bool {
        false
    }
    /// Notes that the walk goes on at `sp` with what a signal handler interrupted, from the
    /// thread's alternate stack for handlers or on the same stack.
    fn interrupted(&mut self, _sp: u64, _is_on_alternate_stack: bool) {}
    /// Returns whether the words of remembered frames may be read here.
    #[inline(always)]
    fn may_join(&self) -> bool {
        true
    }
    /// Returns the word at the slot of a frame that was called from `sp` or above, and the word
    /// where that frame saved the frame pointer.
    #[inline(always)]
    fn pair(&mut self, slot: u64, saved: u64, sp: u64) -> Option<(u64, u64)> {
        if slot < sp {
            return None;
        }
        Some((self.word(slot)?, self.word(saved)?))
    }
}

/// The thread's own stack between two addresses, all of it mapped.
pub(crate) struct OwnStack {
    /// The lowest address that may be read.
    pub low: u64,
    /// The first address after it.
    pub end: u64,
}

impl Memory for OwnStack {
    const IS_OWN: bool = true;

    #[inline(always)]
    fn word(&mut self, address: u64) -> Option<u64> {
        if address < self.low || address >= self.end || address & 7 != 0 {
            return None;
        }
        // SAFETY: [low, end) is the thread's own stack from the hook's frame up, known to be mapped
        // (`StackBounds`), and a multiple of 8 below `end`, itself one, leaves eight bytes.
        Some(unsafe { (address as *const u64).read_volatile() })
    }

    fn guessed(&mut self, address: u64) -> Option<u64> {
        self.word(address)
    }

    fn is_near_end(&self, sp: u64) -> bool {
        // Above it are at most the thread's own variables.
        const BYTES: u64 = 4096;
        sp <= self.end && self.end - sp < BYTES
    }

    fn is_at_start(&self, sp: u64) -> bool {
        // Two functions below `_start`. glibc's three take more, and are described.
        const BYTES: u64 = 256;
        let first = bounds::program_arguments(self.low, self.end);
        sp <= first && first - sp < BYTES
    }

    #[inline(always)]
    fn pair(&mut self, slot: u64, saved: u64, sp: u64) -> Option<(u64, u64)> {
        if slot < sp || slot >= self.end || slot & 7 != 0 || saved < self.low {
            return None;
        }
        // SAFETY: low <= saved <= slot < end, multiples of 8: words of the thread's own stack, all
        // of it mapped.
        unsafe { Some(((slot as *const u64).read_volatile(), (saved as *const u64).read_volatile())) }
    }
}

//! Stacks other than the thread's own: of coroutines, split stacks, signal handlers. They come and
//! go with the program's memory, and nothing shows where they end.
//!
//! The following is read without asking the kernel, and cannot fault:
//! * the thread's own stack, as far as it is known to be mapped;
//! * the word where the unwind tables of a live frame locate its return address or a saved
//!   register, in a page that an earlier walk read too. A page is kept ([`Pages`]) if a walk that
//!   read it came to the end of the stack. Memory beyond the end of a stack, or where a frame
//!   without tables points, is never kept.
//!
//! Everything else is checked with the kernel: a page that a live frame is in, before its first
//! word is read, and words at a guessed address, in each walk. The kernel copies them, since
//! another thread may unmap it at any moment.
//!
//! What a signal handler on the alternate stack interrupted is guessed, unless it is the thread's
//! own stack. A handler that is left by a jump may lose its signal frame to a later signal on the
//! same alternate stack, whose frame then names a stack that may be gone. A handler on the stack
//! that it interrupted shows that this stack is there.

use super::memory::Memory;
use crate::arch::registers::ADDRESS_BITS;
use crate::probe;
use crate::stack::bounds::main_stack_from;
use crate::stack::pages::{PAGE, Pages, Stretch};
use core::mem::MaybeUninit;

/// Another stack, for one walk.
pub(crate) struct OtherStack<'a> {
    /// The known part of the thread's own stack.
    own: Stretch,
    /// The range that the last word was read from.
    last: Stretch,
    pages: &'a mut Pages,
    /// Whether the walk has come to another stack that a signal handler interrupted.
    is_guessed: bool,
    /// What the kernel has copied last, and from where; 0 if nothing.
    copy: MaybeUninit<[[u8; 8]; COPIED / 8]>,
    copied: u64,
}

/// Bytes that the kernel copies at once. A call for each word of a deep stack took longer than the interval
/// of a program's timer, whose handlers then ran for ever. With 256 they took too much of a small stack.
const COPIED: usize = 128;

impl OtherStack<'_> {
    /// Returns the stack for a walk from `sp`, the address of a hook's return address. The thread's
    /// own stack is known from `low` to `end`.
    pub(crate) fn new(sp: u64, low: u64, end: u64, pages: &mut Pages) -> OtherStack<'_> {
        let page = Stretch { low: sp & !(PAGE - 1), end: (sp & !(PAGE - 1)) + PAGE };
        let (own, last) = (Stretch { low, end }, pages.around(sp).unwrap_or(page));
        OtherStack { own, last, pages, is_guessed: false, copy: MaybeUninit::uninit(), copied: 0 }
    }

    fn is_own(&self, address: u64) -> bool {
        address >= self.own.low && address < self.own.end
    }

    /// Returns a word outside the range that the last one was read from.
    #[cold]
    fn word_elsewhere(&mut self, address: u64) -> Option<u64> {
        if self.is_own(address) {
            self.last = self.own;
        } else if self.is_guessed {
            return self.guessed(address);
        } else if let Some(stretch) = self.pages.around(address) {
            self.last = stretch;
        } else {
            probe::is_readable(address as usize).then_some(())?;
            self.last = self.pages.add(address);
        }
        // SAFETY: a live frame's word, in a page that could be read; see the module's text.
        Some(unsafe { (address as *const u64).read_volatile() })
    }
}

impl Memory for OtherStack<'_> {
    const IS_OWN: bool = false;

    fn interrupted(&mut self, sp: u64, is_on_alternate_stack: bool) {
        if !is_on_alternate_stack || self.is_own(sp) {
            return;
        }
        // Before the thread's first event on its own stack, nothing of that is known.
        match main_stack_from(sp) {
            Some(own) => self.own = own,
            None => (self.is_guessed, self.last) = (true, Stretch { low: 0, end: 0 }),
        }
    }

    #[inline(always)]
    fn may_join(&self) -> bool {
        !self.is_guessed
    }

    #[inline(always)]
    fn word(&mut self, address: u64) -> Option<u64> {
        if address & 7 != 0 || address < PAGE || address >> ADDRESS_BITS != 0 {
            return None;
        }
        if address < self.last.low || address >= self.last.end {
            return self.word_elsewhere(address);
        }
        // SAFETY: a live frame's word, in a page that could be read; see the module's text.
        Some(unsafe { (address as *const u64).read_volatile() })
    }

    #[inline(never)]
    fn guessed(&mut self, address: u64) -> Option<u64> {
        // Never across pages.
        let start = address & !(COPIED as u64 - 1);
        if start != self.copied {
            // SAFETY: as large.
            let copied = unsafe { probe::peek_to(start as usize, self.copy.as_mut_ptr().cast(), COPIED) };
            self.copied = if copied == COPIED { start } else { 0 };
        }
        if self.copied == 0 || address & 7 != 0 {
            return None;
        }
        // SAFETY: the kernel has written all of it.
        let copy = unsafe { self.copy.assume_init_ref() };
        Some(u64::from_le_bytes(copy[address as usize % COPIED / 8]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupted_stack_that_is_gone_is_not_read() {
        let page = crate::sys::map_private(PAGE as usize, crate::sys::Part::All).map_or(0, |page| page as u64);
        let mut pages = Pages::new();
        let own = 7u64;
        let mut memory = OtherStack::new(page, &raw const own as u64, &raw const own as u64 + 8, &mut pages);
        assert_eq!(memory.word(page), Some(0));
        memory.interrupted(page, false);
        assert!(memory.may_join());
        memory.interrupted(page, true);
        assert!(!memory.may_join());
        assert_eq!((memory.word(page), memory.word(&raw const own as u64)), (Some(0), Some(7)));
        crate::sys::unmap(page as *mut u8, PAGE as usize);
        // What was copied is a copy.
        assert_eq!((memory.word(page), memory.word(page + COPIED as u64), memory.word(page)), (Some(0), None, None));
    }

    #[test]
    fn unmapped_memory_is_not_read() {
        let mut pages = Pages::new();
        let here = 7u64;
        let own = &raw const here as u64;
        let mut memory = OtherStack::new(own, 0, 0, &mut pages);
        assert_eq!((memory.word(own), memory.guessed(own)), (Some(7), Some(7)));
        assert_eq!((memory.word(8), memory.word(0x4000), memory.guessed(0x4000)), (None, None, None));
        assert_eq!((memory.word(own + 1), memory.guessed(own + 1)), (None, None));
    }
}

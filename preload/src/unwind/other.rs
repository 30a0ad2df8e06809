//! Stacks that are not the thread's own: of coroutines, split stacks, signal handlers. They come
//! and go with the program's memory, and nothing says where they end.
//!
//! What is read without a question to the kernel, and why it cannot fault:
//! * the thread's own stack, as far as it is known to be mapped;
//! * where the unwind tables of a live frame say that its return address or a saved register lies,
//!   in a page that an earlier walk read too. A page is kept ([`Pages`]) when a walk that read it
//!   came to the stack's end: what lies beyond the end of a stack, or where a frame without tables
//!   points, never is.
//!
//! All else is asked of the kernel: a page that a live frame is in, before its first word is read;
//! a word that a mere guess names, each time and copied by the kernel, since another thread may
//! unmap it at any moment.

use super::walk::Memory;
use crate::sys;

const PAGE: u64 = 4096;

/// A stretch of pages that walks have read.
#[derive(Clone, Copy)]
struct Stretch {
    low: u64,
    end: u64,
}

/// Stretches that are known at once: copied on small stacks.
const STRETCHES: usize = 4;

/// The pages of other stacks that this thread's walks have read lately.
#[derive(Clone, Copy)]
pub struct Pages {
    stretches: [Stretch; STRETCHES],
    next: u32,
}

impl Pages {
    /// None.
    pub const fn new() -> Pages {
        Pages { stretches: [Stretch { low: 0, end: 0 }; STRETCHES], next: 0 }
    }

    /// The known stretch around an address.
    #[inline(always)]
    fn around(&self, address: u64) -> Option<Stretch> {
        self.stretches.iter().find(|stretch| address >= stretch.low && address < stretch.end).copied()
    }

    /// Whether an address lies in a known page.
    pub fn contain(&self, address: u64) -> bool {
        self.around(address).is_some()
    }

    /// Adds the page that a walk began in, if later ones have taken its place.
    pub fn keep(&mut self, sp: u64) {
        if !self.contain(sp) {
            self.add(sp);
        }
    }

    /// Adds the page of an address; gives the stretch that it belongs to then.
    #[cold]
    fn add(&mut self, address: u64) -> Stretch {
        let low = address & !(PAGE - 1);
        let end = low + PAGE;
        for stretch in &mut self.stretches {
            if stretch.end == low || stretch.low == end {
                *stretch = Stretch { low: stretch.low.min(low), end: stretch.end.max(end) };
                return *stretch;
            }
        }
        let stretch = Stretch { low, end };
        self.stretches[self.next as usize % self.stretches.len()] = stretch;
        self.next = self.next.wrapping_add(1);
        stretch
    }
}

/// Another stack, for one walk.
pub struct OtherStack<'a> {
    /// The thread's own stack, as far as it is known.
    own: Stretch,
    /// The pages around the last word.
    last: Stretch,
    pages: &'a mut Pages,
}

impl OtherStack<'_> {
    /// For a walk from `sp`, where a hook's return address lies; the thread's own stack is known
    /// from `low` to `end`.
    pub fn new(sp: u64, low: u64, end: u64, pages: &mut Pages) -> OtherStack<'_> {
        let page = Stretch { low: sp & !(PAGE - 1), end: (sp & !(PAGE - 1)) + PAGE };
        OtherStack { own: Stretch { low, end }, last: pages.around(sp).unwrap_or(page), pages }
    }

    #[cold]
    fn turn_to(&mut self, address: u64) -> Option<()> {
        if address >= self.own.low && address < self.own.end {
            self.last = self.own;
        } else if let Some(stretch) = self.pages.around(address) {
            self.last = stretch;
        } else {
            sys::is_readable(address as usize).then_some(())?;
            self.last = self.pages.add(address);
        }
        Some(())
    }
}

impl Memory for OtherStack<'_> {
    const IS_OWN: bool = false;

    #[inline(always)]
    fn word(&mut self, address: u64) -> Option<u64> {
        if address & 7 != 0 || address < PAGE || address >> 47 != 0 {
            return None;
        }
        if address < self.last.low || address >= self.last.end {
            self.turn_to(address)?;
        }
        // SAFETY: a live frame's word, in a page that could be read; see the module's text.
        Some(unsafe { (address as *const u64).read_volatile() })
    }

    fn guessed(&mut self, address: u64) -> Option<u64> {
        let mut word = [0; 8];
        (address & 7 == 0 && sys::peek(address as usize, &mut word) == word.len()).then(|| u64::from_le_bytes(word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_grow_together() {
        let mut pages = Pages::new();
        assert!(!pages.contain(0x5000));
        pages.add(0x5008);
        assert!(pages.contain(0x5000) && pages.contain(0x5fff) && !pages.contain(0x6000) && !pages.contain(0x4fff));
        pages.add(0x6000);
        let grown = pages.add(0x4ff8);
        assert_eq!((grown.low, grown.end), (0x4000, 0x7000));
        for number in 0..8 {
            pages.add(0x10_0000 + number * 0x2000);
        }
        assert!(!pages.contain(0x5000) && pages.contain(0x10_e000));
    }

    #[test]
    fn what_is_not_mapped_is_no_word() {
        let mut pages = Pages::new();
        let here = 7u64;
        let own = &raw const here as u64;
        let mut memory = OtherStack::new(own, 0, 0, &mut pages);
        assert_eq!((memory.word(own), memory.guessed(own)), (Some(7), Some(7)));
        assert_eq!((memory.word(8), memory.word(0x4000), memory.guessed(0x4000)), (None, None, None));
        assert_eq!((memory.word(own + 1), memory.guessed(own + 1)), (None, None));
    }
}

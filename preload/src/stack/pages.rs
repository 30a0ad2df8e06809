//! Pages of stacks other than the thread's own that could be read: [`super::unwind::other`] says when
//! one is kept.

pub(crate) const PAGE: u64 = 4096;

/// A range of pages that walks have read.
#[derive(Clone, Copy)]
pub(crate) struct Stretch {
    pub low: u64,
    pub end: u64,
}

/// Number of ranges that are known at once. They are copied on small stacks.
const STRETCHES: usize = 4;

/// The pages of other stacks that this thread's walks have read recently.
#[derive(Clone, Copy)]
pub(crate) struct Pages {
    stretches: [Stretch; STRETCHES],
    next: u32,
}

impl Pages {
    /// Returns an empty set.
    pub(crate) const fn new() -> Pages {
        Pages { stretches: [Stretch { low: 0, end: 0 }; STRETCHES], next: 0 }
    }

    /// Returns the known range that holds an address.
    #[inline(always)]
    pub(crate) fn around(&self, address: u64) -> Option<Stretch> {
        self.stretches.iter().find(|stretch| address >= stretch.low && address < stretch.end).copied()
    }

    /// Returns whether an address is in a known page.
    pub(crate) fn contain(&self, address: u64) -> bool {
        self.around(address).is_some()
    }

    /// Adds the page that a walk began in, if later ones have displaced it.
    pub(crate) fn keep(&mut self, sp: u64) {
        if !self.contain(sp) {
            self.add(sp);
        }
    }

    /// Adds the page of an address, and returns the range that it belongs to then.
    #[cold]
    pub(crate) fn add(&mut self, address: u64) -> Stretch {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_pages_are_joined() {
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
}

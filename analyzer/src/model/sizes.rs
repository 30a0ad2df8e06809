//! How large blocks are: a histogram by powers of two, the commonest exact sizes, and what the
//! allocator's rounding wastes.

use super::live_set::Block;
use crate::event::Event;
use crate::replay::Model;

/// Exact sizes counted below this; above it by power of two alone.
pub const EXACT: usize = 4096;
/// Classes: class n holds sizes whose highest set bit is bit n - 1; class 0 holds size 0.
pub const CLASSES: usize = 65;

/// One class, or one exact size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Allocations and resizes of such a size.
    pub allocs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Of these, alive at the end.
    pub live_blocks: u64,
    /// Their bytes.
    pub live_bytes: u64,
    /// Bytes that glibc's malloc adds to them by rounding (its chunks are multiples of 16, of 24
    /// usable bytes at least).
    pub waste: u64,
}

/// Counts sizes.
#[derive(Debug)]
pub struct Sizes {
    /// By power of two.
    pub classes: Vec<Row>,
    /// By exact size, up to [`EXACT`].
    pub exact: Vec<Row>,
}

impl Default for Sizes {
    fn default() -> Self {
        Sizes { classes: vec![Row::default(); CLASSES], exact: vec![Row::default(); EXACT] }
    }
}

/// Class of a size.
pub const fn class(size: u64) -> usize {
    (64 - size.leading_zeros()) as usize
}

/// Smallest and largest size of a class.
pub const fn bounds(class: usize) -> (u64, u64) {
    match class {
        0 => (0, 0),
        1..=63 => (1 << (class - 1), (1 << class) - 1),
        _ => (1 << 63, u64::MAX),
    }
}

/// Usable bytes of a glibc chunk for a request.
pub const fn usable(size: u64) -> u64 {
    if size <= 24 { 24 } else { (size.saturating_add(8 + 15) & !15) - 8 }
}

impl Sizes {
    #[inline]
    fn each(&mut self, size: u64, change: impl Fn(&mut Row)) {
        change(&mut self.classes[class(size)]);
        if let Some(row) = usize::try_from(size).ok().and_then(|size| self.exact.get_mut(size)) {
            change(row);
        }
    }

    #[inline]
    fn taken(&mut self, size: u64) {
        let waste = usable(size).saturating_sub(size);
        self.each(size, |row| {
            row.allocs += 1;
            row.bytes = row.bytes.saturating_add(size);
            row.live_blocks += 1;
            row.live_bytes = row.live_bytes.saturating_add(size);
            row.waste = row.waste.saturating_add(waste);
        });
    }

    #[inline]
    fn given(&mut self, old: Option<&Block>) {
        let Some(old) = old else { return };
        self.each(old.size, |row| {
            row.live_blocks = row.live_blocks.saturating_sub(1);
            row.live_bytes = row.live_bytes.saturating_sub(old.size);
        });
    }
}

impl Model for Sizes {
    #[inline]
    fn alloc(&mut self, _: &Event, block: &Block) {
        self.taken(block.size);
    }

    #[inline]
    fn resize(&mut self, _: &Event, old: Option<&Block>, block: &Block) {
        self.given(old);
        self.taken(block.size);
    }

    #[inline]
    fn free(&mut self, _: &Event, old: Option<&Block>) {
        self.given(old);
    }
}

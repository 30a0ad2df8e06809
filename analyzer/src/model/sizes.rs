//! Sizes of blocks: a histogram by powers of two, the most frequent exact sizes, and the bytes that
//! the allocator wastes by rounding.

use super::live_set::Block;
use crate::event::Event;
use crate::model::Model;

/// Limit of the sizes that are counted exactly. Larger ones are counted by power of two only.
pub const EXACT: usize = 4096;
/// Number of classes. Class n counts sizes whose highest set bit is bit n - 1, and class 0 counts
/// size 0.
pub const CLASSES: usize = 65;

/// The numbers of one class or one exact size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Number of allocations and reallocations.
    pub allocs: u64,
    /// Number of allocated bytes.
    pub bytes: u64,
    /// Number of these blocks that are live at the end.
    pub live_blocks: u64,
    /// Number of live bytes at the end.
    pub live_bytes: u64,
    /// Number of bytes that glibc's malloc adds by rounding. Its chunks are multiples of 16 bytes
    /// with at least 24 usable bytes.
    pub waste: u64,
}

/// The model that counts sizes.
#[derive(Debug)]
pub struct Sizes {
    /// The rows by power of two.
    pub classes: Vec<Row>,
    /// The rows by exact size, up to [`EXACT`].
    pub exact: Vec<Row>,
}

impl Default for Sizes {
    fn default() -> Self {
        Sizes { classes: vec![Row::default(); CLASSES], exact: vec![Row::default(); EXACT] }
    }
}

pub const fn class(size: u64) -> usize {
    (64 - size.leading_zeros()) as usize
}

/// Returns the smallest and the largest size of a class.
pub const fn bounds(class: usize) -> (u64, u64) {
    match class {
        0 => (0, 0),
        1..=63 => (1 << (class - 1), (1 << class) - 1),
        _ => (1 << 63, u64::MAX),
    }
}

/// Returns the number of usable bytes of glibc's chunk for a requested size.
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
    fn add(&mut self, size: u64) {
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
    fn remove(&mut self, old: Option<&Block>) {
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
        self.add(block.size);
    }

    #[inline]
    fn resize(&mut self, _: &Event, old: Option<&Block>, block: &Block) {
        self.remove(old);
        self.add(block.size);
    }

    #[inline]
    fn free(&mut self, _: &Event, old: Option<&Block>) {
        self.remove(old);
    }
}

//! The recent changes of the live blocks. A forked child gets the blocks as they were at the fork
//! although its parent has continued: it attaches at its first call, usually some tenths of a
//! millisecond later.

use crate::heap::index::{Block, Index};

/// Maximum number of stored changes: 3 ms of a program that only allocates. They take 1 MiB,
/// allocated as needed.
const MAX_CHANGES: usize = 1 << 15;

/// A change in 32 bytes: `low` = index << 16 | size & 0xffff, `high` = site << 32 | size >> 16 of
/// the block that was removed. The index is 0 when a block was inserted.
#[derive(Clone, Copy, Debug, Default)]
struct Change {
    tick: u64,
    address: u64,
    low: u64,
    high: u64,
}

impl Change {
    #[inline(always)]
    fn new(tick: u64, address: u64, removed: Block) -> Change {
        let low = removed.index << 16 | (removed.size & 0xffff);
        let high = u64::from(removed.site) << 32 | (removed.size >> 16 & 0xffff_ffff);
        Change { tick, address, low, high }
    }

    fn removed(&self) -> Option<Block> {
        let Change { low, high, .. } = *self;
        let size = (high & 0xffff_ffff) << 16 | (low & 0xffff);
        (low >> 16 != 0).then_some(Block { index: low >> 16, size, site: (high >> 32) as u32 })
    }
}

/// The last changes. The oldest are overwritten first.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    changes: Vec<Change>,
    next: usize,
}

impl Journal {
    #[inline(always)]
    fn add(&mut self, change: Change) {
        if self.changes.len() < MAX_CHANGES {
            self.changes.push(change);
        } else {
            self.changes[self.next & (MAX_CHANGES - 1)] = change;
        }
        self.next += 1;
    }

    /// Notes that a block was inserted at a free address.
    #[inline(always)]
    pub(crate) fn inserted(&mut self, tick: u64, address: u64) {
        self.add(Change::new(tick, address, Block::default()));
    }

    /// Notes that a block was removed.
    #[inline(always)]
    pub(crate) fn removed(&mut self, tick: u64, address: u64, removed: Block) {
        self.add(Change::new(tick, address, removed));
    }

    /// Returns the changes after `tick`, and whether the journal reaches back to it.
    pub(crate) fn changes_after(&self, tick: u64) -> (Changes, bool) {
        let mut changes = Vec::new();
        for distance in 1..=self.changes.len() {
            let change = self.changes[(self.next - distance) & (MAX_CHANGES - 1)];
            if change.tick <= tick {
                return (Changes(changes), true);
            }
            changes.push(change);
        }
        (Changes(changes), self.changes.len() < MAX_CHANGES)
    }
}

/// Changes of the live blocks, the last one first.
#[derive(Debug, Default)]
pub(crate) struct Changes(Vec<Change>);

impl Changes {
    /// Undoes the changes in a table of blocks.
    pub(crate) fn undo(&self, index: &mut Index) {
        for change in &self.0 {
            match change.removed() {
                None => index.remove(change.address),
                Some(block) => index.insert(change.address, block),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn undo(journal: &Journal, tick: u64, index: &mut Index) -> bool {
        let (changes, is_exact) = journal.changes_after(tick);
        changes.undo(index);
        is_exact
    }

    #[test]
    fn undo_restores_any_stored_tick() {
        let (mut journal, mut index, mut states) = (Journal::default(), Index::default(), Vec::new());
        for tick in 1..=50_000u64 {
            let address = 16 * (1 + tick.wrapping_mul(0x9e37_79b9) % 500);
            match index.remove(address) {
                Some(block) => journal.removed(tick, address, block),
                None => {
                    index.insert(address, Block { index: tick, size: tick, site: 1 });
                    journal.inserted(tick, address);
                }
            }
            if tick > 50_000 - MAX_CHANGES as u64 && tick % 4000 == 0 {
                let mut all: Vec<_> = index.iter().collect();
                all.sort_unstable_by_key(|(address, _)| *address);
                states.push((tick, all));
            }
        }
        assert!(states.len() > 5);
        for (tick, state) in states {
            let mut past = index.snapshot();
            assert!(undo(&journal, tick, &mut past));
            let mut all: Vec<_> = past.iter().collect();
            all.sort_unstable_by_key(|(address, _)| *address);
            assert_eq!(all, state);
        }
        assert!(!undo(&journal, 5, &mut index));
    }
}

//! The recent past of a live table, so that a forked child can get the table as it stood at the
//! fork although the parent has gone on: the child attaches at its first call, usually some tenths
//! of a millisecond later.

use crate::index::{Block, Index};

/// Changes that are remembered: 3 ms of a program that does nothing but allocate. 1.25 MiB,
/// allocated as it fills.
const CHANGES: usize = 1 << 15;

#[derive(Clone, Copy, Debug, Default)]
struct Change {
    tick: u64,
    address: u64,
    /// What was taken away; `None`-like (index 0) when something was put there.
    taken: Block,
}

/// The last changes, oldest overwritten first.
#[derive(Debug, Default)]
pub struct Journal {
    changes: Vec<Change>,
    next: usize,
}

impl Journal {
    #[inline(always)]
    fn note(&mut self, change: Change) {
        if self.changes.len() < CHANGES {
            self.changes.push(change);
        } else {
            self.changes[self.next & (CHANGES - 1)] = change;
        }
        self.next += 1;
    }

    /// A block was put at a free address.
    #[inline(always)]
    pub fn put(&mut self, tick: u64, address: u64) {
        self.note(Change { tick, address, taken: Block::default() });
    }

    /// A block was taken away.
    #[inline(always)]
    pub fn taken(&mut self, tick: u64, address: u64, taken: Block) {
        self.note(Change { tick, address, taken });
    }

    /// Undoes in `index` what happened after `tick`. False when the journal does not reach back
    /// that far.
    pub fn undo(&self, tick: u64, index: &mut Index) -> bool {
        for back in 1..=self.changes.len() {
            let change = &self.changes[(self.next - back) & (CHANGES - 1)];
            if change.tick <= tick {
                return true;
            }
            if change.taken.index == 0 {
                index.remove(change.address);
            } else {
                index.insert(change.address, change.taken);
            }
        }
        self.changes.len() < CHANGES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goes_back_to_any_tick_that_it_remembers() {
        let (mut journal, mut index, mut states) = (Journal::default(), Index::default(), Vec::new());
        for tick in 1..=50_000u64 {
            let address = 16 * (1 + tick.wrapping_mul(0x9e37_79b9) % 500);
            match index.remove(address) {
                Some(block) => journal.taken(tick, address, block),
                None => {
                    index.insert(address, Block { index: tick, size: tick, site: 1 });
                    journal.put(tick, address);
                }
            }
            if tick > 50_000 - CHANGES as u64 && tick % 4000 == 0 {
                let mut all: Vec<_> = index.iter().collect();
                all.sort_unstable_by_key(|(address, _)| *address);
                states.push((tick, all));
            }
        }
        assert!(states.len() > 5);
        for (tick, state) in states {
            let mut past = index.snapshot();
            assert!(journal.undo(tick, &mut past));
            let mut all: Vec<_> = past.iter().collect();
            all.sort_unstable_by_key(|(address, _)| *address);
            assert_eq!(all, state);
        }
        assert!(!journal.undo(5, &mut index));
    }
}

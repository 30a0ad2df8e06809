//! Sampling as the digest sees it: what a sampled block stands for, which interval each thread
//! samples by, and which records are left out while a thread has not yet noticed that the process
//! is to be dormant or sampled.

use super::{Image, Thread};
use crate::index::Block;
use crate::options::{Mode, Options};
use crate::profile::Amount;
use rustc_hash::FxHashMap;
use wire::{Op, Record};

/// What the live sampled blocks stand for, by allocation index: an interval may change while they
/// live.
#[derive(Debug, Default)]
pub struct Standing {
    blocks: FxHashMap<u64, Amount>,
    /// Whether the number of blocks is estimated too; a trace has one record for each and counts it
    /// once.
    estimates: bool,
    /// What rounding left, in 65,536ths of a block.
    rest: u64,
}

impl Standing {
    /// For a process with these options.
    pub fn of(options: &Options) -> Option<Standing> {
        let estimates = !options.mode.has_events();
        (options.sample_bytes != 0).then(|| Standing { estimates, ..Standing::default() })
    }

    /// The same blocks under new indexes, counted as these options want it.
    pub fn renumbered(self, options: &Options, blocks: impl Iterator<Item = (u64, u64, u64)>) -> Standing {
        let estimates = !options.mode.has_events();
        let mut next = Standing { estimates, ..Standing::default() };
        for (old, new, size) in blocks {
            let mut amount = self.blocks.get(&old).copied().unwrap_or(Amount { blocks: 1, bytes: size });
            if !estimates {
                amount.blocks = 1;
            }
            next.blocks.insert(new, amount);
        }
        next
    }

    /// What a block stands for.
    pub fn get(&self, index: u64) -> Option<Amount> {
        self.blocks.get(&index).copied()
    }

    fn estimate(&mut self, size: u64, weight: u64) -> u64 {
        if !self.estimates {
            return 1;
        }
        let parts = (u128::from(weight) << 16) / u128::from(size.max(1)) + u128::from(self.rest);
        self.rest = (parts & 0xffff) as u64;
        ((parts >> 16) as u64).max(1)
    }
}

/// A block was taken: what it stands for.
pub fn taken(standing: &mut Option<Standing>, index: u64, size: u64, weight: u64) -> Amount {
    let Some(standing) = standing else { return Amount { blocks: 1, bytes: size } };
    let amount = Amount { blocks: standing.estimate(size, weight), bytes: weight };
    standing.blocks.insert(index, amount);
    amount
}

/// A block was given back: what it stood for.
pub fn given(standing: &mut Option<Standing>, old: &Block) -> Amount {
    let known = standing.as_mut().and_then(|standing| standing.blocks.remove(&old.index));
    known.unwrap_or(Amount { blocks: 1, bytes: old.size })
}

/// Which records of a thread are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// All.
    All,
    /// Frees of blocks that are known: the process is sampled and this thread does not know it yet.
    Frees,
    /// None: the process is dormant and this thread does not know it yet.
    None,
}

impl Image {
    /// The thread's interval, and which of its records are used.
    pub(super) fn follow(&self, thread: u32) -> (u64, Follow) {
        let mean = self.threads[thread as usize].mean;
        let follow = match self.session.options.mode {
            Mode::Off => Follow::None,
            _ if self.standing.is_some() && mean == 0 => Follow::Frees,
            _ => Follow::All,
        };
        (mean, follow)
    }

    #[cold]
    pub(super) fn interval(&mut self, thread: u32, record: Record) {
        let known: &mut Thread = &mut self.threads[thread as usize];
        // Where everything is recorded weights count for nothing: a thread may be ahead of us.
        if record.delta() != 0 && self.standing.is_some() {
            known.next_mean = Some(record.body);
        } else {
            (known.mean, known.next_mean) = (record.body, None);
        }
    }

    /// What holds behind an event of a sampled thread.
    #[inline]
    pub(super) fn next_interval(&mut self, thread: u32, mean: u64, follow: Follow) -> (u64, Follow) {
        let known = &mut self.threads[thread as usize];
        match known.next_mean.take() {
            None => (mean, follow),
            Some(next) => {
                known.mean = next;
                self.follow(thread)
            }
        }
    }

    /// A record of a thread that is behind. What is not used of it is counted; behind the event
    /// that the thread began under the old rule the new one holds.
    #[cold]
    pub(super) fn stray(&mut self, follow: Follow, thread: u32, op: Op, address: u64, tick: u64) -> (u64, Follow) {
        let known = &mut self.threads[thread as usize];
        if let Some(next) = known.next_mean.take() {
            known.mean = next;
        }
        if follow == Follow::Frees && (op.is_free() || op == Op::RESIZE_BEGIN) && self.live.knows(address) {
            let op = if op.is_free() { op } else { Op::FREE };
            known.recorded += u64::from(op.is_event());
            self.calls.push(crate::live::Call { op, thread, site: 0, address, size: 0, weight: 0, tick });
        } else {
            known.passed += u64::from(op.is_event());
        }
        self.follow(thread)
    }
}

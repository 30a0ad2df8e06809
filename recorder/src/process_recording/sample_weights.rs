//! Sampling in the digest: what each sampled block represents, the sampling interval of each
//! thread, and the records that are skipped while a thread has not noticed yet that the process is
//! to be dormant or sampled.

use super::ProcessRecording;
use crate::index::Block;
use crate::live::{Call, Renumbered};
use crate::options::{Mode, Options};
use crate::profile::Amount;
use rustc_hash::FxHashMap;
use wire::{Op, Record};

/// The amounts that the live sampled blocks represent, by allocation index: the interval may change
/// while they live.
#[derive(Debug, Default)]
pub struct SampleWeights {
    blocks: FxHashMap<u64, Amount>,
    /// Whether the number of blocks is estimated too. A trace has one record for each sampled block
    /// and counts it once.
    estimates: bool,
    /// The remainder of rounding, in 65,536ths of a block.
    remainder: u64,
}

impl SampleWeights {
    /// Creates the table for a process with these options; `None` without sampling.
    pub fn of(options: &Options) -> Option<SampleWeights> {
        let estimates = !options.mode.has_events();
        (options.sample_bytes != 0).then(|| SampleWeights { estimates, ..SampleWeights::default() })
    }

    /// Returns the same blocks with new indexes, counted as these options require.
    pub fn renumbered(self, options: &Options, blocks: &[Renumbered]) -> SampleWeights {
        let estimates = !options.mode.has_events();
        let mut next = SampleWeights { estimates, ..SampleWeights::default() };
        for Renumbered { old_index, block, .. } in blocks {
            let mut amount = self.blocks.get(old_index).copied().unwrap_or(Amount { blocks: 1, bytes: block.size });
            if !estimates {
                amount.blocks = 1;
            }
            next.blocks.insert(block.index, amount);
        }
        next
    }

    /// Returns the amount that a block represents.
    pub fn get(&self, index: u64) -> Option<Amount> {
        self.blocks.get(&index).copied()
    }

    fn estimate(&mut self, size: u64, weight: u64) -> u64 {
        if !self.estimates {
            return 1;
        }
        let parts = (u128::from(weight) << 16) / u128::from(size.max(1)) + u128::from(self.remainder);
        self.remainder = (parts & 0xffff) as u64;
        ((parts >> 16) as u64).max(1)
    }
}

/// Notes an allocation, and returns the amount that the block represents.
pub fn block_allocated(sample_weights: &mut Option<SampleWeights>, index: u64, size: u64, weight: u64) -> Amount {
    let Some(sample_weights) = sample_weights else { return Amount { blocks: 1, bytes: size } };
    let amount = Amount { blocks: sample_weights.estimate(size, weight), bytes: weight };
    sample_weights.blocks.insert(index, amount);
    amount
}

/// Removes a freed block, and returns the amount that it represented.
pub fn block_freed(sample_weights: &mut Option<SampleWeights>, old: &Block) -> Amount {
    let known = sample_weights.as_mut().and_then(|sample_weights| sample_weights.blocks.remove(&old.index));
    known.unwrap_or(Amount { blocks: 1, bytes: old.size })
}

/// Which records of a thread are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordFilter {
    /// All records are used.
    All,
    /// Only frees of known blocks are used: the process is sampled, and the thread has not noticed
    /// it yet.
    Frees,
    /// No record is used: the process is dormant, and the thread has not noticed it yet.
    None,
}

impl ProcessRecording {
    /// Returns the thread's sampling interval, and which of its records are used.
    pub(super) fn filter(&mut self, thread: u32) -> (u64, RecordFilter) {
        let mean = self.threads.mean(thread);
        let filter = match self.session.options.mode {
            Mode::Off => RecordFilter::None,
            _ if self.heap.is_sampled() && mean == 0 => RecordFilter::Frees,
            _ => RecordFilter::All,
        };
        (mean, filter)
    }

    #[cold]
    pub(super) fn interval(&mut self, thread: u32, record: Record) {
        // Where every event is recorded, weights do not matter: a thread may be ahead of the
        // digest.
        if record.delta() != 0 && self.heap.is_sampled() {
            self.threads.set_next_mean(thread, record.body);
        } else {
            self.threads.set_mean(thread, record.body);
        }
    }

    /// Returns interval and filter after an event of a sampled thread.
    #[inline]
    pub(super) fn next_interval(&mut self, thread: u32, mean: u64, filter: RecordFilter) -> (u64, RecordFilter) {
        if self.threads.takes_next_mean(thread) { self.filter(thread) } else { (mean, filter) }
    }

    /// Handles a record of a thread that has not noticed a change of the mode. A record that is not
    /// used is counted. After the event that the thread started under the old mode, the new mode
    /// applies.
    #[cold]
    pub(super) fn filter_record(
        &mut self,
        filter: RecordFilter,
        thread: u32,
        op: Op,
        address: u64,
        tick: u64,
    ) -> (u64, RecordFilter) {
        self.threads.takes_next_mean(thread);
        if filter == RecordFilter::Frees && (op.is_free() || op == Op::RESIZE_BEGIN) && self.heap.knows(address) {
            let op = if op.is_free() { op } else { Op::FREE };
            self.threads.count_recorded(thread, u64::from(op.is_event()));
            self.heap.push(Call { op, thread, site: 0, address, size: 0, weight: 0, tick });
        } else {
            self.threads.count_skipped(thread, u64::from(op.is_event()));
        }
        self.filter(thread)
    }
}

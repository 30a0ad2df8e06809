//! Sampling in the digest: what each sampled block represents, the sampling interval of each
//! thread, and the records that are skipped while a thread has not noticed yet that the process is
//! to be dormant or sampled.

use super::ProcessRecording;
use crate::heap::index::Block;
use crate::heap::live::{Call, Renumbered};
use crate::heap::profile::Amount;
use crate::heap::thread_number::ThreadNumber;
use crate::session::options::{Mode, Options};
use rustc_hash::FxHashMap;
use wire::{Op, Record};

/// The amounts that the live sampled blocks represent, by allocation index: the interval may change
/// while they live.
#[derive(Debug, Default)]
pub(crate) struct SampleWeights {
    blocks: FxHashMap<u64, Amount>,
    /// Whether the number of blocks is estimated too. A trace has one record for each sampled block
    /// and counts it once.
    estimates: bool,
    /// The remainder of rounding, in 65,536ths of a block.
    remainder: u64,
    /// Estimated number of live blocks, in 65,536ths.
    live: u128,
    /// Estimated number of allocations, with the blocks that the segment began with, in 65,536ths.
    allocated: u128,
    /// Variance of the live bytes of each site.
    variances: FxHashMap<u32, u128>,
}

/// Returns the variance that a live sampled block adds to the estimate of the live bytes of its
/// site. A block of a size of `size` represents `weight` bytes, since it is sampled with the
/// probability `size / weight`.
fn variance_of(size: u64, weight: u64) -> u128 {
    u128::from(weight) * u128::from(weight.saturating_sub(size))
}

/// Returns the number of blocks of this size that have a weight in bytes, in 65,536ths of a block.
fn parts_of(size: u64, weight: u64) -> u128 {
    (u128::from(weight) << 16) / u128::from(size.max(1))
}

impl SampleWeights {
    /// Creates the table for a process with these options; `None` without sampling.
    pub(super) fn of(options: &Options) -> Option<SampleWeights> {
        let estimates = !options.mode.has_events();
        (options.sample_bytes != 0).then(|| SampleWeights { estimates, ..SampleWeights::default() })
    }

    /// Returns the same blocks with new indexes, counted as these options require.
    pub(super) fn renumbered(self, options: &Options, blocks: &[Renumbered]) -> SampleWeights {
        let estimates = !options.mode.has_events();
        let mut next = SampleWeights { estimates, ..SampleWeights::default() };
        for Renumbered { old_index, block, .. } in blocks {
            let mut amount = self.blocks.get(old_index).copied().unwrap_or(Amount { blocks: 1, bytes: block.size });
            if !estimates {
                amount.blocks = 1;
            }
            next.allocated += parts_of(block.size, amount.bytes);
            *next.variances.entry(block.site).or_default() += variance_of(block.size, amount.bytes);
            next.blocks.insert(block.index, amount);
        }
        next.live = next.allocated;
        next
    }

    /// Returns the standard error of the live bytes of a site.
    pub(super) fn error(&self, site: u32) -> u64 {
        self.variances.get(&site).map_or(0, |variance| (*variance as f64).sqrt() as u64)
    }

    /// Returns the estimated number of live blocks, unless the blocks' amounts contain it.
    pub(crate) fn estimated_blocks(&self) -> Option<u64> {
        (!self.estimates).then_some((self.live >> 16) as u64)
    }

    /// Returns the estimated number of allocations, unless the blocks' amounts contain it.
    pub(crate) fn estimated_allocs(&self) -> Option<u64> {
        (!self.estimates).then_some((self.allocated >> 16) as u64)
    }

    /// Returns the amount that a block represents.
    pub(super) fn get(&self, index: u64) -> Option<Amount> {
        self.blocks.get(&index).copied()
    }

    fn estimate(&mut self, size: u64, weight: u64) -> u64 {
        if !self.estimates {
            return 1;
        }
        let parts = parts_of(size, weight) + u128::from(self.remainder);
        self.remainder = (parts & 0xffff) as u64;
        ((parts >> 16) as u64).max(1)
    }
}

/// Notes an allocation, and returns the amount that the block represents.
pub(crate) fn block_allocated(sample_weights: &mut Option<SampleWeights>, index: u64, call: &Call) -> Amount {
    let Call { site, size, weight, .. } = *call;
    let Some(sample_weights) = sample_weights else { return Amount { blocks: 1, bytes: size } };
    let amount = Amount { blocks: sample_weights.estimate(size, weight), bytes: weight };
    let parts = parts_of(size, weight);
    (sample_weights.live, sample_weights.allocated) = (sample_weights.live + parts, sample_weights.allocated + parts);
    *sample_weights.variances.entry(site).or_default() += variance_of(size, weight);
    sample_weights.blocks.insert(index, amount);
    amount
}

/// Removes a freed block, and returns the amount that it represented.
pub(crate) fn block_freed(sample_weights: &mut Option<SampleWeights>, old: &Block) -> Amount {
    let known = sample_weights.as_mut().and_then(|sample_weights| {
        let amount = sample_weights.blocks.remove(&old.index)?;
        sample_weights.live = sample_weights.live.saturating_sub(parts_of(old.size, amount.bytes));
        if let Some(variance) = sample_weights.variances.get_mut(&old.site) {
            *variance = variance.saturating_sub(variance_of(old.size, amount.bytes));
        }
        Some(amount)
    });
    known.unwrap_or(Amount { blocks: 1, bytes: old.size })
}

/// Which records of a thread are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordFilter {
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
    pub(super) fn filter(&mut self, thread: ThreadNumber) -> (u64, RecordFilter) {
        let mean = self.threads.mean(thread);
        let filter = match self.session.options.mode {
            Mode::Off => RecordFilter::None,
            _ if self.heap.is_sampled() && mean == 0 => RecordFilter::Frees,
            _ => RecordFilter::All,
        };
        (mean, filter)
    }

    #[cold]
    pub(super) fn interval(&mut self, thread: ThreadNumber, record: Record) {
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
    pub(super) fn next_interval(
        &mut self,
        thread: ThreadNumber,
        mean: u64,
        filter: RecordFilter,
    ) -> (u64, RecordFilter) {
        if self.threads.takes_next_mean(thread) { self.filter(thread) } else { (mean, filter) }
    }

    /// Handles a record of a thread that has not noticed a change of the mode. A record that is not
    /// used is counted. After the event that the thread started under the old mode, the new mode
    /// applies.
    #[cold]
    pub(super) fn filter_record(
        &mut self,
        filter: RecordFilter,
        thread: ThreadNumber,
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

//! The totals of a process.

use super::live_set::Block;
use crate::event::{Event, Kind};
use crate::model::Model;
use heaptape_formats::tape::{Entry, Inherited};

/// The model that computes the totals as the tape has them.
///
/// # Examples
///
/// ```
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/tape/v1/trace");
/// use heaptape_analyzer::{Progress, event::Span, model::totals::Totals, open, replay};
///
/// let recording = open(path.as_ref())?;
/// let mut totals = Totals::default();
/// replay(&recording.processes[0], Span::ALL, &Progress::new("adding up"), &mut totals);
/// assert_eq!((totals.sums.allocs, totals.sums.resizes, totals.sums.frees), (311, 4, 300));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct Totals {
    /// The totals so far.
    pub sums: heaptape_formats::tape::Totals,
    /// Inherited blocks and bytes in the trace.
    inherited: (u64, u64),
    /// Inherited blocks and bytes that were freed or reallocated.
    gone: (u64, u64),
}

impl Totals {
    /// Starts with the totals of a summary. Inherited blocks are counted from here on.
    pub fn begin(&mut self, totals: &heaptape_formats::tape::Totals) {
        self.sums = totals.clone();
        (self.sums.inherited_blocks, self.sums.inherited_bytes) = (0, 0);
    }

    /// Returns the totals at the end. `inherited` is the record of the tape, which includes the
    /// inherited blocks that the process never freed or reallocated.
    pub fn finish(mut self, inherited: Option<&Inherited>) -> heaptape_formats::tape::Totals {
        let (blocks, bytes) = inherited.map_or((0, 0), |record| (record.blocks, record.bytes));
        self.sums.inherited_blocks = self.inherited.0.max(blocks).saturating_sub(self.gone.0);
        self.sums.inherited_bytes = self.inherited.1.max(bytes).saturating_sub(self.gone.1);
        self.sums
    }

    #[inline]
    fn add(&mut self, event: &Event, old_size: u64) {
        let sums = &mut self.sums;
        sums.bytes_allocated = sums.bytes_allocated.saturating_add(event.bytes());
        sums.live_bytes = sums.live_bytes.saturating_add(event.bytes()).saturating_sub(old_size);
        sums.peak_blocks = sums.peak_blocks.max(sums.live_blocks);
        if sums.live_bytes > sums.peak_bytes {
            (sums.peak_bytes, sums.peak_tick) = (sums.live_bytes, event.tick);
        }
    }
}

impl Model for Totals {
    #[inline]
    fn alloc(&mut self, event: &Event, _: &Block) {
        self.sums.allocs += 1;
        self.sums.live_blocks += 1;
        self.add(event, 0);
    }

    #[inline]
    fn resize(&mut self, event: &Event, old: Option<&Block>, _: &Block) {
        self.sums.resizes += 1;
        self.sums.live_blocks += u64::from(old.is_none());
        self.add(event, old.map_or(0, |old| old.size));
    }

    #[inline]
    fn free(&mut self, event: &Event, old: Option<&Block>) {
        let implied = event.is_implied();
        self.sums.implied_frees += u64::from(implied);
        self.sums.frees += u64::from(!implied);
        if let Some(old) = old {
            self.sums.live_blocks = self.sums.live_blocks.saturating_sub(1);
            self.sums.live_bytes = self.sums.live_bytes.saturating_sub(old.size);
        }
    }

    #[inline]
    fn unmatched(&mut self, _: &Event) {
        self.sums.frees += 1;
        self.sums.unknown_frees += 1;
    }

    fn inherited(&mut self, block: &Block, gone: Option<Kind>) {
        if gone == Some(Kind::Resize) && block.size == 0 && block.entry == Entry::Inherited as u8 {
            self.sums.unknown_frees += 1;
            self.inherited.0 = self.inherited.0.saturating_sub(1);
            return;
        }
        let (blocks, bytes) = if gone.is_some() { &mut self.gone } else { &mut self.inherited };
        *blocks += 1;
        *bytes = bytes.saturating_add(block.size);
    }
}

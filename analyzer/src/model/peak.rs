//! The live blocks and bytes of each site at the peak of all live bytes, in constant time per
//! event.
//!
//! A new peak only increments an epoch number. Before a site changes for the first time in an
//! epoch, its live bytes are copied: they are those at the peak that started the epoch. For sites
//! that do not change after the last peak the current numbers are still those at the peak.

use super::live_set::Block;
use super::phase::Phase;
use super::row;
use crate::event::{Event, Position, Span};
use crate::model::Model;
use heaptape_formats::tape::Summary;

/// Numbers of live blocks and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Total number of blocks.
    pub blocks: u64,
    /// Total number of bytes.
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Site {
    live: Held,
    at_peak: Held,
    epoch: u64,
    own_peak: u64,
}

/// The model that finds the peak of a span and the share of each site.
#[derive(Debug)]
pub struct Peak {
    sites: Vec<Site>,
    live: Held,
    peak: Held,
    peak_blocks: u64,
    at: Position,
    phase: Phase,
    epoch: u64,
    span: Span,
    inside: bool,
    /// Bytes beside the blocks: those that the program has mapped itself.
    mapped: u64,
    mapped_at_peak: u64,
    /// The changes of `mapped` that are still to come, the next one last.
    changes: Vec<(u64, u64)>,
    next_change: u64,
}

/// The share of a site in the peak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    pub site: u32,
    /// Live blocks and bytes of the site at the peak of all sites.
    pub at_peak: Held,
    /// Maximum of the live bytes of the site in the span.
    pub own_peak: u64,
}

impl Peak {
    /// Creates a model for a span. It must receive the events before the span, too.
    pub fn within(span: Span) -> Self {
        let zero = Held::default();
        let at = Position { number: span.first, tick: span.first_tick };
        let phase = Phase::default();
        Peak {
            sites: Vec::new(),
            live: zero,
            peak: zero,
            peak_blocks: 0,
            at,
            phase,
            epoch: 0,
            span,
            inside: false,
            mapped: 0,
            mapped_at_peak: 0,
            changes: Vec::new(),
            next_change: u64::MAX,
        }
    }

    /// Creates a model for the peak of the live bytes together with other bytes, which are given as
    /// tick and number at each change, in order. It must receive all events from the start of the
    /// recording.
    pub fn with_mapped(span: Span, mut changes: Vec<(u64, u64)>) -> Self {
        changes.reverse();
        let next_change = changes.last().map_or(u64::MAX, |change| change.0);
        Peak { changes, next_change, ..Peak::within(span) }
    }

    /// Returns the number of mapped bytes at the peak.
    pub const fn mapped_at_peak(&self) -> u64 {
        self.mapped_at_peak
    }

    /// Starts with the numbers of a summary of all earlier events. The summary does not contain the
    /// event number of the peak.
    pub fn begin(&mut self, summary: &Summary) {
        self.epoch += 1;
        for sums in &summary.sites {
            let held = |blocks, bytes| Held { blocks, bytes };
            let live = held(sums.allocs.saturating_sub(sums.frees), sums.bytes.saturating_sub(sums.freed_bytes));
            let at_peak = held(sums.peak_blocks, sums.peak_bytes);
            *row(&mut self.sites, sums.site) = Site { live, at_peak, epoch: self.epoch, own_peak: live.bytes };
        }
        let totals = &summary.totals;
        self.live = Held { blocks: totals.live_blocks, bytes: totals.live_bytes };
        if self.span == Span::ALL {
            self.inside = true;
            let blocks = summary.sites.iter().fold(0u64, |sum, sums| sum.saturating_add(sums.peak_blocks));
            self.peak = Held { blocks, bytes: totals.peak_bytes };
            (self.at.tick, self.peak_blocks) = (totals.peak_tick, totals.peak_blocks);
            self.phase.begin(self.live.bytes, self.at);
        }
    }

    /// Completes the numbers at the end. In a span without events the peak is what is live.
    pub fn finish(&mut self) {
        if !self.inside {
            self.map_until(self.span.first_tick, self.at.number);
            self.enter(self.at);
        }
        self.map_until(self.span.end_tick.saturating_sub(1), self.span.end);
    }

    /// Applies the changes of the mapped bytes up to a tick. `number` is the number of events
    /// before them.
    #[cold]
    fn map_until(&mut self, tick: u64, number: u64) {
        while self.next_change <= tick
            && let Some((at, bytes)) = self.changes.pop()
        {
            let at = Position { number, tick: at };
            if !self.inside && !self.span.is_before(at) {
                self.enter(at);
            }
            self.mapped = bytes;
            self.next_change = self.changes.last().map_or(u64::MAX, |change| change.0);
            if self.inside && self.is_higher() {
                self.raise(at);
            }
        }
    }

    #[inline]
    const fn is_higher(&self) -> bool {
        self.live.bytes.saturating_add(self.mapped) > self.peak.bytes.saturating_add(self.mapped_at_peak)
    }

    /// Takes what is live now as the peak.
    #[inline]
    fn raise(&mut self, at: Position) {
        (self.peak, self.mapped_at_peak, self.at) = (self.live, self.mapped, at);
        self.epoch += 1;
    }

    /// Returns the live blocks and bytes at the peak, and its position in the run.
    pub const fn peak(&self) -> (Held, Position) {
        (self.peak, self.at)
    }

    /// Returns the time around the peak in which the live bytes stayed above nine tenths of it: the
    /// last time before at which they were below, and the first one after, if there is one. `None`
    /// if nothing was live, or if the peak was before the first event of the model.
    pub fn phase(&self) -> Option<(Position, Option<Position>)> {
        (self.peak.bytes > 0 && self.phase.most() == self.peak.bytes).then(|| self.phase.span())
    }

    /// Returns the maximum number of live blocks in the span.
    pub const fn peak_blocks(&self) -> u64 {
        self.peak_blocks
    }

    /// Returns every site that had live blocks at the peak, or live bytes at any time in the span.
    pub fn shares(&self) -> impl Iterator<Item = Share> + '_ {
        self.sites.iter().zip(0u32..).filter_map(|(row, site)| {
            let at_peak = if row.epoch == self.epoch { row.at_peak } else { row.live };
            (at_peak.blocks > 0 || row.own_peak > 0).then_some(Share { site, at_peak, own_peak: row.own_peak })
        })
    }

    /// Returns the live blocks and bytes of a site at the peak.
    pub fn at_peak(&self, site: u32) -> Held {
        match self.sites.get(site as usize) {
            Some(row) if row.epoch == self.epoch => row.at_peak,
            Some(row) => row.live,
            None => Held::default(),
        }
    }

    /// Starts the span: what is live now is the first peak.
    #[cold]
    fn enter(&mut self, at: Position) {
        self.inside = true;
        self.peak_blocks = self.live.blocks;
        self.phase.begin(self.live.bytes, at);
        self.raise(at);
        self.sites.iter_mut().for_each(|site| site.own_peak = site.live.bytes);
    }

    #[inline]
    fn before(&mut self, at: Position) {
        if self.next_change <= at.tick {
            self.map_until(at.tick, at.number);
        }
        if !self.inside && !self.span.is_before(at) {
            self.enter(at);
        }
    }

    #[inline]
    fn change(&mut self, site: u32, change: impl FnOnce(&mut Held)) {
        let epoch = self.epoch;
        let row = row(&mut self.sites, site);
        if row.epoch != epoch {
            (row.at_peak, row.epoch) = (row.live, epoch);
        }
        change(&mut row.live);
        row.own_peak = row.own_peak.max(row.live.bytes);
    }

    #[inline]
    fn remove(&mut self, old: &Block) {
        let give = |held: &mut Held| {
            held.blocks = held.blocks.saturating_sub(1);
            held.bytes = held.bytes.saturating_sub(old.size);
        };
        self.change(old.site, give);
        give(&mut self.live);
    }

    #[inline]
    fn add(&mut self, event: &Event, block: &Block) {
        let take = |held: &mut Held| {
            held.blocks += 1;
            held.bytes = held.bytes.saturating_add(block.size);
        };
        self.change(block.site, take);
        take(&mut self.live);
        if self.inside {
            self.peak_blocks = self.peak_blocks.max(self.live.blocks);
            if self.is_higher() {
                self.raise(event.position());
            }
            self.phase.change(self.live.bytes, event.position());
        }
    }
}

impl Model for Peak {
    #[inline]
    fn alloc(&mut self, event: &Event, block: &Block) {
        self.before(event.position());
        self.add(event, block);
    }

    #[inline]
    fn resize(&mut self, event: &Event, old: Option<&Block>, block: &Block) {
        self.before(event.position());
        if let Some(old) = old {
            self.remove(old);
        }
        self.add(event, block);
    }

    #[inline]
    fn free(&mut self, event: &Event, old: Option<&Block>) {
        self.before(event.position());
        if let Some(old) = old {
            self.remove(old);
            if self.inside {
                self.phase.change(self.live.bytes, event.position());
            }
        }
    }

    #[inline]
    fn prefetch(&self, site: u32, _: bool) {
        std::hint::black_box(self.sites.get(site as usize).map(|row| row.epoch));
    }
}

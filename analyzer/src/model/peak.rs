//! Who holds how much at the moment of the greatest live bytes, in constant time an event.
//!
//! The peak is found only afterwards, so each site remembers what it held at the latest peak
//! lazily: the moment of a new peak only advances an epoch. Before a site changes for the first
//! time in an epoch, what it holds is what it held at the peak that began the epoch. Sites that
//! never change again hold it still.

use super::live_set::Block;
use super::row;
use crate::event::{Event, Position, Span};
use crate::replay::Model;
use heaptape_formats::tape::Summary;

/// Blocks and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Blocks.
    pub blocks: u64,
    /// Bytes.
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Site {
    live: Held,
    at_peak: Held,
    epoch: u64,
    own_peak: u64,
}

/// Finds the peak of a span and each site's share of it.
#[derive(Debug)]
pub struct Peak {
    sites: Vec<Site>,
    live: Held,
    peak: Held,
    peak_blocks: u64,
    at: Position,
    epoch: u64,
    span: Span,
    inside: bool,
}

/// A site's part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Site number.
    pub site: u32,
    /// What it held at the peak.
    pub at_peak: Held,
    /// The most bytes that it ever held in the span, whenever that was.
    pub own_peak: u64,
}

impl Peak {
    /// The peak within a span; events before it are the history that it needs.
    pub fn within(span: Span) -> Self {
        let zero = Held::default();
        let at = Position { number: span.first, tick: span.first_tick };
        Peak { sites: Vec::new(), live: zero, peak: zero, peak_blocks: 0, at, epoch: 0, span, inside: false }
    }

    /// Begins behind what a summary tells of. The number of the event that made the peak is not
    /// known from it.
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
        }
    }

    /// The end: in a span without events the peak is what was live all the time.
    pub fn finish(&mut self) {
        if !self.inside {
            self.enter(self.at);
        }
    }

    /// Live blocks and bytes at the peak, and when that was.
    pub const fn peak(&self) -> (Held, Position) {
        (self.peak, self.at)
    }

    /// The most blocks alive at any moment of the span.
    pub const fn peak_blocks(&self) -> u64 {
        self.peak_blocks
    }

    /// Every site that held something at the peak or had one of its own.
    pub fn shares(&self) -> impl Iterator<Item = Share> + '_ {
        self.sites.iter().zip(0u32..).filter_map(|(row, site)| {
            let at_peak = if row.epoch == self.epoch { row.at_peak } else { row.live };
            (at_peak.blocks > 0 || row.own_peak > 0).then_some(Share { site, at_peak, own_peak: row.own_peak })
        })
    }

    /// What a site held at the peak.
    pub fn at_peak(&self, site: u32) -> Held {
        match self.sites.get(site as usize) {
            Some(row) if row.epoch == self.epoch => row.at_peak,
            Some(row) => row.live,
            None => Held::default(),
        }
    }

    /// Before the first event of the span: what is live then is the peak so far.
    #[cold]
    fn enter(&mut self, at: Position) {
        self.inside = true;
        self.peak = self.live;
        self.peak_blocks = self.live.blocks;
        self.at = at;
        self.epoch += 1;
        self.sites.iter_mut().for_each(|site| site.own_peak = site.live.bytes);
    }

    #[inline]
    fn before(&mut self, at: Position) {
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
    fn given(&mut self, old: &Block) {
        let give = |held: &mut Held| {
            held.blocks = held.blocks.saturating_sub(1);
            held.bytes = held.bytes.saturating_sub(old.size);
        };
        self.change(old.site, give);
        give(&mut self.live);
    }

    #[inline]
    fn taken(&mut self, event: &Event, block: &Block) {
        let take = |held: &mut Held| {
            held.blocks += 1;
            held.bytes = held.bytes.saturating_add(block.size);
        };
        self.change(block.site, take);
        take(&mut self.live);
        if self.inside {
            self.peak_blocks = self.peak_blocks.max(self.live.blocks);
            if self.live.bytes > self.peak.bytes {
                self.peak = self.live;
                self.at = event.position();
                self.epoch += 1;
            }
        }
    }
}

impl Model for Peak {
    #[inline]
    fn alloc(&mut self, event: &Event, block: &Block) {
        self.before(event.position());
        self.taken(event, block);
    }

    #[inline]
    fn resize(&mut self, event: &Event, old: Option<&Block>, block: &Block) {
        self.before(event.position());
        if let Some(old) = old {
            self.given(old);
        }
        self.taken(event, block);
    }

    #[inline]
    fn free(&mut self, event: &Event, old: Option<&Block>) {
        self.before(event.position());
        if let Some(old) = old {
            self.given(old);
        }
    }

    #[inline]
    fn prefetch(&self, site: u32, _: bool) {
        std::hint::black_box(self.sites.get(site as usize).map(|row| row.epoch));
    }
}

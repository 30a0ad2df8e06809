//! What each site did in each slice of the run, so that a reader can add up any range of slices
//! without the events, and how the live bytes went meanwhile.
//!
//! Sparse: a cell is a site in a slot (a power of two of slices) in which it did something. When
//! there are too many cells, slots become twice as wide, again and again: memory is bounded by the
//! sites, whatever the number of events. Sites that did one thing have a cell however wide slots
//! are, so widening stops early unless there are very many.

use super::live_set::{Block, LiveSet};
use super::row;
use super::temporary::Temporary;
use crate::event::{Event, Kind};
use crate::replay::Model;

/// Sums of a site in a slot, or in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Allocations and resizes.
    pub allocs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Blocks of the site that were freed or resized away, whenever they were born.
    pub frees: u64,
    /// Their bytes.
    pub freed_bytes: u64,
    /// Of these, temporary ones: with no event of the same thread between.
    pub temporary: u64,
    /// Their bytes.
    pub temporary_bytes: u64,
    /// Blocks that were born in the slot and are alive at the end of the run.
    pub left: u64,
    /// Their bytes.
    pub left_bytes: u64,
}

impl Sums {
    /// Both together.
    pub fn add(&mut self, other: &Sums) {
        self.allocs += other.allocs;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.frees += other.frees;
        self.freed_bytes = self.freed_bytes.saturating_add(other.freed_bytes);
        self.temporary += other.temporary;
        self.temporary_bytes = self.temporary_bytes.saturating_add(other.temporary_bytes);
        self.left += other.left;
        self.left_bytes = self.left_bytes.saturating_add(other.left_bytes);
    }
}

/// A site in a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    /// The site; whoever keeps cells of several images may number them otherwise.
    pub site: u32,
    /// The slot.
    pub slot: u32,
    /// What it did.
    pub sums: Sums,
}

/// Makes slots twice as wide.
pub fn widen(cells: &mut Vec<Cell>) {
    cells.iter_mut().for_each(|cell| cell.slot /= 2);
    merge(cells);
}

/// Puts cells in order of site and slot, each pair once.
pub fn merge(cells: &mut Vec<Cell>) {
    cells.sort_unstable_by_key(|cell| (cell.site, cell.slot));
    cells.dedup_by(|next, kept| {
        let same = (next.site, next.slot) == (kept.site, kept.slot);
        if same {
            kept.sums.add(&next.sums);
        }
        same
    });
}

/// Fewer slots than this say little of a run.
pub const FEW_SLOTS: usize = 64;
/// So many times too many cells are borne before there are fewer slots than that.
const VERY_MANY: usize = 4;

/// Where the events of an image lie on an axis that images share.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    /// Whether it is made of ticks; else of events.
    pub by_tick: bool,
    /// Tick (or event) at which the image starts.
    pub start: u64,
    /// Slice in which it starts.
    pub offset: f64,
    /// Slices a tick (or event).
    pub scale: f64,
    /// Slices of the axis.
    pub slices: usize,
}

impl Axis {
    /// The slice of a tick (or event).
    #[inline]
    pub fn slice(&self, at: u64) -> usize {
        let at = at.saturating_sub(self.start) as f64 * self.scale + self.offset;
        (at as usize).min(self.slices.saturating_sub(1))
    }
}

/// The image as a whole in a slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Point {
    /// Live bytes at its end.
    pub live_bytes: u64,
    /// The most live bytes in it.
    pub peak_bytes: u64,
    /// Live blocks at its end.
    pub live_blocks: u64,
    /// Allocations and resizes in it.
    pub allocs: u64,
}

/// A site in the slot that is being filled.
#[derive(Clone, Copy, Debug, Default)]
struct Open {
    sums: Sums,
    is_touched: bool,
    /// Temporary blocks and bytes up to the start of the slot.
    temporary: (u64, u64),
}

/// Fills cells.
#[derive(Debug)]
pub struct Slices {
    axis: Axis,
    limit: usize,
    /// Cells that are borne before they are put in order.
    patience: usize,
    /// Slices of a slot, as a power of two.
    pub shift: u32,
    /// The cells, in order once [`Slices::finish`] was called.
    pub cells: Vec<Cell>,
    /// The image as a whole, by slice.
    pub line: Vec<Point>,
    at: usize,
    live: (u64, u64),
    open: Vec<Open>,
    touched: Vec<u32>,
    temporary: Temporary,
}

impl Slices {
    /// About so many cells at most.
    pub fn new(axis: Axis, shift: u32, limit: usize) -> Self {
        Slices {
            axis,
            limit,
            patience: 2 * limit,
            shift,
            cells: Vec::new(),
            line: vec![Point::default(); axis.slices.max(1)],
            at: 0,
            live: (0, 0),
            open: Vec::new(),
            touched: Vec::new(),
            temporary: Temporary::within(0),
        }
    }

    /// The end: what is alive is counted where it was born, and everything is put in order.
    pub fn finish(&mut self, live: &LiveSet) {
        self.advance(self.line.len() - 1);
        self.flush();
        // The latest slice with allocations of each site; blocks of a site lie together in time
        // more often than not.
        let mut births: Vec<(usize, Sums)> = Vec::new();
        for (_, block) in live.iter().filter(|(_, block)| !block.inherited) {
            let slice = self.axis.slice(if self.axis.by_tick { block.tick } else { block.number });
            let (at, sums) = row(&mut births, block.site);
            if *at >> self.shift != slice >> self.shift && sums.left > 0 {
                let cell = Cell { site: block.site, slot: (*at >> self.shift) as u32, sums: std::mem::take(sums) };
                self.cells.push(cell);
                self.bound();
            }
            let (at, sums) = row(&mut births, block.site);
            *at = slice;
            sums.left += 1;
            sums.left_bytes = sums.left_bytes.saturating_add(block.size);
        }
        for ((at, sums), site) in births.into_iter().zip(0u32..).filter(|((_, sums), _)| sums.left > 0) {
            self.cells.push(Cell { site, slot: (at >> self.shift) as u32, sums });
        }
        self.open = Vec::new();
        merge(&mut self.cells);
        while self.cells.len() > self.limit && self.widen() {}
    }

    /// Half as many slots; false when there are few, and not very many cells.
    fn widen(&mut self) -> bool {
        let slots = self.axis.slices >> self.shift;
        if slots <= 1 || slots <= FEW_SLOTS && self.cells.len() <= VERY_MANY * self.limit {
            return false;
        }
        self.shift += 1;
        widen(&mut self.cells);
        true
    }

    fn bound(&mut self) {
        // Putting in order costs more than keeping: so it happens when cells may have doubled since
        // the last time.
        if self.cells.len() > self.patience {
            merge(&mut self.cells);
            while self.cells.len() > self.limit && self.widen() {}
            self.patience = 2 * self.cells.len().max(self.limit);
        }
    }

    #[cold]
    fn advance(&mut self, to: usize) {
        let (live_blocks, live_bytes) = self.live;
        if to >> self.shift != self.at >> self.shift {
            self.flush();
        }
        self.line[self.at + 1..=to].fill(Point { live_bytes, peak_bytes: live_bytes, live_blocks, allocs: 0 });
        self.at = to;
    }

    fn flush(&mut self) {
        let slot = (self.at >> self.shift) as u32;
        for site in self.touched.drain(..) {
            let open = &mut self.open[site as usize];
            let mut sums = std::mem::take(&mut open.sums);
            open.is_touched = false;
            if let Some(row) = self.temporary.rows.get(site as usize) {
                let before = std::mem::replace(&mut open.temporary, (row.blocks, row.bytes));
                (sums.temporary, sums.temporary_bytes) = (row.blocks - before.0, row.bytes.saturating_sub(before.1));
            }
            self.cells.push(Cell { site, slot, sums });
        }
        self.bound();
    }

    #[inline]
    fn open(&mut self, site: u32) -> &mut Sums {
        let open = row(&mut self.open, site);
        if !open.is_touched {
            open.is_touched = true;
            self.touched.push(site);
        }
        &mut open.sums
    }

    #[inline]
    fn change(&mut self, event: &Event, old: Option<&Block>, new: Option<&Block>) {
        let slice = self.axis.slice(if self.axis.by_tick { event.tick } else { event.number });
        if slice > self.at {
            self.advance(slice);
        }
        let (mut blocks, mut bytes) = self.live;
        if let Some(old) = old {
            (blocks, bytes) = (blocks.saturating_sub(1), bytes.saturating_sub(old.size));
            let sums = self.open(old.site);
            sums.frees += 1;
            sums.freed_bytes = sums.freed_bytes.saturating_add(old.size);
        }
        if let Some(new) = new {
            (blocks, bytes) = (blocks + 1, bytes.saturating_add(new.size));
            let sums = self.open(new.site);
            sums.allocs += 1;
            sums.bytes = sums.bytes.saturating_add(new.size);
        }
        self.live = (blocks, bytes);
        let point = &mut self.line[self.at];
        (point.live_blocks, point.live_bytes) = (blocks, bytes);
        point.peak_bytes = point.peak_bytes.max(bytes);
        point.allocs += u64::from(event.kind != Kind::Free);
    }
}

impl Model for Slices {
    #[inline]
    fn alloc(&mut self, event: &Event, block: &Block) {
        self.change(event, None, Some(block));
        self.temporary.alloc(event, block);
    }

    #[inline]
    fn resize(&mut self, event: &Event, old: Option<&Block>, block: &Block) {
        self.change(event, old, Some(block));
        self.temporary.resize(event, old, block);
    }

    #[inline]
    fn free(&mut self, event: &Event, old: Option<&Block>) {
        self.change(event, old, None);
        self.temporary.free(event, old);
    }
}

//! Sums of each site in each slice of the run, and the live bytes over the run. A reader can add up
//! any range of slices without the events.
//!
//! The table is sparse: it has a cell for a site in a slot (a power of two of slices) if the site
//! has events in it. If there are too many cells, slots become twice as wide. So memory is bounded
//! by the number of sites, not by that of events. A site with a single event has a cell regardless
//! of the width, so widening stops early unless there are very many cells.

use super::live_set::Block;
use super::row;
use super::temporary::Temporary;
use crate::event::{Event, Kind};
use crate::model::Model;

/// Sums of a site in one slot, or in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Number of allocations and reallocations.
    pub allocs: u64,
    /// Number of allocated bytes.
    pub bytes: u64,
    /// Number of blocks of the site that were freed or reallocated in the slot. They may have been
    /// allocated before it.
    pub frees: u64,
    /// Number of bytes of these blocks.
    pub freed_bytes: u64,
    /// Number of these blocks that were temporary: allocated and freed without another event of
    /// the thread between.
    pub temporary: u64,
    /// Number of bytes of temporary blocks.
    pub temporary_bytes: u64,
    /// Number of blocks that were allocated in the slot and are live at the end of the run.
    pub left: u64,
    /// Number of bytes of these blocks.
    pub left_bytes: u64,
}

impl Sums {
    /// Adds the sums of another cell.
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

/// The sums of a site in a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    /// Number of the site. In a table of several processes sites may be renumbered.
    pub site: u32,
    pub slot: u32,
    /// The sums of the site in the slot.
    pub sums: Sums,
}

/// Makes all slots twice as wide.
pub fn widen(cells: &mut Vec<Cell>) {
    cells.iter_mut().for_each(|cell| cell.slot /= 2);
    merge(cells);
}

/// Sorts cells by site and slot, and merges those with the same site and slot.
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

/// Number of slots below which widening stops, because fewer would show little of a run.
pub(crate) const FEW_SLOTS: usize = 64;
/// Factor by which the limit of cells may be exceeded before there are fewer slots than that.
const EXCESS_FACTOR: usize = 4;

/// The position of a process on an axis that several processes share.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    /// Whether the unit of the process is a tick. Otherwise it is an event.
    pub by_tick: bool,
    /// Tick or event number at which the process starts.
    pub start: u64,
    /// Slice in which the process starts.
    pub offset: f64,
    /// Number of slices per tick or event.
    pub scale: f64,
    pub slices: usize,
}

impl Axis {
    /// Returns the slice of a tick or event number.
    #[inline]
    pub fn slice(&self, at: u64) -> usize {
        let at = at.saturating_sub(self.start) as f64 * self.scale + self.offset;
        (at as usize).min(self.slices.saturating_sub(1))
    }
}

/// The sums of all sites in a slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Point {
    /// Number of live bytes at its end.
    pub live_bytes: u64,
    pub peak_bytes: u64,
    /// Number of live blocks at its end.
    pub live_blocks: u64,
    /// Number of allocations and reallocations in it.
    pub allocs: u64,
}

/// The sums of a site in the current slot.
#[derive(Clone, Copy, Debug, Default)]
struct OpenCell {
    sums: Sums,
    /// Whether the site has events in the slot.
    is_used: bool,
    /// Temporary blocks and bytes before the slot.
    temporary: (u64, u64),
}

/// The model that computes the cells.
#[derive(Debug)]
pub struct Slices {
    axis: Axis,
    /// Maximum number of cells. It is exceeded if there are very many sites.
    limit: usize,
    /// Number of cells at which they are merged.
    merge_at: usize,
    /// Binary logarithm of the number of slices of a slot.
    pub shift: u32,
    /// The cells. They are sorted after [`Slices::finish`].
    pub cells: Vec<Cell>,
    /// The sums of all sites by slice.
    pub line: Vec<Point>,
    /// Number of the current slice.
    slice: usize,
    /// Live blocks and bytes.
    live: (u64, u64),
    /// The cells of the current slot, by site.
    open: Vec<OpenCell>,
    /// The sites with events in the current slot.
    used: Vec<u32>,
    temporary: Temporary,
}

impl Slices {
    /// Creates a model with slots of 2^`shift` slices and about `limit` cells.
    pub fn new(axis: Axis, shift: u32, limit: usize) -> Self {
        Slices {
            axis,
            limit,
            merge_at: 2 * limit,
            shift,
            cells: Vec::new(),
            line: vec![Point::default(); axis.slices.max(1)],
            slice: 0,
            live: (0, 0),
            open: Vec::new(),
            used: Vec::new(),
            temporary: Temporary::within(0),
        }
    }

    /// Completes the cells at the end of the run. The live blocks are counted in the slot of their
    /// allocation.
    pub fn finish(&mut self, live: impl Iterator<Item = Block>) {
        self.advance(self.line.len() - 1);
        self.flush();
        // By site: the slice of the last block, and the sums of its slot so far. Most often the
        // next block of a site belongs to the same slot.
        let mut survivors: Vec<(usize, Sums)> = Vec::new();
        for block in live.filter(|block| !block.inherited) {
            let slice = self.axis.slice(if self.axis.by_tick { block.tick } else { block.number });
            let (last, sums) = row(&mut survivors, block.site);
            if *last >> self.shift != slice >> self.shift && sums.left > 0 {
                let cell = Cell { site: block.site, slot: (*last >> self.shift) as u32, sums: std::mem::take(sums) };
                self.cells.push(cell);
                self.bound();
            }
            let (last, sums) = row(&mut survivors, block.site);
            *last = slice;
            sums.left += 1;
            sums.left_bytes = sums.left_bytes.saturating_add(block.size);
        }
        for ((last, sums), site) in survivors.into_iter().zip(0u32..).filter(|((_, sums), _)| sums.left > 0) {
            self.cells.push(Cell { site, slot: (last >> self.shift) as u32, sums });
        }
        self.open = Vec::new();
        merge(&mut self.cells);
        while self.cells.len() > self.limit && self.widen() {}
    }

    /// Doubles the width of slots. Returns false if there are few slots and not very many cells.
    fn widen(&mut self) -> bool {
        let slots = self.axis.slices >> self.shift;
        if slots <= 1 || slots <= FEW_SLOTS && self.cells.len() <= EXCESS_FACTOR * self.limit {
            return false;
        }
        self.shift += 1;
        widen(&mut self.cells);
        true
    }

    /// Merges and widens cells if there are too many.
    fn bound(&mut self) {
        // Merging is expensive, so it is done only when the number of cells has doubled since the
        // last time.
        if self.cells.len() > self.merge_at {
            merge(&mut self.cells);
            while self.cells.len() > self.limit && self.widen() {}
            self.merge_at = 2 * self.cells.len().max(self.limit);
        }
    }

    /// Continues the line up to a slice.
    #[cold]
    fn advance(&mut self, to: usize) {
        let (live_blocks, live_bytes) = self.live;
        if to >> self.shift != self.slice >> self.shift {
            self.flush();
        }
        self.line[self.slice + 1..=to].fill(Point { live_bytes, peak_bytes: live_bytes, live_blocks, allocs: 0 });
        self.slice = to;
    }

    /// Moves the cells of the current slot to the table.
    fn flush(&mut self) {
        let slot = (self.slice >> self.shift) as u32;
        for site in self.used.drain(..) {
            let open = &mut self.open[site as usize];
            let mut sums = std::mem::take(&mut open.sums);
            open.is_used = false;
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
        if !open.is_used {
            open.is_used = true;
            self.used.push(site);
        }
        &mut open.sums
    }

    #[inline]
    fn change(&mut self, event: &Event, old: Option<&Block>, new: Option<&Block>) {
        let slice = self.axis.slice(if self.axis.by_tick { event.tick } else { event.number });
        if slice > self.slice {
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
        let point = &mut self.line[self.slice];
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

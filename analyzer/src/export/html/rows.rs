//! The stacks of all processes with their sums, in total and by slot: as many as a page can hold.
//! The smallest rows are folded into their callers, and these into theirs, until few enough remain.
//! Folding keeps sums, and the positions of outer frames.

use super::names::Names;
use super::pack::Columns;
use crate::model::slices::{Cell, FEW_SLOTS, Sums, merge, widen};

/// Maximum number of stacks of a page.
pub(super) const STACKS: usize = 100_000;
/// Maximum number of cells of a page.
pub(super) const CELLS: usize = 400_000;
/// Flag in the site of a row: the row represents small stacks below the site that the other bits
/// are (0: of any caller).
pub(super) const FOLDED: u32 = 1 << 31;

/// A stack of a process over the whole run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Row {
    /// Site of the innermost frame of the stack.
    pub site: u32,
    /// Sums of its allocations and frees.
    pub sums: Sums,
    /// Number of blocks that are live at the peak of the process.
    pub peak_blocks: u64,
    /// Number of bytes that are live at the peak of the process.
    pub peak_bytes: u64,
    /// Number of blocks that were freed at a known time.
    pub died: u64,
    /// Sum of their lifetimes.
    pub lived: u64,
    /// Importance of the row: the sum of its shares of what all rows count.
    pub rank: f64,
}

impl Row {
    fn add(&mut self, other: &Row) {
        self.sums.add(&other.sums);
        self.peak_blocks += other.peak_blocks;
        self.peak_bytes = self.peak_bytes.saturating_add(other.peak_bytes);
        self.died += other.died;
        self.lived = self.lived.saturating_add(other.lived);
    }

    /// Returns what the row is ranked by. The live bytes and blocks are included because a profile
    /// may have no allocations.
    fn counts(&self) -> [u64; 6] {
        let Sums { allocs, bytes, frees, freed_bytes, temporary, .. } = self.sums;
        [allocs, bytes, allocs.saturating_sub(frees), bytes.saturating_sub(freed_bytes), temporary, self.peak_bytes]
    }
}

/// The rows of a group of threads of a process by site, and their cells.
#[derive(Debug, Default)]
pub(super) struct Part {
    pub process: usize,
    /// Index of the group of threads in the process.
    pub group: u32,
    pub rows: Vec<Row>,
    pub cells: Vec<Cell>,
    /// Width of their slots in slices, as a power of two.
    pub shift: u32,
    /// Number of stacks in folded rows.
    pub folded: u64,
}

impl Part {
    /// Changes the site of each row to the one that `to` returns. Rows of the same site become one.
    fn fold(&mut self, to: impl Fn(&Row) -> u32) {
        let mut moved: Vec<(u32, u32)> = Vec::new();
        for row in &mut self.rows {
            let site = to(row);
            if site != row.site {
                self.folded += u64::from(row.site & FOLDED == 0);
                moved.push((row.site, site));
                row.site = site;
            }
        }
        if moved.is_empty() {
            return;
        }
        for cell in &mut self.cells {
            if let Ok(at) = moved.binary_search_by_key(&cell.site, |pair| pair.0) {
                cell.site = moved[at].1;
            }
        }
        merge(&mut self.cells);
        self.rows.sort_by_key(|row| row.site);
        self.rows.dedup_by(|next, kept| {
            let same = next.site == kept.site;
            if same {
                kept.add(next);
            }
            same
        });
    }
}

/// Returns the site that is the given number of frames further out, as a folded one.
fn outwards(site: u32, frames: usize, parent: impl Fn(u32) -> u32) -> u32 {
    let mut at = site & !FOLDED;
    for _ in 0..frames {
        let next = parent(at);
        // In every valid file, the number of a caller is smaller.
        at = if next < at { next } else { 0 };
    }
    at | FOLDED
}

/// Computes the ranks of the rows of all parts.
fn rank(parts: &mut [Part]) {
    let mut totals = [0u64; 6];
    for row in parts.iter().flat_map(|part| &part.rows) {
        totals.iter_mut().zip(row.counts()).for_each(|(total, count)| *total = total.saturating_add(count));
    }
    for row in parts.iter_mut().flat_map(|part| &mut part.rows) {
        let shares = row.counts().into_iter().zip(totals).map(|(count, total)| count as f64 / total.max(1) as f64);
        row.rank = shares.sum();
    }
}

/// Folds rows outwards, all but the largest, when there are more than `most`: of the rows that are
/// folded already if `folded` is set, and of the others if not.
fn fold(parts: &mut [Part], most: usize, folded: bool, frames: usize, parent: &impl Fn(usize, u32) -> u32) {
    rank(parts);
    let meant = |row: &Row| (row.site & FOLDED != 0) == folded;
    let mut ranks: Vec<f64> =
        parts.iter().flat_map(|part| &part.rows).filter(|row| meant(row)).map(|row| row.rank).collect();
    if ranks.len() <= most {
        return;
    }
    // Half of the folded rows stay, so that there is space for the rows that the others become.
    let kept = if folded { most / 2 } else { most };
    let least = *ranks.select_nth_unstable_by(kept, |a, b| b.total_cmp(a)).1;
    for (at, part) in parts.iter_mut().enumerate() {
        part.fold(|row| match meant(row) && row.rank <= least {
            true => outwards(row.site, frames, |site| parent(at, site)),
            false => row.site,
        });
    }
}

/// Folds the smallest rows of all parts until `stacks` of them are left, and makes slots wider
/// until at most `cells` are left. Where that would leave few slots, more rows are folded instead.
/// `parent` returns the caller of a site of a part.
pub(super) fn bound(parts: &mut [Part], stacks: usize, cells: usize, parent: impl Fn(usize, u32) -> u32) {
    let mut stacks = stacks;
    loop {
        fold_to(parts, stacks, &parent);
        if align(parts, cells, FEW_SLOTS) {
            return;
        }
        stacks = stacks / 4 * 3;
        if stacks <= cells / 100 {
            align(parts, cells, 1);
            return;
        }
    }
}

fn fold_to(parts: &mut [Part], stacks: usize, parent: &impl Fn(usize, u32) -> u32) {
    let (few, many) = (stacks / 4, stacks - stacks / 4);
    if parts.iter().map(|part| part.rows.len()).sum::<usize>() > stacks {
        // The largest stacks stay separate, independently of how the others are folded.
        fold(parts, many, false, 1, parent);
        // Folds by one frame outwards, then by twice as many each time: stacks that have no close
        // common caller have one further out.
        for round in 0..16 {
            fold(parts, few, true, 1 << round, parent);
        }
    }
}

/// Merges slots until those of all parts have the same width and there are at most `cells` cells,
/// but keeps at least `least` slots. Returns whether that was possible.
fn align(parts: &mut [Part], cells: usize, least: usize) -> bool {
    loop {
        let widest = parts.iter().map(|part| part.shift).max().unwrap_or(0);
        for part in parts.iter_mut() {
            while part.shift < widest {
                widen(&mut part.cells);
                part.shift += 1;
            }
        }
        let held: usize = parts.iter().map(|part| part.cells.len()).sum();
        let last = parts.iter().flat_map(|part| &part.cells).map(|cell| cell.slot as usize).max().unwrap_or(0);
        if held <= cells || last == 0 {
            return true;
        }
        if last / 2 < least {
            return least == 1;
        }
        if let Some(part) = parts.iter_mut().find(|part| part.shift == widest) {
            widen(&mut part.cells);
            part.shift += 1;
        }
    }
}

/// A row with the number of its stack.
struct Named {
    process: u64,
    group: u64,
    node: u64,
    row: Row,
}

/// Names every row by `node_of` (of a process and a site), and writes rows and cells. Rows whose
/// names do not fit into the page are folded.
pub(super) fn put(
    parts: &mut [Part],
    names: &mut Names,
    mut node_of: impl FnMut(&mut Names, usize, u32) -> Option<u32>,
    columns: &mut Columns,
) {
    rank(parts);
    let mut order: Vec<(usize, usize)> = Vec::new();
    for (at, part) in parts.iter().enumerate() {
        order.extend((0..part.rows.len()).map(|row| (at, row)));
    }
    order.sort_by(|a, b| parts[b.0].rows[b.1].rank.total_cmp(&parts[a.0].rows[a.1].rank).then(a.cmp(b)));
    let mut nodes: Vec<Vec<Option<u32>>> = parts.iter().map(|part| vec![None; part.rows.len()]).collect();
    for (at, row) in order {
        let site = parts[at].rows[row].site;
        nodes[at][row] = match site & !FOLDED {
            0 if site == FOLDED => None,
            plain => node_of(names, parts[at].process, plain)
                .map(|node| if plain == site { node } else { names.smaller(node) }),
        };
    }
    let mut all: Vec<Named> = Vec::new();
    let mut counts = Vec::new();
    let mut cells: Vec<Cell> = Vec::new();
    for (part, nodes) in parts.iter_mut().zip(nodes) {
        let named: Vec<(u32, u32)> =
            part.rows.iter().zip(nodes).filter_map(|(row, node)| Some((row.site, node?))).collect();
        let node = |site: u32| named.binary_search_by_key(&site, |pair| pair.0).ok().map(|at| named[at].1);
        part.fold(|row| if node(row.site).is_some() { row.site } else { FOLDED });
        let mut rest = &part.cells[..];
        for row in &part.rows {
            let node = node(row.site).unwrap_or_else(|| names.smaller(0));
            all.push(Named { process: part.process as u64, group: part.group.into(), node: node.into(), row: *row });
            let own = rest.partition_point(|cell| cell.site <= row.site);
            counts.push(own as u64);
            cells.extend_from_slice(&rest[..own]);
            rest = &rest[own..];
        }
    }
    columns.put("row.process", all.iter().map(|row| row.process));
    columns.put("row.threads", all.iter().map(|row| row.group));
    columns.put("row.node", all.iter().map(|row| row.node));
    let mut row = |name, value: fn(&Row) -> u64| columns.put(name, all.iter().map(|named| value(&named.row)));
    row("row.allocs", |row| row.sums.allocs);
    row("row.bytes", |row| row.sums.bytes);
    row("row.frees", |row| row.sums.frees);
    row("row.freed_bytes", |row| row.sums.freed_bytes);
    row("row.temporary", |row| row.sums.temporary);
    row("row.temporary_bytes", |row| row.sums.temporary_bytes);
    row("row.left", |row| row.sums.left);
    row("row.left_bytes", |row| row.sums.left_bytes);
    row("row.peak_blocks", |row| row.peak_blocks);
    row("row.peak_bytes", |row| row.peak_bytes);
    row("row.died", |row| row.died);
    row("row.lived", |row| row.lived);
    columns.put("row.cells", counts.into_iter());
    let mut cell = |name, value: fn(&Cell) -> u64| columns.put(name, cells.iter().map(value));
    cell("cell.slot", |cell| cell.slot.into());
    cell("cell.allocs", |cell| cell.sums.allocs);
    cell("cell.bytes", |cell| cell.sums.bytes);
    cell("cell.frees", |cell| cell.sums.frees);
    cell("cell.freed_bytes", |cell| cell.sums.freed_bytes);
    cell("cell.temporary", |cell| cell.sums.temporary);
    cell("cell.temporary_bytes", |cell| cell.sums.temporary_bytes);
    cell("cell.left", |cell| cell.sums.left);
    cell("cell.left_bytes", |cell| cell.sums.left_bytes);
}

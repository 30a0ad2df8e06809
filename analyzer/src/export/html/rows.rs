//! The stacks of all images with what they did, all in all and by slot: so many as a page can hold. The least of them are
//! folded into one row of their image, so that sums stay what they are.

use super::names::Names;
use super::pack::Columns;
use crate::model::slices::{Cell, Sums, merge, widen};

/// Stacks of a page.
pub const STACKS: usize = 100_000;
/// Cells of a page.
pub const CELLS: usize = 300_000;
/// Site of what was folded.
const FOLDED: u32 = u32::MAX;

/// A stack of an image over the whole run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Row {
    /// The site that it ends in.
    pub site: u32,
    /// What it did.
    pub sums: Sums,
    /// Blocks alive at the image's peak.
    pub peak_blocks: u64,
    /// Their bytes.
    pub peak_bytes: u64,
    /// Blocks that were freed at a known moment.
    pub died: u64,
    /// Sum of their lifetimes.
    pub lived: u64,
    /// How much it matters: the sum of its shares of what all rows count.
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

    /// What it is ranked by. Live bytes and blocks are those of a profile, too, which has no births.
    fn counts(&self) -> [u64; 6] {
        let Sums { allocs, bytes, frees, freed_bytes, temporary, .. } = self.sums;
        [allocs, bytes, allocs.saturating_sub(frees), bytes.saturating_sub(freed_bytes), temporary, self.peak_bytes]
    }
}

/// The rows of an image, in order of site, and their cells.
#[derive(Debug, Default)]
pub struct Part {
    /// The rows.
    pub rows: Vec<Row>,
    /// The cells.
    pub cells: Vec<Cell>,
    /// Width of their slots as a power of two of slices.
    pub shift: u32,
    /// How many stacks are in the folded row.
    pub folded: u64,
}

impl Part {
    /// Folds all rows that are not kept.
    fn fold(&mut self, keep: impl Fn(&Row) -> bool) {
        let mut folded = Row { site: FOLDED, ..Row::default() };
        let mut gone = Vec::new();
        let before = self.rows.len();
        self.rows.retain(|row| {
            let kept = row.site != FOLDED && keep(row);
            if !kept {
                folded.add(row);
                gone.push(row.site);
            }
            kept
        });
        let had = before > 0 && gone.last() == Some(&FOLDED);
        self.folded += (gone.len() - usize::from(had)) as u64;
        if gone.is_empty() {
            return;
        }
        self.rows.push(folded);
        for cell in &mut self.cells {
            if gone.binary_search(&cell.site).is_ok() {
                cell.site = FOLDED;
            }
        }
        merge(&mut self.cells);
    }
}

/// Weighs the rows of all parts against each other.
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

/// Folds the least rows of all parts until so many are left, and makes slots wider until the cells are few enough.
pub fn bound(parts: &mut [Part], stacks: usize, cells: usize) {
    let rows: usize = parts.iter().map(|part| part.rows.len()).sum();
    if rows > stacks {
        rank(parts);
        let mut ranks: Vec<f64> = parts.iter().flat_map(|part| &part.rows).map(|row| row.rank).collect();
        ranks.select_nth_unstable_by(stacks, |a, b| b.total_cmp(a));
        let least = ranks[stacks];
        parts.iter_mut().for_each(|part| part.fold(|row| row.rank > least));
    }
    loop {
        let widest = parts.iter().map(|part| part.shift).max().unwrap_or(0);
        for part in parts.iter_mut() {
            while part.shift < widest {
                widen(&mut part.cells);
                part.shift += 1;
            }
        }
        let held: usize = parts.iter().map(|part| part.cells.len()).sum();
        let slots = parts.iter().flat_map(|part| &part.cells).map(|cell| cell.slot).max().unwrap_or(0);
        if held <= cells || slots == 0 {
            return;
        }
        if let Some(part) = parts.iter_mut().find(|part| part.shift == widest) {
            widen(&mut part.cells);
            part.shift += 1;
        }
    }
}

/// Names every row by `node_of` (of an image and site), folding those for whose names the page has no room, and writes rows and cells.
pub fn put(
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
        if site != FOLDED {
            nodes[at][row] = node_of(names, at, site);
        }
    }
    let mut all: Vec<(u64, u64, Row)> = Vec::new();
    let mut counts = Vec::new();
    let mut cells: Vec<Cell> = Vec::new();
    for ((number, part), nodes) in (0u64..).zip(parts.iter_mut()).zip(nodes) {
        let named: Vec<(u32, u32)> =
            part.rows.iter().zip(nodes).filter_map(|(row, node)| Some((row.site, node?))).collect();
        let node = |site: u32| named.binary_search_by_key(&site, |pair| pair.0).ok().map(|at| named[at].1);
        part.fold(|row| node(row.site).is_some());
        let mut rest = &part.cells[..];
        for row in &part.rows {
            let node = node(row.site).unwrap_or_else(|| names.made_up("(smaller stacks)"));
            all.push((number, node.into(), *row));
            let own = rest.partition_point(|cell| cell.site <= row.site);
            counts.push(own as u64);
            cells.extend_from_slice(&rest[..own]);
            rest = &rest[own..];
        }
    }
    columns.put("row.process", all.iter().map(|row| row.0));
    columns.put("row.node", all.iter().map(|row| row.1));
    let mut row = |name, value: fn(&Row) -> u64| columns.put(name, all.iter().map(|(_, _, row)| value(row)));
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

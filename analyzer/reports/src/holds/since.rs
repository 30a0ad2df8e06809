//! `holds --since`: what is held more than in an earlier recording of the program, and by what. Each
//! block counts once, with what holds it on the way to its nearest root.

use heaptape_analyzer::report::holders::{Amount, Holders};
use heaptape_analyzer::text::{Screen, bytes, counted};
use heaptape_analyzer::{Process, Recording};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::io;

/// Blocks of one kind that another kind, or a root, holds.
#[derive(Serialize)]
pub(super) struct GrownRow {
    holder: String,
    what: String,
    before_blocks: u64,
    before_bytes: u64,
    blocks: u64,
    bytes: u64,
}

impl GrownRow {
    fn grown(&self) -> i128 {
        i128::from(self.bytes) - i128::from(self.before_bytes)
    }
}

type Edges = HashMap<(String, String), Amount>;

fn edges(holders: &Holders<'_>) -> Edges {
    let mut edges = Edges::new();
    for (number, block) in (0..).zip(holders.snapshot.graph.blocks.iter()) {
        if let Some(holder) = holders.holder(number) {
            edges.entry((holder, holders.label(number).text.clone())).or_default().add(&block);
        }
    }
    edges
}

/// Returns the process of an earlier recording that runs the same program: of several the one that is
/// as many processes after the first one.
pub(super) fn same_program<'r>(before: &'r Recording, process: &Process, number: usize) -> Option<&'r Process> {
    let mut same = before.processes.iter().filter(|earlier| earlier.name() == process.name());
    same.nth(number)
}

/// Returns what grew, most bytes first.
pub(super) fn rows(before: &Holders<'_>, after: &Holders<'_>, top: usize) -> Vec<GrownRow> {
    let mut earlier = edges(before);
    let row = |((holder, what), Amount { blocks, bytes }): ((String, String), Amount)| {
        let key = (holder, what);
        let Amount { blocks: before_blocks, bytes: before_bytes } = earlier.remove(&key).unwrap_or_default();
        let (holder, what) = key;
        GrownRow { holder, what, before_blocks, before_bytes, blocks, bytes }
    };
    let mut rows: Vec<GrownRow> = edges(after).into_iter().map(row).filter(|row| row.grown() > 0).collect();
    rows.sort_by(|a, b| (Reverse(a.grown()), &a.holder, &a.what).cmp(&(Reverse(b.grown()), &b.holder, &b.what)));
    rows.truncate(top);
    rows
}

pub(super) fn print(rows: &[GrownRow], screen: &mut Screen) -> io::Result<()> {
    if rows.is_empty() {
        return screen.line("nothing is held more than before");
    }
    screen.heading("Held more than before")?;
    let cells = |row: &GrownRow| {
        let grown = u64::try_from(row.grown()).unwrap_or(u64::MAX);
        let more = row.blocks as i64 - row.before_blocks as i64;
        let blocks = if more < 0 { more.to_string() } else { format!("+{more}") };
        vec![format!("+{}", bytes(grown)), blocks, bytes(row.bytes), format!("{} <- {}", row.what, row.holder)]
    };
    let rows: Vec<Vec<String>> = rows.iter().map(cells).collect();
    screen.table(&["bytes", "blocks", "now", "what <- what holds it"], &rows)?;
    screen.line(&format!(
        "{}, each with what holds it on the way to its nearest root",
        counted(rows.len() as u64, "kind")
    ))
}

//! What the core of a program that did not crash says first: how much is live, and what of it nothing
//! holds.

use super::unrecorded::HeapRow;
use heaptape_analyzer::report::holders::{Amount, Holders};
use heaptape_analyzer::report::{Query, lost};
use heaptape_analyzer::text::{Screen, bytes, count, counted};
use serde::Serialize;
use std::io;
use std::path::Path;

/// Number of roots that are named.
const ROOTS: usize = 5;

#[derive(Serialize)]
struct RootRow {
    name: String,
    blocks: u64,
    bytes: u64,
}

#[derive(Default, Serialize)]
pub(super) struct AliveRow {
    blocks: u64,
    bytes: u64,
    /// What nothing holds, cycles included.
    lost_blocks: u64,
    lost_bytes: u64,
    cycle_blocks: u64,
    cycle_bytes: u64,
    /// Why what is not held is not judged; empty if it is.
    lacks: String,
    /// The roots that hold most.
    held_by: Vec<RootRow>,
    /// What to ask next.
    #[serde(skip)]
    pub(super) next: String,
}

impl AliveRow {
    /// Sums up who holds what; without that, why it is not known.
    pub(super) fn of(holders: &mut Result<Option<Holders<'_>>, String>, query: &Query, core: &Path) -> AliveRow {
        let path = core.display();
        let with = query.scope.paths.iter().filter(|other| *other != core).map(|dir| format!(" {}", dir.display()));
        let next = format!("who holds what: heaptape holds {path}{}", with.collect::<String>());
        let holders = match holders {
            Ok(Some(holders)) => holders,
            Ok(None) => return AliveRow { lacks: "its memory was not read".into(), next, ..AliveRow::default() },
            Err(why) => return AliveRow { lacks: why.clone(), next, ..AliveRow::default() },
        };
        let lost = lost::find(holders);
        let mut all = Amount::default();
        holders.snapshot.graph.blocks.iter().for_each(|block| all.add(&block));
        let row = |group: &heaptape_analyzer::report::holders::RootGroup| RootRow {
            name: group.name.clone(),
            blocks: group.held.blocks,
            bytes: group.held.bytes,
        };
        let mut held_by: Vec<RootRow> = holders.groups.iter().filter(|group| group.held.blocks > 0).map(row).collect();
        held_by.sort_by(|a, b| (b.bytes, &a.name).cmp(&(a.bytes, &b.name)));
        held_by.truncate(ROOTS);
        AliveRow {
            blocks: all.blocks,
            bytes: all.bytes,
            lost_blocks: lost.amount.blocks,
            lost_bytes: lost.amount.bytes,
            cycle_blocks: lost.in_cycles.blocks,
            cycle_bytes: lost.in_cycles.bytes,
            lacks: lost.lacks,
            held_by,
            next,
        }
    }

    /// Returns the answer in one sentence.
    pub(super) fn verdict(&self, threads: usize, heap: Option<&HeapRow>) -> String {
        let threads = counted(threads as u64, "thread");
        if self.blocks == 0 && !self.lacks.is_empty() {
            return format!("no crash: {threads}; what is live is not known: {}", self.lacks);
        }
        let lost = match (self.lost_bytes - self.cycle_bytes, self.cycle_bytes) {
            _ if !self.lacks.is_empty() => format!("what nothing holds is not judged, since {}", self.lacks),
            (0, 0) => "none lost".into(),
            (lost, 0) => format!("{} lost", bytes(lost)),
            (0, cycles) => format!("{} in cycles that nothing else holds", bytes(cycles)),
            (lost, cycles) => format!("{} lost, {} in cycles that nothing else holds", bytes(lost), bytes(cycles)),
        };
        let damage = heap.and_then(HeapRow::damage).map(|damage| format!("; {damage}")).unwrap_or_default();
        let live = format!("{} live in {}", bytes(self.bytes), counted(self.blocks, "block"));
        format!("no crash: {live}; {lost}; {threads}{damage}")
    }

    pub(super) fn print(&self, screen: &mut Screen) -> io::Result<()> {
        let row = |row: &RootRow| vec![bytes(row.bytes), count(row.blocks), row.name.clone()];
        let rows: Vec<Vec<String>> = self.held_by.iter().map(row).collect();
        if rows.is_empty() {
            return Ok(());
        }
        screen.heading("Held by")?;
        screen.table(&["bytes", "blocks", "nearest root"], &rows)
    }
}

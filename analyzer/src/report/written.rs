//! How much of the large blocks a program wrote to, as far as snapshots of its pages show that.

use super::bills;
use crate::event::{Event, Span};
use crate::load::Process;
use crate::load::tape::PageSnapshot;
use crate::model::Model;
use crate::model::live_set::{Block, LiveSet};
use crate::progress::Progress;
use crate::replay::replay;
use heaptape_formats::tape::{PageKind, PageRun};
use rustc_hash::FxHashMap;

/// Blocks of fewer bytes are taken for written.
const MIN_SIZE: u64 = 64 << 10;
/// Maximum number of snapshots that are read.
const MAX_SNAPSHOTS: usize = 64;

/// What is known of a block.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Most bytes of it that were on pages in memory, or swapped out.
    bytes: u64,
    /// Tick of the last snapshot.
    tick: u64,
}

/// Finds out how much of the large blocks was written.
#[derive(Debug)]
struct Written<'a> {
    process: &'a Process,
    page: u64,
    /// The chosen snapshots, earliest first.
    snapshots: Vec<&'a PageSnapshot>,
    done: usize,
    /// The large blocks by allocation index.
    seen: FxHashMap<u64, Seen>,
}

/// Returns the bytes of an address range that are on pages of these runs.
fn bytes_in(runs: &[PageRun], page: u64, start: u64, end: u64) -> u64 {
    let first = runs.partition_point(|run| run.end().saturating_mul(page) <= start);
    let here = runs[first..].iter().take_while(|run| run.first.saturating_mul(page) < end);
    let written = here.filter(|run| run.kind != PageKind::Zero);
    written.map(|run| run.end().saturating_mul(page).min(end) - (run.first * page).max(start)).sum()
}

/// Whether a snapshot says how much of a block was written in the end: a block that lived longer
/// after it than before may have been written later.
const fn is_evidence(born: u64, seen: u64, freed: u64) -> bool {
    freed.saturating_sub(seen) <= seen.saturating_sub(born)
}

impl Model for Written<'_> {
    fn free(&mut self, event: &Event, old: Option<&Block>) {
        let Some(old) = old.filter(|old| old.size >= MIN_SIZE) else { return };
        if self.seen.get(&event.index).is_some_and(|seen| !is_evidence(old.tick, seen.tick, event.tick)) {
            self.seen.remove(&event.index);
        }
    }

    fn next_stop(&self) -> u64 {
        self.snapshots.get(self.done).map_or(u64::MAX, |snapshot| bills::middle(&snapshot.sums))
    }

    fn stop(&mut self, live: &LiveSet) {
        let Some(snapshot) = self.snapshots.get(self.done) else { return };
        self.done += 1;
        let Some(Ok(runs)) = self.process.page_snapshot(snapshot).map(|record| record.runs()) else { return };
        for (index, block) in live.iter().filter(|(_, block)| block.size >= MIN_SIZE) {
            let end = block.address.saturating_add(block.size);
            let bytes = bytes_in(&runs, self.page, block.address, end);
            let tick = snapshot.sums.tick;
            let seen = self.seen.entry(index).or_insert(Seen { bytes, tick });
            *seen = Seen { bytes: bytes.max(seen.bytes), tick };
        }
    }
}

/// Returns how many bytes the program wrote of blocks of which it did not write all, by their
/// allocation index, as far as snapshots of the pages show it.
pub fn written_bytes(process: &Process, progress: &Progress) -> FxHashMap<u64, u64> {
    let mut snapshots: Vec<&PageSnapshot> =
        process.tape.snapshots.iter().filter(|snapshot| snapshot.sums.method != 0).collect();
    if snapshots.is_empty() || !process.knows_blocks() {
        return FxHashMap::default();
    }
    snapshots.sort_by_key(|snapshot| snapshot.sums.tick);
    // The last one is always read.
    let step = snapshots.len().div_ceil(MAX_SNAPSHOTS);
    snapshots = snapshots.into_iter().rev().step_by(step).collect();
    snapshots.reverse();
    let page = bills::page_bytes(process);
    let mut written = Written { process, page, snapshots, done: 0, seen: FxHashMap::default() };
    let live = replay(process, Span::ALL, progress, &mut written).live;
    let end = process.tape.last_tick;
    for (index, block) in live.iter().filter(|(_, block)| block.size >= MIN_SIZE) {
        if written.seen.get(&index).is_some_and(|seen| !is_evidence(block.tick, seen.tick, end)) {
            written.seen.remove(&index);
        }
    }
    written.seen.into_iter().map(|(index, seen)| (index, seen.bytes)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_on_pages_in_memory_are_counted() {
        let run = |first, pages, kind| PageRun { first, pages, kind, is_huge: false };
        let runs = [
            run(1, 2, PageKind::Anonymous),
            run(5, 1, PageKind::Swapped),
            run(6, 9, PageKind::Zero),
            run(20, 5, PageKind::Anonymous),
        ];
        assert_eq!(bytes_in(&runs, 4096, 4096 + 100, 22 * 4096 + 7), 2 * 4096 - 100 + 4096 + 2 * 4096 + 7);
        assert_eq!(bytes_in(&runs, 4096, 3 * 4096, 5 * 4096), 0);
    }

    #[test]
    fn early_snapshot_says_nothing_of_a_block() {
        assert!(is_evidence(100, 150, 200) && is_evidence(100, 200, 200));
        assert!(!is_evidence(100, 149, 200));
    }
}

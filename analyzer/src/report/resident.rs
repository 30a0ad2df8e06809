//! The resident memory of a process at a snapshot of its pages, and that of its heap over the run.

use super::Error;
use super::ancestors::Ancestors;
use super::bills::{self, Joined, OverTime, Part, Point, parts};
use crate::event::Span;
use crate::load::Process;
use crate::missing::Missing;
use crate::model::covered::Covered;
use crate::progress::Progress;
use crate::replay::replay;
use heaptape_formats::resident::Bill;
use heaptape_formats::tape::Residency;
use serde::Serialize;

/// The resident memory of a process at a snapshot.
#[derive(Debug)]
pub struct Found {
    /// The memory, joined with the live blocks.
    pub joined: Joined,
    /// The ancestors of a forked child whose blocks are among these.
    pub ancestors: Ancestors,
    /// What was found missing during the replay.
    pub missing: Vec<Missing>,
}

impl Found {
    /// Returns the resident memory by use.
    pub fn parts(&self) -> Vec<Part> {
        parts(&self.joined.resident.bill, self.joined.allocator)
    }

    /// Returns the bytes by use.
    pub const fn bill(&self) -> Bill {
        self.joined.resident.bill
    }
}

/// Joins a snapshot with the blocks that were live at its time.
///
/// # Errors
/// Returns [`Error::Unanswerable`] when the pages of the snapshot are damaged.
pub fn find(process: &Process, snapshot: &Residency, progress: &Progress) -> Result<Found, Error> {
    let runs = bills::runs(snapshot)?;
    if !process.knows_blocks() {
        let ancestors = Ancestors::default();
        let divided = process.division_at(snapshot.tick).and_then(bills::of_division);
        let joined = divided.unwrap_or_else(|| bills::join(process, snapshot, &runs, None, &ancestors));
        return Ok(Found { joined, ancestors, missing: Vec::new() });
    }
    let mut covered = Covered::new(&runs, bills::page_bytes(process), bills::MAX_GROUPS);
    covered.set_allocator(bills::main_allocator(process, snapshot));
    let mut ancestors = Ancestors::of(process, progress, &mut covered);
    let span = Span { end_tick: bills::middle(snapshot).saturating_add(1), ..Span::ALL };
    let outcome = replay(process, span, progress, &mut (&mut covered, &mut ancestors));
    let joined = bills::join(process, snapshot, &runs, Some((&outcome.live, &covered)), &ancestors);
    Ok(Found { joined, ancestors, missing: outcome.missing })
}

/// The resident memory of the heap of a process as it was recorded: live blocks, their slack, and
/// free memory that once was a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RecordedHeap {
    pub allocator: &'static str,
    /// The snapshot with the most memory, in bytes.
    pub peak_bytes: u64,
    /// The last snapshot, in bytes.
    pub end_bytes: u64,
    /// Live bytes at the last snapshot that were never written, and are not in the sums.
    pub untouched_bytes: u64,
    /// Number of snapshots of the process.
    pub snapshots: u64,
}

/// Computes the resident memory of the heap of a process from the snapshots of its pages. `None`
/// without snapshots, or if the blocks are not known one by one.
pub fn recorded_heap(process: &Process, progress: &Progress) -> Option<RecordedHeap> {
    let mut over_time = OverTime::most_and_last(process);
    replay(process, Span::ALL, progress, &mut over_time);
    let heap = |point: &Point| point.bill.live + point.bill.slack + point.bill.held + point.bill.free_pages;
    let last = over_time.points.last()?;
    Some(RecordedHeap {
        allocator: last.allocator.name(),
        peak_bytes: over_time.points.iter().map(heap).max()?,
        end_bytes: heap(last),
        untouched_bytes: last.untouched,
        snapshots: process.tape.snapshots.len() as u64,
    })
}

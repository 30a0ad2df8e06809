//! How much of the memory of a process was ever a recorded block, by the last snapshot of its
//! pages.
//!
//! This is measured from outside. An allocator inside the program has sums of its own, but only a
//! call in the process returns them, and it may hold the allocator's locks at that time.

use super::resident;
use crate::load::Process;
use crate::progress::Progress;
use heaptape_formats::resident::Bill;
use serde::Serialize;

/// Memory beyond one and a half times the peak of the recorded blocks that a process may have
/// without a look at its pages: tables of the allocator and of libraries, variables.
const ALLOWANCE: u64 = 4 << 20;

/// How much of the memory of a process of its own was ever a recorded block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Coverage {
    /// Time of the snapshot in nanoseconds after the start; `null` without times.
    pub at_ns: Option<u64>,
    /// Resident bytes of memory that is neither of files, nor shared, nor a stack.
    pub own_bytes: u64,
    /// Bytes of these on pages that never held a recorded block.
    pub never_block_bytes: u64,
}

/// Returns whether a process may have memory of an allocator that is not recorded: one inside the
/// program, or much more memory than recorded blocks.
pub fn is_in_doubt(process: &Process, peak_bytes: u64) -> bool {
    let most = process.tape.snapshots.iter().map(|snapshot| snapshot.sums.anonymous_bytes).max().unwrap_or(0);
    !process.about.allocators.is_empty() || most > peak_bytes.saturating_add(peak_bytes / 2).saturating_add(ALLOWANCE)
}

/// Returns the coverage of a process. It is `None` without a snapshot of the pages, and where the
/// blocks are not known one by one.
pub fn of(process: &Process, progress: &Progress) -> Option<Coverage> {
    let with_pages = process.tape.snapshots.iter().filter(|snapshot| snapshot.sums.method != 0);
    let last = with_pages.max_by_key(|snapshot| snapshot.sums.tick)?;
    if !process.knows_blocks() && last.division.as_ref().is_none_or(|division| !division.lacks.0.is_empty()) {
        return None;
    }
    let snapshot = process.page_snapshot(last)?;
    let found = resident::find(process, &snapshot, progress).ok()?;
    let Bill { live, slack, held, free_pages, never_block, .. } = found.bill();
    let own_bytes = [live, slack, held, free_pages, never_block].into_iter().fold(0, u64::saturating_add);
    let at_ns = process.has_times().then(|| process.clock.nanos(snapshot.tick));
    (own_bytes > 0).then_some(Coverage { at_ns, own_bytes, never_block_bytes: never_block })
}

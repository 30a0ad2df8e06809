//! How much of the memory of a process was ever a recorded block, by the last snapshot of its
//! pages.
//!
//! This is measured from outside. An allocator inside the program has sums of its own, but only a
//! call in the process returns them, and it may hold the allocator's locks at that time.

use super::resident;
use crate::load::{Process, Recording};
use crate::missing::Missing;
use crate::processes::ProcessFilter;
use crate::progress::Progress;
use heaptape_formats::recording::RAN_ALREADY;
use heaptape_formats::resident::{Bill, NeverBlock};
use heaptape_formats::tape::{MAPPING_ANONYMOUS, MAPPING_FILE, Residency};
use serde::Serialize;

/// Memory beyond one and a half times the peak of the recorded blocks that a process may have
/// without a look at its pages: tables of the allocator and of libraries, variables.
const ALLOWANCE: u64 = 4 << 20;
/// Bytes of unexplained memory up to which nothing counts as missing.
const UNSEEN_BYTES: u64 = 8 << 20;
/// The same where another allocator than that of the C library is called, also one inside the program:
/// its tables are larger, most of all with pages of 64 KiB (jemalloc: 10 MiB for two threads).
const UNSEEN_BYTES_OF_OTHERS: u64 = 32 << 20;

/// How much of the memory of a process of its own was ever a recorded block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Coverage {
    /// Time of the snapshot in nanoseconds after the start; `null` without times.
    pub at_ns: Option<u64>,
    /// Resident bytes of memory that is neither of files, nor shared, nor a stack.
    pub own_bytes: u64,
    /// Bytes of these on pages that never held a recorded block.
    pub never_block_bytes: u64,
    /// Bytes of the latter that are explained otherwise: the program mapped them itself by a
    /// recorded call, or they are its variables.
    pub explained_bytes: u64,
}

impl Coverage {
    /// Returns what is missing of a process if most of its memory is not explained.
    pub fn unseen(&self, process: &Process) -> Option<Missing> {
        let library = process.about.malloc.rsplit('/').next().unwrap_or_default();
        let is_libc = ["libc.", "libc-", "ld-musl-"].iter().any(|start| library.starts_with(start));
        let is_other = !library.is_empty() && !is_libc && !process.about.own_malloc;
        let is_inside = process.about.allocators.iter().any(|allocator| allocator.events > 0);
        let least = if is_other || is_inside { UNSEEN_BYTES_OF_OTHERS } else { UNSEEN_BYTES };
        let own_bytes = self.own_bytes.saturating_sub(self.explained_bytes);
        let unseen_bytes = self.never_block_bytes.saturating_sub(self.explained_bytes);
        let is_most = unseen_bytes > own_bytes / 2 && unseen_bytes > least;
        is_most.then_some(Missing::Unseen { own_bytes, unseen_bytes })
    }
}

/// Adds to what is missing of the selected processes that most of their memory was not seen. Needs
/// a pass over the events of those processes only that have much more memory than recorded blocks.
pub(crate) fn note_unseen(recordings: &mut [Recording], filter: &ProcessFilter) {
    let progress = Progress::new("reading pages");
    for process in recordings.iter_mut().flat_map(|recording| &mut recording.processes) {
        if filter.matches(process)
            && may_be_unseen(process)
            && let Some(missing) = of(process, &progress).and_then(|coverage| coverage.unseen(process))
        {
            process.missing.push(missing);
        }
    }
}

/// Returns whether a process was recorded from its start on. Blocks from before an attach, a killed
/// daemon or a mode without blocks are not known, and that is no news.
pub(crate) fn has_no_past(process: &Process) -> bool {
    process.about.unseen_mappings != RAN_ALREADY && process.live_since_unix_ns().is_none()
}

/// Returns whether most of the memory of a process may be that of an allocator that was not seen,
/// by its sums alone.
fn may_be_unseen(process: &Process) -> bool {
    let last = process.tape.snapshots.iter().filter(|snapshot| snapshot.sums.method != 0);
    let last = last.max_by_key(|snapshot| snapshot.sums.tick).map_or(0, |snapshot| snapshot.sums.anonymous_bytes);
    last > UNSEEN_BYTES
        && has_no_past(process)
        && !process.is_being_written()
        && has_much_memory(process, process.ready_sums().map_or(0, |sums| sums.totals.peak_bytes))
}

/// Returns whether a process has much more memory than recorded blocks.
fn has_much_memory(process: &Process, peak_bytes: u64) -> bool {
    let most = process.tape.snapshots.iter().map(|snapshot| snapshot.sums.anonymous_bytes).max().unwrap_or(0);
    most > peak_bytes.saturating_add(peak_bytes / 2).saturating_add(ALLOWANCE)
}

/// Returns whether a process may have memory of an allocator that is not recorded: one inside the
/// program, or much more memory than recorded blocks.
pub(crate) fn is_in_doubt(process: &Process, peak_bytes: u64) -> bool {
    !process.about.allocators.is_empty() || has_much_memory(process, peak_bytes)
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
    let explained_bytes = explained(process, &snapshot, &found.joined.resident.never_block).min(never_block);
    (own_bytes > 0).then_some(Coverage { at_ns, own_bytes, never_block_bytes: never_block, explained_bytes })
}

/// Returns how much of the memory that never held a block is explained otherwise.
fn explained(process: &Process, snapshot: &Residency, never_block: &[NeverBlock]) -> u64 {
    let mut known = variables(process, snapshot);
    // What an allocator maps that is known and not hooked looks like that of the program.
    if process.about.allocators.iter().all(|allocator| allocator.hooked > 0) {
        let mapped = process.mapped_at(snapshot.tick);
        known.extend(mapped.iter().map(|range| (range.start, range.end)));
    }
    known.sort_unstable();
    // Ranges of both kinds may overlap.
    let mut end = 0;
    for range in &mut known {
        *range = (range.0.max(end), range.1.max(end));
        end = range.1;
    }
    let of = |never: &NeverBlock| {
        let first = known.partition_point(|range| range.1 <= never.start);
        let over = known[first..].iter().take_while(|range| range.0 < never.end);
        let inside = over.map(|range| range.1.min(never.end).saturating_sub(range.0.max(never.start)));
        inside.sum::<u64>().min(never.bytes)
    };
    never_block.iter().map(of).sum()
}

/// Returns the addresses of the variables of the program that have no bytes in its file: they are
/// directly after its mappings.
fn variables(process: &Process, snapshot: &Residency) -> Vec<(u64, u64)> {
    let (mut at, mut after_program) = (0u64, false);
    let mut found = Vec::new();
    for mapping in &snapshot.mappings {
        let start = at.saturating_add(mapping.gap);
        at = start.saturating_add(mapping.length);
        let is_after = after_program && mapping.gap == 0 && mapping.kind == MAPPING_ANONYMOUS;
        if is_after {
            found.push((start, at));
        }
        let name = mapping.name.checked_sub(1).and_then(|name| snapshot.names.get(name as usize));
        let is_program = name.is_some_and(|name| name.lossy() == process.about.exe);
        after_program = is_after || (mapping.kind == MAPPING_FILE && is_program);
    }
    found
}

//! `heaptape rss`: what the resident memory of a process consists of at a point in time, and which
//! call sites keep free memory in use.

use crate::print::{Report, print_reports};
use crate::unknown_blocks::UnknownBlocks;
use heaptape_analyzer::PageSnapshot;
use heaptape_analyzer::Process;
use heaptape_analyzer::event::Range;
use heaptape_analyzer::report::bills::{self, Joined, Part, parts};
use heaptape_analyzer::report::mapped::{self, MappedBytes, MappedRow, ReturnedRow};
use heaptape_analyzer::report::pinned::{self, Shared, Sites};
use heaptape_analyzer::report::resident::{Found, find};
use heaptape_analyzer::report::{Error, Outcome, PointInTime, Query, Unanswerable};
use heaptape_analyzer::symbols::Symbolizer;
use heaptape_analyzer::text::{Screen, Style, bytes, count, counted, duration, percent};
use heaptape_formats::resident::{Heap, HeapKind, NeverBlock};
use heaptape_formats::tape::{
    MappedRange, MappedRanges, PAGES_PAGEMAP, RESIDENCY_END, RESIDENCY_EXIT, Residency, residency_cause,
};
use serde::Serialize;
use std::io::{self, Write};

/// Maximum number of heaps in the text; JSON has all.
const MAX_HEAPS: usize = 10;
/// Memory of fewer bytes that is not resident is in JSON only.
const MIN_SHOWN: u64 = 1 << 20;

/// The snapshot that the report is about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    /// The last snapshot of the range.
    End,
    /// The one with the most resident memory.
    Peak,
}

#[derive(Serialize)]
struct HeapRow {
    kind: &'static str,
    /// First address, as hexadecimal text; `null` for blocks with mappings of their own.
    address: Option<String>,
    resident_bytes: u64,
    live_bytes: u64,
    slack_bytes: u64,
    held_free_bytes: u64,
    free_page_bytes: u64,
    never_block_bytes: u64,
}

impl HeapRow {
    fn of(heap: &Heap) -> HeapRow {
        let kind = match heap.kind {
            HeapKind::Main => "main",
            HeapKind::Arena => "arena",
            HeapKind::Mapping => "mapping",
            HeapKind::Mapped => "mapped_blocks",
        };
        let bill = &heap.bill;
        HeapRow {
            kind,
            address: (heap.kind != HeapKind::Mapped).then(|| format!("{:#x}", heap.address)),
            resident_bytes: bill.sum(),
            live_bytes: bill.live,
            slack_bytes: bill.slack,
            held_free_bytes: bill.held,
            free_page_bytes: bill.free_pages,
            never_block_bytes: bill.never_block,
        }
    }

    /// Returns what the heap is, for people.
    fn text(&self) -> String {
        let address = self.address.as_deref().unwrap_or_default();
        match self.kind {
            "main" => "the heap that grows by brk".into(),
            "arena" => format!("arena at {address}"),
            "mapping" => format!("mapping at {address}"),
            _ => "blocks with mappings of their own".into(),
        }
    }
}

#[derive(Serialize)]
struct RssReport {
    at: PointInTime,
    /// Why the snapshot was taken.
    cause: &'static str,
    /// `scan` or `pagemap`; `null` if the pages could not be read.
    method: Option<&'static str>,
    /// Why pages are missing; empty if none are.
    lacks: String,
    /// Time that the reading of the pages took.
    read_ns: u64,
    /// The resident memory according to the kernel.
    resident_bytes: u64,
    anonymous_bytes: u64,
    file_bytes: u64,
    shared_bytes: u64,
    sum_bytes: u64,
    parts: Vec<Part>,
    /// The allocator whose size classes the slack is computed with.
    allocator: &'static str,
    /// Live bytes on pages that were never written, which are not resident.
    untouched_bytes: u64,
    swapped_bytes: u64,
    swapped_live_bytes: u64,
    zero_page_bytes: u64,
    huge_page_bytes: u64,
    /// Live blocks that an ancestor of a forked child allocated.
    inherited_blocks: u64,
    inherited_bytes: u64,
    heaps: Vec<HeapRow>,
    #[serde(flatten)]
    sites: Sites,
    /// Memory that never was a block's, by the call sites that mapped it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    mapped: Vec<MappedRow>,
    /// Memory that the program returned by `madvise` up to the snapshot, by call site.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    returned: Vec<ReturnedRow>,
    /// Maximum number of rows in text.
    #[serde(skip)]
    top: usize,
    /// Nanoseconds from the snapshot to the end of the process, if no later snapshot exists and the
    /// process did not wait for one at its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_later_ns: Option<u64>,
    /// Number of snapshots of the process.
    snapshots: u64,
    /// Bytes of the part `files` that are private pages which the process has written.
    written_file_bytes: u64,
    #[serde(flatten)]
    unknown: UnknownBlocks,
}

/// Returns the snapshot that a query is about: the one with the most resident memory, or the last
/// one in the time range.
fn chosen<'a>(process: &'a Process, range: &Range, when: When) -> Option<&'a PageSnapshot> {
    let span = process.span(range);
    let snapshots = &process.tape.snapshots;
    let inside = || {
        let is_inside = |tick: u64| tick >= span.first_tick && (tick < span.end_tick || range.to.is_none());
        snapshots.iter().filter(move |snapshot| is_inside(snapshot.sums.tick))
    };
    match when {
        When::Peak => inside().max_by_key(|snapshot| snapshot.sums.resident_bytes),
        // The snapshots of several segments may overlap. A process that ends may have none left to
        // be read.
        When::End => inside().max_by_key(|snapshot| (snapshot.sums.resident_bytes > 0, snapshot.sums.tick)),
    }
}

fn report_of(
    query: &Query,
    process: &Process,
    symbols: &mut Symbolizer,
    snapshot: &Residency,
    found: &Found,
    shared: &Shared,
) -> RssReport {
    let Joined { resident, allocator, .. } = &found.joined;
    let sites = pinned::sites(query, process, symbols, snapshot, &found.joined, shared, &found.ancestors.processes);
    let mapped = match query.scope.mappings.has_mappings() {
        true => {
            let ranges = mapped::ranges_at(process, bills::middle(snapshot));
            let all = resident_of(&ranges, &resident.never_block);
            let (inherited, own): (Vec<_>, Vec<_>) = all.into_iter().partition(|(range, _)| range.by.is_inherited());
            let mut rows = mapped::rows(query.grouping, process, symbols, own.into_iter());
            let counted = || inherited.iter().map(|(_, bytes)| bytes.used).filter(|bytes| *bytes > 0);
            if counted().next().is_some() {
                rows.push(mapped::inherited(counted().sum(), counted().count() as u64));
            }
            rows
        }
        false => Vec::new(),
    };
    let returned = match query.scope.mappings.has_mappings() {
        true => mapped::returned(query.grouping, process, symbols, 0..bills::middle(snapshot).saturating_add(1)),
        false => Vec::new(),
    };
    let unknown = UnknownBlocks::of(process, snapshot);
    let mut all_parts = parts(&resident.bill, *allocator);
    unknown.rename(&mut all_parts);
    RssReport {
        at: PointInTime::at(process, snapshot.tick, None),
        cause: residency_cause(snapshot.cause),
        method: match snapshot.method {
            heaptape_formats::tape::PAGES_SCAN => Some("scan"),
            PAGES_PAGEMAP => Some("pagemap"),
            _ => None,
        },
        lacks: snapshot.lacks.lossy().into_owned(),
        read_ns: process.clock.span_nanos(snapshot.end_tick.saturating_sub(snapshot.tick)),
        resident_bytes: snapshot.resident_bytes,
        anonymous_bytes: snapshot.anonymous_bytes,
        file_bytes: snapshot.file_bytes,
        shared_bytes: snapshot.shared_bytes,
        sum_bytes: resident.bill.sum(),
        parts: all_parts,
        allocator: allocator.name(),
        untouched_bytes: resident.untouched,
        swapped_bytes: resident.swapped.1,
        swapped_live_bytes: resident.swapped.0,
        zero_page_bytes: resident.zero,
        huge_page_bytes: resident.huge,
        inherited_blocks: found.joined.inherited_blocks,
        inherited_bytes: found.joined.inherited_bytes,
        heaps: resident.heaps.iter().map(HeapRow::of).collect(),
        sites,
        mapped,
        returned,
        top: query.view.top,
        ended_later_ns: ended_later(process, snapshot),
        snapshots: process.tape.snapshots.len() as u64,
        written_file_bytes: resident.bill.written,
        unknown,
    }
}

/// Returns the ranges that the program mapped, each with its bytes that are in memory and never
/// were a block's.
fn resident_of(ranges: &MappedRanges, never_block: &[NeverBlock]) -> Vec<(MappedRange, MappedBytes)> {
    let mut found = Vec::new();
    for range in ranges.iter() {
        let first = never_block.partition_point(|one| one.end <= range.start);
        let here = never_block[first..].iter().take_while(|one| one.start < range.end);
        let bytes = here.map(|one| {
            let inside = one.end.min(range.end) - one.start.max(range.start);
            (u128::from(one.bytes) * u128::from(inside) / u128::from((one.end - one.start).max(1))) as u64
        });
        found.push((range, MappedBytes { used: bytes.sum(), reserved: 0 }));
    }
    found
}

/// Returns the nanoseconds from the last snapshot to the end of the process, unless the snapshot is
/// that of the end.
fn ended_later(process: &Process, snapshot: &Residency) -> Option<u64> {
    let is_last = process.tape.snapshots.iter().all(|other| other.sums.tick <= snapshot.tick);
    let is_of_end = matches!(snapshot.cause, RESIDENCY_EXIT | RESIDENCY_END);
    let end = process.tape.end.as_ref().filter(|_| is_last && !is_of_end && process.has_ended())?;
    process.has_times().then(|| process.clock.span_nanos(end.tick.saturating_sub(snapshot.tick)))
}

/// Runs `heaptape rss`: prints what the resident memory consists of. The last
/// snapshot in the time range is shown, or the one with the most resident memory.
///
/// # Errors
/// Returns [`Error::Unanswerable`] when no selected process has a snapshot of its pages. Or a
/// recording cannot be read, or `out` cannot be written.
pub fn run(query: &Query, when: When, out: &mut dyn Write, style: Style) -> Result<Outcome, Error> {
    if !query.scope.filter.is_all() {
        return Err(Unanswerable::AllBlocks.into());
    }
    let mut has_any = false;
    let outcome = print_reports(query, out, style, false, |process, symbols, progress| {
        let record = chosen(process, &query.scope.range, when).and_then(|snapshot| process.page_snapshot(snapshot));
        let Some(record) = record else { return Ok((Answer { rss: None }, Vec::new())) };
        has_any = true;
        let found = find(process, &record, progress)?;
        let shared = Shared::find(process, &record, &found.joined, progress);
        let report = report_of(query, process, symbols, &record, &found, &shared);
        Ok((Answer { rss: Some(report) }, found.missing))
    })?;
    if has_any { Ok(outcome) } else { Err(Unanswerable::NoPages.into()) }
}

/// The report on a process, or that it has no snapshot.
#[derive(Serialize)]
struct Answer {
    /// The resident memory; `null` without a snapshot.
    rss: Option<RssReport>,
}

impl Report for Answer {
    fn lacks(&self) -> Option<&'static str> {
        self.rss.is_none().then_some("without a snapshot of the pages (most of them ended too early for one)")
    }

    fn print(&self, screen: &mut Screen) -> io::Result<()> {
        match &self.rss {
            Some(report) => report.print(screen),
            // The only one: the error says it.
            None => Ok(()),
        }
    }
}

impl RssReport {
    /// Prints which call sites mapped the memory that never was a block's.
    fn print_mapped(&self, screen: &mut Screen) -> io::Result<()> {
        let never = self.parts.iter().find(|part| part.name == "never_block").map_or(0, |part| part.bytes);
        let sum = self.mapped.iter().fold(0u64, |sum, row| sum.saturating_add(row.bytes));
        let heading =
            format!("mapped by the program itself: {} of the {} that never were a block", bytes(sum), bytes(never));
        mapped::print(screen, &heading, &self.mapped, self.top)?;
        mapped::print_returned(screen, &self.returned.iter().collect::<Vec<_>>(), self.top)
    }

    fn print(&self, screen: &mut Screen) -> io::Result<()> {
        let at = self.at.text();
        if self.method.is_none() {
            return screen.line(&format!(
                "resident {} {at}; its pages are not known: {}",
                bytes(self.resident_bytes),
                self.lacks
            ));
        }
        screen.line(&format!("resident {} {at}, of which {} in live blocks", bytes(self.resident_bytes), {
            let live = self.parts.first().map_or(0, |part| part.bytes);
            format!("{} ({})", bytes(live), percent(live, self.sum_bytes))
        }))?;
        let most = self.parts.iter().map(|part| part.bytes).max().unwrap_or(0).max(1);
        let rows: Vec<Vec<String>> = self
            .parts
            .iter()
            .filter(|part| part.bytes > 0)
            .map(|part| {
                let bar = "#".repeat((part.bytes as f64 * 20.0 / most as f64).ceil() as usize);
                vec![bytes(part.bytes), percent(part.bytes, self.sum_bytes), bar, part.text.clone()]
            })
            .chain([vec![
                bytes(self.sum_bytes),
                String::new(),
                String::new(),
                format!("sum of all pages; the kernel's VmRSS is {}", bytes(self.resident_bytes)),
            ]])
            .collect();
        screen.prose_table(&["resident", "share", "", "what it is"], &rows)?;
        if self.untouched_bytes > 0 {
            screen.line(&format!(
                "beside it: {} in live blocks were never written, and are not in memory",
                bytes(self.untouched_bytes)
            ))?;
        }
        if self.inherited_blocks > 0 {
            screen.line(&format!(
                "of the live blocks, {} with {} were allocated before the fork, by a parent",
                count(self.inherited_blocks),
                bytes(self.inherited_bytes)
            ))?;
        }
        if self.swapped_bytes > 0 {
            screen.line(&format!(
                "beside it: {} are swapped out, {} of them in live blocks",
                bytes(self.swapped_bytes),
                bytes(self.swapped_live_bytes)
            ))?;
        }
        if self.zero_page_bytes >= MIN_SHOWN {
            let zero = bytes(self.zero_page_bytes);
            screen.line(&format!("beside it: {zero} were read and never written, and do not count as resident"))?;
        }
        if self.huge_page_bytes > 0 {
            screen.line(&format!("{} of the sum are huge pages", bytes(self.huge_page_bytes)))?;
        }
        if !self.lacks.is_empty() {
            screen.line(&format!("incomplete: {}", self.lacks))?;
        }
        self.unknown.print(screen)?;
        if self.heaps.len() > 1 {
            let (shown, all) = (self.heaps.len().min(MAX_HEAPS), self.heaps.len());
            screen.line(&format!("by heap of {}: {shown} of {all}", self.allocator))?;
            let row = |heap: &HeapRow| {
                let parts = [heap.resident_bytes, heap.live_bytes, heap.held_free_bytes, heap.free_page_bytes];
                parts.map(bytes).into_iter().chain([heap.text()]).collect()
            };
            let rows: Vec<Vec<String>> = self.heaps.iter().take(MAX_HEAPS).map(row).collect();
            screen.table(&["resident", "live", "free beside live", "free pages", "heap"], &rows)?;
        }
        self.sites.print_pinned(screen)?;
        self.print_mapped(screen)?;
        self.sites.print_untouched(screen)?;
        if let Some(later) = self.ended_later_ns {
            screen.line(&format!(
                "the process ended {} later, without waiting for a last snapshot (a signal, _exit, exec, or an end right after its first one)",
                duration(later)
            ))?;
        }
        if self.snapshots > 1 {
            screen.line(&format!("one of {} (--at WHEN selects another one)", counted(self.snapshots, "snapshot")))?;
        }
        Ok(())
    }
}

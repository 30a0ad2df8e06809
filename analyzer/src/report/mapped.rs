//! Memory that the program mapped itself, by call site: a section of several reports. It is beside
//! the blocks, and in none of their sums.

use super::{Grouping, SiteDescription, SiteGroup};
use crate::load::Process;
use crate::symbols::Symbolizer;
use crate::text::{Screen, bytes, count, shorten};
use heaptape_formats::tape::{
    MAPPING_EVENT_ADVISE, MAPPING_FLAG_BREAK, MAPPING_FLAG_SEGMENT, MappedRange, MappedRanges,
};
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::io;

/// Default number of rows in the text of `leaks`.
pub(crate) const DEFAULT_ROWS: usize = 5;

/// Prints that a report on mappings has none, unless no call of these processes was recorded.
///
/// # Errors
/// When the screen cannot be written.
pub(crate) fn print_nothing(screen: &mut Screen, processes: &[&Process]) -> io::Result<()> {
    if processes.iter().any(|process| process.about.unseen_mappings.is_empty()) {
        screen.line("the program mapped nothing itself that it did not unmap")?;
    }
    Ok(())
}

/// Bytes that are mapped: those that the program may use, and those that are only reserved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MappedBytes {
    /// Bytes that the program may use.
    pub used: u64,
    /// Bytes that nothing may access.
    pub reserved: u64,
}

impl MappedBytes {
    const fn of(ranges: &MappedRanges) -> MappedBytes {
        MappedBytes { used: ranges.used_bytes(), reserved: ranges.reserved_bytes() }
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct OfProcess<T> {
    pub process: u32,
    /// What the row says about it.
    #[serde(flatten)]
    pub row: T,
}

/// Memory that call sites of one group have returned to the kernel, in ranges that stay mapped.
#[derive(Clone, Debug, Serialize)]
pub struct ReturnedRow {
    /// Bytes in the ranges, whether or not they were in memory.
    pub bytes: u64,
    /// Number of calls of `madvise`.
    pub calls: u64,
    /// The call site of the first stack of the group.
    #[serde(flatten)]
    pub site: SiteDescription,
}

/// What call sites of one group have mapped.
#[derive(Clone, Debug, Serialize)]
pub struct MappedRow {
    /// Bytes of whole pages that the program may use; in `rss` those in memory that never were a
    /// block's.
    pub bytes: u64,
    /// Bytes that nothing may access (`PROT_NONE`).
    pub reserved_bytes: u64,
    /// Number of ranges. A range that was partly unmapped may be several.
    pub ranges: u64,
    /// File of the largest range, as far as it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Which function mapped the largest range: `mmap`, `brk` or `shmat`; in `rss` also `fork`, for
    /// what its parent had mapped before.
    pub function: &'static str,
    /// The call site of the first stack of the group.
    #[serde(flatten)]
    pub site: SiteDescription,
}

impl MappedRow {
    /// Returns the function and the file, for people.
    pub fn what(&self) -> String {
        let file = self.file.as_deref().and_then(|file| file.rsplit('/').next()).unwrap_or_default();
        if file.is_empty() { self.function.into() } else { format!("{} {file}", self.function) }
    }
}

/// Returns what was mapped after all calls up to a tick.
pub fn ranges_at(process: &Process, tick: u64) -> MappedRanges {
    process.mapped_at(tick)
}

/// Returns the bytes that were mapped before each of some ticks, which ascend; none if no call is
/// recorded.
pub fn bytes_before(process: &Process, ticks: &[u64]) -> Vec<MappedBytes> {
    let (mut ranges, mut found) = (MappedRanges::default(), Vec::new());
    if !process.tape.mappings.is_known() {
        return found;
    }
    process.mapping_events(&mut |event| {
        while ticks.get(found.len()).is_some_and(|tick| *tick <= event.tick) {
            found.push(MappedBytes::of(&ranges));
        }
        ranges.apply(event);
    });
    found.resize(ticks.len(), MappedBytes::of(&ranges));
    found
}

/// Calls `visit` with each tick at which the program mapped or unmapped memory itself, and the
/// bytes that it may use since then.
pub fn for_each_change(process: &Process, visit: &mut dyn FnMut(u64, u64)) {
    let (mut ranges, mut before) = (MappedRanges::default(), 0);
    if !process.tape.mappings.is_known() {
        return;
    }
    process.mapping_events(&mut |event| {
        ranges.apply(event);
        if ranges.used_bytes() != before {
            before = ranges.used_bytes();
            visit(event.tick, before);
        }
    });
}

/// Returns the ranges that a process has mapped itself, with all their bytes.
pub fn own(ranges: &MappedRanges) -> impl Iterator<Item = (MappedRange, MappedBytes)> + '_ {
    ranges.iter().filter(|range| !range.by.is_inherited()).map(|range| {
        let bytes = range.bytes();
        let reserved = if range.by.is_reserved() { bytes } else { 0 };
        (range, MappedBytes { used: bytes - reserved, reserved })
    })
}

/// Returns the row of what a process has from its parent, whose call sites the report on the parent
/// names.
pub fn inherited(bytes: u64, ranges: u64) -> MappedRow {
    let label = "its parent, before the fork".into();
    let site = SiteDescription { label, sites: 0, lines: 0, library: None, stack: Vec::new() };
    MappedRow { bytes, reserved_bytes: 0, ranges, file: None, function: "fork", site }
}

/// Returns the rows of the memory that the program returned between two ticks, those with most
/// bytes first.
pub fn returned(
    grouping: Grouping,
    process: &Process,
    symbols: &mut Symbolizer,
    ticks: std::ops::Range<u64>,
) -> Vec<ReturnedRow> {
    if process.tape.mappings.sums.returned_calls == 0 {
        return Vec::new();
    }
    let mut sums = FxHashMap::<u32, [u64; 2]>::default();
    process.mapping_events(&mut |event| {
        if event.kind == MAPPING_EVENT_ADVISE && ticks.contains(&event.tick) {
            let [bytes, calls] = sums.entry(event.site).or_default();
            (*bytes, *calls) = (bytes.saturating_add(event.size), *calls + 1);
        }
    });
    let mut sums: Vec<(u32, [u64; 2])> = sums.into_iter().collect();
    sums.sort_unstable();
    let groups = grouping.group(process, symbols, sums.into_iter());
    let row = |group: &SiteGroup| {
        let [bytes, calls, ..] = group.values;
        ReturnedRow { bytes, calls, site: group.describe(process, symbols) }
    };
    groups.iter().map(row).collect()
}

/// Returns the rows of ranges, each with the bytes of it that count, those with most bytes first.
pub fn rows(
    grouping: Grouping,
    process: &Process,
    symbols: &mut Symbolizer,
    ranges: impl Iterator<Item = (MappedRange, MappedBytes)>,
) -> Vec<MappedRow> {
    let (mut sums, mut largest) = (Vec::new(), FxHashMap::<u32, MappedRange>::default());
    for (range, MappedBytes { used, reserved }) in ranges.filter(|(_, bytes)| *bytes != MappedBytes::default()) {
        // Rows without bytes would be left out.
        sums.push((range.by.site, [used + reserved, reserved, 1]));
        let known = largest.entry(range.by.site).or_insert(range);
        if range.bytes() > known.bytes() {
            *known = range;
        }
    }
    let groups = grouping.group(process, symbols, sums.into_iter());
    let row = |group: &SiteGroup| {
        let by = largest.get(&group.site).map(|range| range.by).unwrap_or_default();
        let name = (by.name as usize).checked_sub(1).and_then(|index| process.tape.mappings.names.get(index));
        let function = match by.flags {
            flags if flags & MAPPING_FLAG_BREAK != 0 => "brk",
            flags if flags & MAPPING_FLAG_SEGMENT != 0 => "shmat",
            _ => "mmap",
        };
        let file = name.map(|name| name.lossy().into_owned()).filter(|name| !name.is_empty());
        let [all, reserved_bytes, ranges, ..] = group.values;
        let site = group.describe(process, symbols);
        MappedRow { bytes: all.saturating_sub(reserved_bytes), reserved_bytes, ranges, file, function, site }
    };
    let mut rows: Vec<MappedRow> = groups.iter().map(row).collect();
    rows.sort_by_key(|row| std::cmp::Reverse((row.bytes, row.reserved_bytes)));
    rows
}

/// Returns the sum of rows, which are no blocks, for a heading.
pub fn sum_text<'a>(rows: impl Iterator<Item = &'a MappedRow>) -> String {
    let (mut used, mut reserved) = (0u64, 0u64);
    for row in rows {
        (used, reserved) = (used.saturating_add(row.bytes), reserved.saturating_add(row.reserved_bytes));
    }
    match reserved {
        0 => format!("{} (no blocks)", bytes(used)),
        _ => format!("{} (no blocks), and {} only reserved (PROT_NONE)", bytes(used), bytes(reserved)),
    }
}

/// Most columns of the function and the file by which memory was mapped.
const MAX_WHAT: usize = 36;

/// Prints the first rows under a heading. JSON has all.
///
/// # Errors
/// When the screen cannot be written.
pub fn print(screen: &mut Screen, heading: &str, rows: &[MappedRow], top: usize) -> io::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    screen.line(heading)?;
    let more = rows.len().saturating_sub(top);
    let has_reserved = rows.iter().any(|row| row.reserved_bytes > 0);
    let text = |row: &MappedRow| {
        let reserved = has_reserved.then(|| bytes(row.reserved_bytes));
        let rest = [count(row.ranges), shorten(&row.what(), MAX_WHAT), row.site.label.clone()];
        std::iter::once(bytes(row.bytes)).chain(reserved).chain(rest).collect()
    };
    let rows: Vec<Vec<String>> = rows.iter().take(top).map(text).collect();
    match has_reserved {
        true => screen.table(&["bytes", "reserved", "ranges", "by", "mapped at"], &rows)?,
        false => screen.table(&["bytes", "ranges", "by", "mapped at"], &rows)?,
    }
    more_rows(screen, more)
}

/// Prints the first rows of what was returned. JSON has all.
///
/// # Errors
/// When the screen cannot be written.
pub fn print_returned(screen: &mut Screen, rows: &[&ReturnedRow], top: usize) -> io::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let sum = rows.iter().fold(0u64, |sum, row| sum.saturating_add(row.bytes));
    screen.line(&format!("returned by madvise, and still mapped: ranges of {} in all calls", bytes(sum)))?;
    let more = rows.len().saturating_sub(top);
    let text = |row: &&ReturnedRow| vec![bytes(row.bytes), count(row.calls), row.site.label.clone()];
    screen.table(&["bytes", "calls", "returned at"], &rows.iter().take(top).map(text).collect::<Vec<_>>())?;
    more_rows(screen, more)
}

/// Prints how many rows are in JSON only.
fn more_rows(screen: &mut Screen, more: usize) -> io::Result<()> {
    if more > 0 { screen.line(&format!("and {} more (--json)", count(more as u64))) } else { Ok(()) }
}

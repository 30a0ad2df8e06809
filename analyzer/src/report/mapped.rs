//! Memory that the program mapped itself, by call site: a section of several reports. It is beside
//! the blocks, and in none of their sums.

use super::query::{Query, SiteDescription, group_sites};
use crate::load::Process;
use crate::symbols::Symbolizer;
use crate::text::{Screen, bytes, count};
use heaptape_formats::tape::{MAPPING_FLAG_BREAK, MAPPING_FLAG_SEGMENT, MappedRange, MappedRanges};
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::io;

/// Default number of rows in the text of `leaks`.
pub(super) const DEFAULT_ROWS: usize = 5;

/// What call sites of one group have mapped.
#[derive(Clone, Debug, Serialize)]
pub(super) struct MappedRow {
    /// Bytes of whole pages; in `rss` those in memory that never were a block's.
    pub(super) bytes: u64,
    /// Number of ranges. A range that was partly unmapped may be several.
    pub(super) ranges: u64,
    /// File of the largest range, as far as it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) file: Option<String>,
    /// Which function mapped the largest range: `mmap`, `brk` or `shmat`.
    pub(super) function: &'static str,
    #[serde(flatten)]
    pub(super) site: SiteDescription,
}

impl MappedRow {
    /// Returns the function and the file, for people.
    pub(super) fn what(&self) -> String {
        let file = self.file.as_deref().and_then(|file| file.rsplit('/').next()).unwrap_or_default();
        if file.is_empty() { self.function.into() } else { format!("{} {file}", self.function) }
    }
}

/// Returns what was mapped after all calls up to a tick.
pub(super) fn ranges_at(process: &Process, tick: u64) -> MappedRanges {
    let mut ranges = MappedRanges::default();
    if !process.tape.mappings.is_known() {
        return ranges;
    }
    if tick >= process.tape.last_tick {
        return process.tape.mappings.ranges.clone();
    }
    process.mapping_events(&mut |event| {
        if event.tick <= tick {
            ranges.apply(event);
        }
    });
    ranges
}

/// Returns the bytes that were mapped before each of some ticks, which ascend; none if no call is
/// recorded.
pub(super) fn bytes_before(process: &Process, ticks: &[u64]) -> Vec<u64> {
    let (mut ranges, mut found) = (MappedRanges::default(), Vec::new());
    if !process.tape.mappings.is_known() {
        return found;
    }
    process.mapping_events(&mut |event| {
        while ticks.get(found.len()).is_some_and(|tick| *tick <= event.tick) {
            found.push(ranges.bytes());
        }
        ranges.apply(event);
    });
    found.resize(ticks.len(), ranges.bytes());
    found
}

/// Returns the rows of ranges, each with the bytes of it that count, those with most bytes first.
pub(super) fn rows(
    query: &Query,
    process: &Process,
    symbols: &mut Symbolizer,
    ranges: impl Iterator<Item = (MappedRange, u64)>,
) -> Vec<MappedRow> {
    let (mut sums, mut largest) = (Vec::new(), FxHashMap::<u32, MappedRange>::default());
    for (range, bytes) in ranges.filter(|(_, bytes)| *bytes > 0) {
        sums.push((range.by.site, [bytes, 1]));
        let known = largest.entry(range.by.site).or_insert(range);
        if range.bytes() > known.bytes() {
            *known = range;
        }
    }
    let groups = group_sites(query, process, symbols, sums.into_iter());
    let row = |group: &super::query::SiteGroup<2>, symbols: &mut Symbolizer| {
        let by = largest.get(&group.site).map(|range| range.by).unwrap_or_default();
        let name = (by.name as usize).checked_sub(1).and_then(|index| process.tape.mappings.names.get(index));
        let function = match by.flags {
            flags if flags & MAPPING_FLAG_BREAK != 0 => "brk",
            flags if flags & MAPPING_FLAG_SEGMENT != 0 => "shmat",
            _ => "mmap",
        };
        let file = name.map(|name| name.lossy().into_owned()).filter(|name| !name.is_empty());
        let [bytes, ranges] = group.values;
        MappedRow { bytes, ranges, file, function, site: group.describe(process, symbols) }
    };
    groups.iter().map(|group| row(group, symbols)).collect()
}

/// Prints the first rows under a heading. JSON has all.
pub(super) fn print(screen: &mut Screen, heading: &str, rows: &[MappedRow], top: usize) -> io::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    screen.line(heading)?;
    let more = rows.len().saturating_sub(top);
    let rows: Vec<Vec<String>> = rows
        .iter()
        .take(top)
        .map(|row| vec![bytes(row.bytes), count(row.ranges), row.what(), row.site.label.clone()])
        .collect();
    screen.table(&["bytes", "ranges", "by", "mapped at"], &rows)?;
    if more > 0 {
        screen.line(&format!("and {} more (--json)", count(more as u64)))?;
    }
    Ok(())
}

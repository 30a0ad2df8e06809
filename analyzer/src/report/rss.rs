//! `heaptape rss`: what the resident memory of a process consists of at a point in time, and which
//! call sites keep free memory in use.

use super::query::{PointInTime, Query, Report, SiteDescription, group_sites, print_reports};
use super::{Error, Outcome};
use crate::event::{Range, Span};
use crate::load::Process;
use crate::load::tape::PageSnapshot;
use crate::model::covered::Covered;
use crate::model::resident::{Bill, LiveBlock, Ranges, Resident, divide};
use crate::model::size_class::Allocator;
use crate::progress::Progress;
use crate::replay::replay;
use crate::report::Unanswerable;
use crate::symbols::Symbolizer;
use crate::text::{Screen, Style, bytes, count, counted, duration, percent};
use heaptape_formats::tape::{Entry, PAGES_PAGEMAP, RESIDENCY_END, RESIDENCY_EXIT, Residency, residency_cause};
use serde::Serialize;
use std::io::{self, Write};

/// Page size in bytes for recordings that do not contain it.
const PAGE: u64 = 4096;
/// Maximum number of groups of 512 pages for which it is known whether they ever held a block: 320
/// MiB, for 4 TiB of resident memory.
const MAX_GROUPS: usize = 2 << 20;

/// The snapshot that the report is about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    /// The last snapshot of the range.
    End,
    /// The one with the most resident memory.
    Peak,
}

#[derive(Serialize)]
struct SiteRow {
    pinned_bytes: u64,
    blocks: u64,
    live_bytes: u64,
    /// Free bytes that would be returned if the blocks of the site had pages of their own.
    pool_would_free_bytes: u64,
    /// Age of its youngest and oldest block on these pages, in nanoseconds.
    youngest_age_ns: Option<u64>,
    oldest_age_ns: Option<u64>,
    #[serde(flatten)]
    site: SiteDescription,
}

#[derive(Serialize)]
struct UntouchedRow {
    untouched_bytes: u64,
    #[serde(flatten)]
    site: SiteDescription,
}

/// A part of the resident memory.
#[derive(Serialize)]
struct Part {
    name: &'static str,
    bytes: u64,
    #[serde(skip)]
    text: String,
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
    /// Sum of the parts.
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
    pinned: Vec<SiteRow>,
    untouched: Vec<UntouchedRow>,
    /// Nanoseconds from the snapshot to the end of the process, if no later snapshot exists and the
    /// process did not wait for one at its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_later_ns: Option<u64>,
    /// Number of snapshots of the process.
    snapshots: u64,
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
        // The snapshots of several segments may overlap.
        When::End => inside().max_by_key(|snapshot| snapshot.sums.tick),
    }
}

/// Returns the allocator of the process whose name a mapped file shows.
fn main_allocator(snapshot: &Residency) -> Allocator {
    let names: Vec<String> = snapshot.names.iter().map(|name| name.lossy().into_owned()).collect();
    let file = |path: &String| path.rsplit('/').next().unwrap_or_default().to_owned();
    if let Some(found) = names.iter().find_map(|name| Allocator::of_name(&file(name))) {
        return found;
    }
    let is_glibc = |name: &String| matches!(file(name).as_str(), "libc.so.6") || file(name).starts_with("libc-2.");
    if names.iter().any(is_glibc) { Allocator::Glibc } else { Allocator::Unknown }
}

/// Returns the allocator that served a call of this entry.
fn allocator_of(process: &Process, entry: u8, main: Allocator) -> Allocator {
    let inside = match entry {
        number @ 14..=17 => number - Entry::AllocInside1 as u8,
        number @ 33..=36 => number - Entry::ResizeInside1 as u8,
        _ => return main,
    };
    let named = process.about.allocators.iter().find(|allocator| allocator.number == inside);
    named.map_or(Allocator::Unknown, |allocator| {
        let module = allocator.module.rsplit('/').next().unwrap_or_default();
        Allocator::of_name(&allocator.name).or_else(|| Allocator::of_name(module)).unwrap_or(Allocator::Unknown)
    })
}

/// The resident memory of a process at a snapshot.
struct Found {
    resident: Resident,
    allocator: Allocator,
    missing: Vec<crate::missing::Missing>,
}

/// Joins a snapshot with the blocks that were live at its time.
fn find(process: &Process, snapshot: &Residency, progress: &Progress) -> Result<Found, Error> {
    let runs = snapshot.runs().map_err(|error| Unanswerable::BadPages(error.to_string()))?;
    let page = match u64::from(process.tape.process.page_size) {
        page if page.is_power_of_two() && (512..=1 << 16).contains(&page) => page,
        _ => PAGE,
    };
    let ranges = Ranges::of(&snapshot.mappings);
    let allocator = main_allocator(snapshot);
    if process.tape.is_sampled() || !process.has_events() {
        let mut resident = divide(&runs, &ranges, page, Vec::new(), |_| allocator, None);
        resident.bill.unlisted = snapshot.unlisted_pages.saturating_mul(page);
        return Ok(Found { resident, allocator, missing: Vec::new() });
    }
    let mut covered = Covered::new(&runs, page, MAX_GROUPS);
    // The live set changes while the pages are read: that of the middle is nearest to all of them.
    let middle = snapshot.tick + snapshot.end_tick.saturating_sub(snapshot.tick) / 2;
    let span = Span { end_tick: middle.saturating_add(1), ..Span::ALL };
    let outcome = replay(process, span, progress, &mut covered);
    let mut entries: rustc_hash::FxHashMap<u64, u8> = rustc_hash::FxHashMap::default();
    let mut blocks = Vec::new();
    for (_, block) in outcome.live.iter() {
        if matches!(block.entry, 14..=17 | 33..=36) {
            entries.insert(block.address, block.entry);
        }
        let (address, size, tick, site) = (block.address, block.size, block.tick, block.site);
        blocks.push(LiveBlock { address, size, tick, site });
    }
    let of = |block: &LiveBlock| match entries.get(&block.address) {
        Some(entry) => allocator_of(process, *entry, allocator),
        None => allocator,
    };
    let mut resident = divide(&runs, &ranges, page, blocks, of, Some(&covered));
    resident.bill.unlisted = snapshot.unlisted_pages.saturating_mul(page);
    let inside = entries.values().next().map(|entry| allocator_of(process, *entry, allocator));
    Ok(Found { resident, allocator: inside.unwrap_or(allocator), missing: outcome.missing })
}

/// Returns the parts of a bill that are not empty, with their names in JSON.
fn parts(bill: &Bill, allocator: Allocator) -> Vec<Part> {
    let Bill { live, slack, held, free_pages, never_block, undivided, files, shared, stacks, heaptape, unlisted } =
        *bill;
    let slack_text = match allocator {
        Allocator::Unknown => "slack of the allocator, whose size classes are not known".into(),
        known => format!("slack: what {} reserves for them in addition, by its size classes", known.name()),
    };
    let all = [
        ("live", live, "live blocks".to_owned()),
        ("slack", slack, slack_text),
        ("held_free", held, "free, on pages that live blocks are on".into()),
        ("free_pages", free_pages, "free: whole pages that once held blocks".into()),
        ("never_block", never_block, "memory of the process that never was a block".into()),
        ("undivided", undivided, "memory of the process, whose blocks are not known".into()),
        ("files", files, "files".into()),
        ("shared", shared, "shared memory".into()),
        ("stacks", stacks, "stacks".into()),
        ("heaptape", heaptape, "heaptape itself".into()),
        ("unlisted", unlisted, "pages that the snapshot does not list".into()),
    ];
    all.into_iter().map(|(name, bytes, text)| Part { name, bytes, text }).collect()
}

fn report_of(
    query: &Query,
    process: &Process,
    symbols: &mut Symbolizer,
    snapshot: &Residency,
    found: &Found,
) -> RssReport {
    let Found { resident, allocator, .. } = found;
    let numbered = || resident.sites.iter().zip(0u32..);
    let page = u64::from(process.tape.process.page_size).max(512);
    // A group's youngest block is stored as the largest tick, the oldest as the smallest one.
    let pinned = numbered().map(|(row, site)| {
        let (low, high) = row.ticks.unwrap_or_default();
        let pool = (row.alone_pages * page).saturating_sub(row.alone_occupied.next_multiple_of(page));
        (site, [row.pinned, row.blocks, row.live, pool, u64::MAX - low, high])
    });
    let age = |tick: u64| process.has_times().then(|| process.clock.span_nanos(snapshot.tick.saturating_sub(tick)));
    let groups = group_sites(query, process, symbols, pinned);
    let pinned = groups.iter().take(query.top).map(|group| {
        let [pinned_bytes, blocks, live_bytes, pool_would_free_bytes, ..] = group.values;
        let [.., low, high] = group.max;
        let (youngest_age_ns, oldest_age_ns) = (age(high), age(u64::MAX - low));
        let site = group.describe(process, symbols);
        SiteRow { pinned_bytes, blocks, live_bytes, pool_would_free_bytes, youngest_age_ns, oldest_age_ns, site }
    });
    let pinned = pinned.collect();
    let groups = group_sites(query, process, symbols, numbered().map(|(row, site)| (site, [row.untouched])));
    let untouched = groups
        .iter()
        .take(query.top)
        .map(|group| UntouchedRow { untouched_bytes: group.values[0], site: group.describe(process, symbols) });
    let untouched = untouched.collect();
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
        parts: parts(&resident.bill, *allocator),
        allocator: allocator.name(),
        untouched_bytes: resident.untouched,
        swapped_bytes: resident.swapped.1,
        swapped_live_bytes: resident.swapped.0,
        zero_page_bytes: resident.zero,
        huge_page_bytes: resident.huge,
        pinned,
        untouched,
        ended_later_ns: ended_later(process, snapshot),
        snapshots: process.tape.snapshots.len() as u64,
    }
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
/// Returns [`Error::Unanswerable`] when no selected process has a snapshot of its pages. Other
/// errors are those of reading recordings and of writing to `out`.
pub fn run(query: &Query, when: When, out: &mut dyn Write, style: Style) -> Result<Outcome, Error> {
    if !query.filter.is_all() {
        return Err(Unanswerable::AllBlocks.into());
    }
    let mut has_any = false;
    let outcome = print_reports(query, out, style, false, |process, symbols, progress| {
        let record = chosen(process, &query.range, when).and_then(|snapshot| process.page_snapshot(snapshot));
        let Some(record) = record else { return Ok((Answer { rss: None }, Vec::new())) };
        has_any = true;
        let found = find(process, &record, progress)?;
        let report = report_of(query, process, symbols, &record, &found);
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
            None => screen.line("no snapshot of its pages (it ended too early, or was recorded by an older heaptape)"),
        }
    }
}

impl RssReport {
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
        screen.table(&["bytes", "share", "", "of"], &rows)?;
        if self.untouched_bytes > 0 {
            screen.line(&format!(
                "beside it: {} in live blocks were never written, and are not in memory",
                bytes(self.untouched_bytes)
            ))?;
        }
        if self.swapped_bytes > 0 {
            screen.line(&format!(
                "beside it: {} are swapped out, {} of them in live blocks",
                bytes(self.swapped_bytes),
                bytes(self.swapped_live_bytes)
            ))?;
        }
        if !self.lacks.is_empty() {
            screen.line(&format!("incomplete: {}", self.lacks))?;
        }
        if !self.pinned.is_empty() {
            screen.line("pinned: free memory on pages that these blocks are on")?;
            let rows: Vec<Vec<String>> = self
                .pinned
                .iter()
                .map(|row| {
                    let age = match (row.youngest_age_ns, row.oldest_age_ns) {
                        (Some(youngest), Some(oldest)) => format!("{} to {}", duration(youngest), duration(oldest)),
                        _ => String::new(),
                    };
                    vec![bytes(row.pinned_bytes), bytes(row.live_bytes), count(row.blocks), age, row.site.label.clone()]
                })
                .collect();
            screen.table(&["pinned", "by", "blocks", "age", "allocated at"], &rows)?;
        }
        let rows: Vec<Vec<String>> = self
            .untouched
            .iter()
            .filter(|row| row.untouched_bytes >= 1 << 20)
            .map(|row| vec![bytes(row.untouched_bytes), row.site.label.clone()])
            .collect();
        if !rows.is_empty() {
            screen.line("live and never written:")?;
            screen.table(&["bytes", "allocated at"], &rows)?;
        }
        if let Some(later) = self.ended_later_ns {
            screen.line(&format!(
                "the process ended {} later, without waiting for a last snapshot (a signal, _exit, or exec)",
                duration(later)
            ))?;
        }
        if self.snapshots > 1 {
            screen.line(&format!("one of {} (--at WHEN selects another one)", counted(self.snapshots, "snapshot")))?;
        }
        Ok(())
    }
}

//! `heaptape timeline`: live bytes and blocks over the run.

use crate::print::{Report, print_reports};
use heaptape_analyzer::PageSnapshot;
use heaptape_analyzer::Process;
use heaptape_analyzer::Stacks;
use heaptape_analyzer::charts;
use heaptape_analyzer::event::{Position, Span};
use heaptape_analyzer::model::timeline::{ByGroup, Timeline};
use heaptape_analyzer::report::bills::{self, OverTime, Part, Point};
use heaptape_analyzer::report::frames::{SourceLines, call_site, call_site_line};
use heaptape_analyzer::report::grouping::{GroupBy, group_key};
use heaptape_analyzer::report::mapping_filter::MappingFilter;
use heaptape_analyzer::report::{Error, Outcome, PointInTime, Query, Unanswerable, mapped};
use heaptape_analyzer::short_name::NameLength;
use heaptape_analyzer::symbols::Symbolizer;
use heaptape_analyzer::text::{Screen, Style, bytes, clean, count, duration};
use heaptape_formats::tape;
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::io::{self, Write};

#[derive(Serialize)]
struct Row {
    at: PointInTime,
    /// Resident bytes at the last snapshot up to the end of the slice.
    #[serde(skip_serializing_if = "Option::is_none")]
    resident_bytes: Option<u64>,
    /// Bytes that the program had mapped itself at the end of the slice, beside the blocks, and
    /// without reserved memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    mapped_bytes: Option<u64>,
    /// Bytes of addresses that it had only reserved then (`PROT_NONE`).
    #[serde(skip_serializing_if = "Option::is_none")]
    reserved_bytes: Option<u64>,
    live_bytes: u64,
    live_blocks: u64,
    /// What needs events, and a profile does not have.
    #[serde(flatten)]
    events: Option<RowOfEvents>,
}

/// What happened in a slice.
#[derive(Serialize)]
struct RowOfEvents {
    most_bytes: u64,
    allocs: u64,
    bytes: u64,
    frees: u64,
}

impl Row {
    /// Returns when the slice begins, for people.
    fn start(&self) -> String {
        match (self.at.time_ns, self.at.event) {
            (Some(nanos), _) => duration(nanos),
            (None, event) => count(event.unwrap_or(0)),
        }
    }

    fn most_bytes(&self) -> u64 {
        self.events.as_ref().map_or(self.live_bytes, |events| events.most_bytes)
    }
}

/// Live bytes of a group of call sites at the end of each slice.
#[derive(Serialize)]
struct Group {
    name: String,
    most_bytes: u64,
    live_bytes: Vec<u64>,
}

/// A mark that the program set.
#[derive(Serialize)]
struct Mark {
    name: String,
    at: PointInTime,
    thread: u32,
}

/// The resident memory at one snapshot of the pages.
#[derive(Serialize)]
struct Resident {
    at: PointInTime,
    #[serde(skip)]
    tick: u64,
    resident_bytes: u64,
    anonymous_bytes: u64,
    file_bytes: u64,
    shared_bytes: u64,
    swapped_bytes: u64,
    /// The resident memory by use, with `--rss`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    parts: Vec<Part>,
}

#[derive(Default, Serialize)]
struct TimelineReport {
    slices: Vec<Row>,
    /// The marks in the range, in their order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    marks: Vec<Mark>,
    /// The snapshots of the pages in the range, earliest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    residents: Vec<Resident>,
    /// The groups of `--by`, by their peak of live bytes, largest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    groups: Vec<Group>,
    /// Which columns the text has.
    #[serde(skip)]
    mappings: MappingFilter,
}

/// Default number of groups in the report.
const DEFAULT_GROUPS: usize = 20;
/// Maximum number of marks that are printed.
const MAX_MARKS: usize = 40;
/// Maximum number of values that are kept for all groups and slices together: 128 MiB.
const MAX_VALUES: usize = 16 << 20;

/// Returns the group of each site, and the names of the groups.
fn groups(stacks: &Stacks, symbols: &mut Symbolizer, by: GroupBy) -> (Vec<u32>, Vec<String>) {
    let mut known: FxHashMap<String, u32> = FxHashMap::default();
    let mut names = Vec::new();
    let group_of = (0..=stacks.len() as u32).map(|site| {
        let name = match by {
            GroupBy::Stack => {
                let call_site = call_site(symbols, stacks, site, 3);
                call_site_line(&call_site, &SourceLines::default(), NameLength::Full)
            }
            by => group_key(symbols, stacks, site, by).join(" < "),
        };
        *known.entry(name).or_insert_with_key(|name| {
            names.push(name.clone());
            names.len() as u32 - 1
        })
    });
    (group_of.collect(), names)
}

/// Returns the points in time of a profile's history, and its end; `None` if it has neither a
/// history nor divided snapshots.
fn of_history(process: &Process, points: &[Point]) -> Option<TimelineReport> {
    let (history, totals) = (&process.tape.history, process.ready_sums()?.totals);
    let (blocks, bytes) = (&history.live_blocks.0, &history.live_bytes.0);
    // A process that ended early has no history, and may have divided snapshots.
    let is_empty = history.ticks.is_empty() && points.is_empty();
    if is_empty || blocks.len() != history.ticks.len() || bytes.len() != history.ticks.len() {
        return None;
    }
    let residents = residents(process, Span::ALL, points);
    let row = |tick: u64, live_blocks: u64, live_bytes: u64| {
        let at = PointInTime { time_ns: Some(process.clock.nanos(tick)), ..PointInTime::at(process, tick, None) };
        let resident_bytes = residents.iter().rfind(|one| one.tick <= tick).map(|one| one.resident_bytes);
        Row { at, resident_bytes, mapped_bytes: None, reserved_bytes: None, live_bytes, live_blocks, events: None }
    };
    let points = history.ticks.iter().zip(blocks).zip(bytes).map(|((&tick, &blocks), &bytes)| row(tick, blocks, bytes));
    let end = row(process.tape.last_tick, totals.live_blocks, totals.live_bytes);
    let slices = points.chain([end]).collect();
    Some(TimelineReport { slices, residents, ..TimelineReport::default() })
}

/// Maximum number of snapshots whose resident memory is divided by use.
const MAX_DIVIDED: usize = 24;

/// Returns the snapshots of the pages in a range, with the parts of those that are divided.
fn residents(process: &Process, span: Span, points: &[Point]) -> Vec<Resident> {
    let mut found: Vec<Resident> = Vec::new();
    for PageSnapshot { sums, .. } in &process.tape.snapshots {
        if process.has_times() && (span.first_tick..span.end_tick).contains(&sums.tick) && sums.resident_bytes > 0 {
            let point = points.iter().find(|point| point.tick == sums.tick);
            found.push(Resident {
                at: PointInTime::at(process, sums.tick, None),
                tick: sums.tick,
                resident_bytes: sums.resident_bytes,
                anonymous_bytes: sums.anonymous_bytes,
                file_bytes: sums.file_bytes,
                shared_bytes: sums.shared_bytes,
                swapped_bytes: sums.swapped_bytes,
                parts: point.map(|point| bills::parts(&point.bill, point.allocator)).unwrap_or_default(),
            });
        }
    }
    found.sort_by_key(|one| one.tick);
    found
}

/// Runs `heaptape timeline` with the given number of slices. With `divides` the resident memory is
/// divided by use.
///
/// # Errors
/// Returns an error when a recording cannot be read, when it does not hold what the report needs,
/// or when `out` fails.
pub fn run(query: &Query, slices: usize, divides: bool, out: &mut dyn Write, style: Style) -> Result<Outcome, Error> {
    if divides && !query.scope.filter.is_all() {
        return Err(Unanswerable::AllBlocks.into());
    }
    let (mut text, mut has_answer) = (Vec::new(), false);
    let outcome = print_reports(query, &mut text, style, query.grouping.0.is_some(), |process, symbols, progress| {
        if !process.has_events() {
            let over_time = OverTime::new(process, if divides { MAX_DIVIDED } else { 0 }, progress);
            let report = of_history(process, &over_time.points);
            has_answer |= report.is_some();
            return Ok((report.unwrap_or_default(), Vec::new()));
        }
        has_answer = true;
        let span = process.span(&query.scope.range);
        let from = Position { number: span.first, tick: span.first_tick.max(process.clock.start_tick) };
        let to = Position {
            number: span.end.min(process.tape.events),
            tick: span.end_tick.min(process.tape.last_tick.saturating_add(1)),
        };
        let by_event = !process.has_times() || span.first > 0 || span.end < u64::MAX;
        let mut model = Timeline::new(from, to, !by_event, slices);
        let (group_of, names) = query.grouping.0.map(|by| groups(process.stacks(), symbols, by)).unwrap_or_default();
        if names.len().saturating_mul(slices) > MAX_VALUES {
            return Err(Unanswerable::TooManyGroups { groups: names.len(), slices }.into());
        }
        let mut grouped = ByGroup::beside(&model, group_of, names.len());
        let start = query.scope.replay_start(process, span, !names.is_empty()).filter(|_| !divides);
        let mut over_time = OverTime::new(process, if divides { MAX_DIVIDED } else { 0 }, progress);
        if let Some(start) = &start {
            model.begin(start.live);
            grouped.begin(start.summary.as_ref().map_or(&[], |summary| &summary.sites[..]));
        }
        let marks = process.tape.marks.iter().filter(|mark| (span.first_tick..span.end_tick).contains(&mark.tick));
        let mark = |mark: &tape::Mark| {
            let (name, at) = (mark.text.lossy().into_owned(), PointInTime::at(process, mark.tick, None));
            Mark { name, at, thread: mark.thread }
        };
        let marks = marks.map(mark).collect();
        let (shown, start, span) = (span, start.as_ref(), span.with_history());
        let outcome = match names.is_empty() {
            true if !divides => query.scope.replay_from(process, start, span, symbols, progress, &mut model),
            _ => {
                let mut models = (&mut model, &mut grouped, &mut over_time);
                query.scope.replay_from(process, start, span, symbols, progress, &mut models)
            }
        };
        model.finish();
        grouped.finish();
        let all = names.into_iter().zip(grouped.series);
        let all = all.map(|(name, live_bytes)| {
            let most_bytes = live_bytes.iter().copied().max().unwrap_or(0);
            Group { name, most_bytes, live_bytes }
        });
        let mut groups: Vec<Group> = all.filter(|group| group.most_bytes > 0).collect();
        groups.sort_by(|a, b| b.most_bytes.cmp(&a.most_bytes).then_with(|| a.name.cmp(&b.name)));
        groups.truncate(if query.view.top > 0 { query.view.top } else { DEFAULT_GROUPS });
        let when = |slice: usize| match by_event {
            true => PointInTime { time_ns: None, ..PointInTime::at(process, 0, Some(model.start_of(slice))) },
            false => PointInTime::at(process, model.start_of(slice), None),
        };
        let rows = model.slices.iter().enumerate().map(|(at, slice)| Row {
            at: when(at),
            resident_bytes: None,
            mapped_bytes: None,
            reserved_bytes: None,
            live_bytes: slice.live_bytes,
            live_blocks: slice.live_blocks,
            events: Some(RowOfEvents {
                most_bytes: slice.peak_bytes,
                allocs: slice.allocs,
                bytes: slice.bytes,
                frees: slice.frees,
            }),
        });
        let mut rows: Vec<Row> = rows.collect();
        let residents = residents(process, shown, &over_time.points);
        if !by_event {
            for (slice, row) in rows.iter_mut().enumerate() {
                let end = model.start_of(slice + 1);
                row.resident_bytes = residents.iter().rfind(|one| one.tick < end).map(|one| one.resident_bytes);
            }
            if query.scope.mappings.has_mappings() {
                let ends: Vec<u64> = (1..=rows.len()).map(|slice| model.start_of(slice)).collect();
                for (row, bytes) in rows.iter_mut().zip(mapped::bytes_before(process, &ends)) {
                    (row.mapped_bytes, row.reserved_bytes) = (Some(bytes.used), Some(bytes.reserved));
                }
            }
        }
        Ok((TimelineReport { slices: rows, marks, residents, groups, mappings: query.scope.mappings }, outcome.missing))
    })?;
    if !has_answer {
        return Err(Unanswerable::NoHistory.into());
    }
    out.write_all(&text)?;
    Ok(outcome)
}

impl Report for TimelineReport {
    fn print(&self, screen: &mut Screen) -> io::Result<()> {
        if self.slices.is_empty() {
            return screen.line("only sums at the end are recorded");
        }
        if !self.mappings.has_blocks() {
            return self.print_mapped(screen);
        }
        let most = self.slices.iter().map(Row::most_bytes).max().unwrap_or(0).max(1);
        let style = screen.style;
        let live: Vec<u64> = self.slices.iter().map(Row::most_bytes).collect();
        if let Some(line) = charts::sparkline(style, &live, style.width.saturating_sub(24)) {
            screen.line(&format!("live {line} {}", bytes(most)))?;
        }
        let has_events = self.slices.iter().any(|row| row.events.is_some());
        let resident: Vec<u64> = self.slices.iter().map(|row| row.resident_bytes.unwrap_or(0)).collect();
        let most_resident = resident.iter().copied().max().unwrap_or(0);
        let most_mapped = self.slices.iter().filter_map(|row| row.mapped_bytes).max().unwrap_or(0);
        let mut columns = Columns { rss: most_resident > 0, mapped: most_mapped > 0, ..Columns::ALL };
        let width = columns.fit(style.width);
        if most_resident > 0
            && let Some(line) = charts::sparkline(style, &resident, style.width.saturating_sub(24))
        {
            screen.line(&format!("rss  {line} {}", bytes(most_resident)))?;
        }
        let rows: Vec<Vec<String>> = self
            .slices
            .iter()
            .map(|row| {
                let at = row.start();
                // The bar shows the live bytes at the end of the slice, and their maximum in it.
                let drawn = charts::bars(style, row.live_bytes, row.most_bytes(), most, width);
                let resident = columns.rss.then(|| row.resident_bytes.map(bytes).unwrap_or_default());
                let mapped = columns.mapped.then(|| row.mapped_bytes.map(bytes).unwrap_or_default());
                let blocks = columns.blocks.then(|| count(row.live_blocks));
                let events = row.events.as_ref();
                let most = events.filter(|_| columns.most).map(|events| bytes(events.most_bytes));
                let allocations = events.filter(|_| columns.allocations).map(|events| count(events.allocs));
                let live = [bytes(row.live_bytes)];
                let first = std::iter::once(at).chain(resident).chain(mapped).chain(live);
                first.chain(most).chain(blocks).chain(allocations).chain([drawn]).collect()
            })
            .collect();
        let legend = charts::legend(style, "live", "most", width);
        let head: &[&str] = match has_events {
            true => &["from", "rss", "mapped", "live", "most", "blocks", "allocations", &legend],
            false => &["at", "rss", "mapped", "live", "blocks", ""],
        };
        let head: Vec<&str> = head.iter().copied().filter(|name| columns.has(name)).collect();
        screen.table(&head, &rows)?;
        self.print_parts(screen)?;
        let rows: Vec<Vec<String>> = self
            .marks
            .iter()
            .take(MAX_MARKS)
            .map(|mark| vec![mark.at.time_ns.map_or_else(String::new, duration), clean(&mark.name).to_string()])
            .collect();
        if !rows.is_empty() {
            screen.table(&["at", "mark"], &rows)?;
        }
        if self.marks.len() > MAX_MARKS {
            screen.line(&format!("  and {} more (--json)", self.marks.len() - MAX_MARKS))?;
        }
        if self.groups.is_empty() {
            return Ok(());
        }
        let rows: Vec<Vec<String>> = self
            .groups
            .iter()
            .map(|group| {
                let end = group.live_bytes.last().copied().unwrap_or(0);
                let line = charts::sparkline(style, &group.live_bytes, 40).unwrap_or_default();
                vec![bytes(group.most_bytes), bytes(end), line, group.name.clone()]
            })
            .collect();
        screen.table(&["most", "at the end", "over the run", "of"], &rows)
    }
}

/// The optional columns of the timeline.
struct Columns {
    rss: bool,
    mapped: bool,
    most: bool,
    blocks: bool,
    allocations: bool,
}

/// Smallest width of the bars, in characters.
const BAR: usize = 10;

impl Columns {
    const ALL: Columns = Columns { rss: true, mapped: true, most: true, blocks: true, allocations: true };

    /// Leaves out columns, the least important first, until there is space for bars in a terminal
    /// of this width. Returns the width of the bars.
    fn fit(&mut self, width: usize) -> usize {
        for round in 0..5 {
            if self.width() + BAR <= width {
                break;
            }
            match round {
                0 => self.most = false,
                1 => self.blocks = false,
                2 => self.allocations = false,
                3 => self.mapped = false,
                _ => self.rss = false,
            }
        }
        width.saturating_sub(self.width()).max(BAR)
    }

    /// Returns the width of all columns before the bar.
    fn width(&self) -> usize {
        let optional = [(self.rss, 10), (self.mapped, 10), (self.most, 10), (self.blocks, 11), (self.allocations, 13)];
        30 + optional.iter().filter(|(is_shown, _)| *is_shown).map(|(_, width)| width).sum::<usize>()
    }

    fn has(&self, name: &str) -> bool {
        match name {
            "rss" => self.rss,
            "mapped" => self.mapped,
            "most" => self.most,
            "blocks" => self.blocks,
            "allocations" => self.allocations,
            _ => true,
        }
    }
}

impl TimelineReport {
    /// Prints what was mapped over the run, without the blocks.
    fn print_mapped(&self, screen: &mut Screen) -> io::Result<()> {
        let style = screen.style;
        let mapped: Vec<u64> = self.slices.iter().filter_map(|row| row.mapped_bytes).collect();
        let Some(most) = mapped.iter().copied().max() else {
            return screen.line("no call that maps memory is recorded");
        };
        let rows = self.slices.iter().map(|row| {
            let used = row.mapped_bytes.unwrap_or(0);
            let drawn = charts::bars(style, used, used, most.max(1), style.width.saturating_sub(44).max(10));
            let numbers = [row.resident_bytes.unwrap_or(0), used, row.reserved_bytes.unwrap_or(0)].map(bytes);
            std::iter::once(row.start()).chain(numbers).chain([drawn]).collect()
        });
        screen.table(&["from", "rss", "mapped", "reserved", ""], &rows.collect::<Vec<Vec<String>>>())
    }

    /// Prints the resident memory by use, if it is divided.
    fn print_parts(&self, screen: &mut Screen) -> io::Result<()> {
        let rows = self.residents.iter().filter(|one| !one.parts.is_empty()).map(|one| {
            let sum = |names: &[&str]| {
                bytes(one.parts.iter().filter(|part| names.contains(&part.name)).map(|part| part.bytes).sum())
            };
            vec![
                one.at.time_ns.map_or_else(String::new, duration),
                bytes(one.resident_bytes),
                sum(&["live"]),
                sum(&["slack"]),
                sum(&["held_free"]),
                sum(&["free_pages"]),
                sum(&["never_block", "undivided"]),
                sum(&["files", "shared", "stacks", "unlisted"]),
                sum(&["heaptape"]),
            ]
        });
        let rows: Vec<Vec<String>> = rows.collect();
        if rows.is_empty() {
            return Ok(());
        }
        screen.line("resident memory by use (heaptape rss --at WHEN shows one of these in full):")?;
        let head = ["at", "rss", "live", "slack", "held free", "free pages", "no block", "files, …", "heaptape"];
        screen.table(&head, &rows)
    }
}

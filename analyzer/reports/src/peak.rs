//! `heaptape peak`: which call sites hold the bytes at the peak, and which have their own peak at
//! another time.

use crate::print::{Report, print_reports};
use heaptape_analyzer::Process;
use heaptape_analyzer::event::Position;
use heaptape_analyzer::model::peak::Peak;
use heaptape_analyzer::report::mapped::{self, MappedRow};
use heaptape_analyzer::report::{Error, Outcome, PointInTime, Query, Scope, SiteDescription, SiteGroup, Unanswerable};
use heaptape_analyzer::sums;
use heaptape_analyzer::symbols::Symbolizer;
use heaptape_analyzer::text::{Screen, Style, bytes, count, counted, duration, percent};
use serde::Serialize;
use std::io::{self, Write};

#[derive(Serialize)]
struct Row {
    bytes: u64,
    blocks: u64,
    own_peak_bytes: Option<u64>,
    #[serde(flatten)]
    site: SiteDescription,
}

/// The time around the peak in which the live bytes stayed above nine tenths of it.
#[derive(Serialize)]
struct Phase {
    from: PointInTime,
    /// This is `None` if they did to the end.
    until: Option<PointInTime>,
}

#[derive(Serialize)]
struct PeakReport {
    peak_bytes: u64,
    peak_blocks: u64,
    at: PointInTime,
    /// This is `None` without events.
    #[serde(skip_serializing_if = "Option::is_none")]
    phase: Option<Phase>,
    most_blocks: u64,
    holders: Vec<Row>,
    /// What the program had mapped itself at the peak of the live bytes, beside the blocks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    mapped: Vec<MappedRow>,
    /// The peak of the blocks together with what the program had mapped itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    with_mapped: Option<WholePeak>,
    /// The peak of what the program had mapped itself, where the blocks are not known at any time.
    #[serde(skip_serializing_if = "Option::is_none")]
    mapped_peak: Option<MappedPeak>,
    /// Whether the blocks are shown.
    #[serde(skip)]
    has_blocks: bool,
    /// Maximum number of rows in text.
    #[serde(skip)]
    top: usize,
}

/// The peak of the live blocks and of what the program had mapped itself, taken together.
#[derive(Serialize)]
struct WholePeak {
    bytes: u64,
    heap_bytes: u64,
    heap_blocks: u64,
    mapped_bytes: u64,
    at: PointInTime,
    holders: Vec<Row>,
    mapped: Vec<MappedRow>,
}

/// The peak of what the program had mapped itself.
#[derive(Serialize)]
struct MappedPeak {
    bytes: u64,
    at: PointInTime,
    mapped: Vec<MappedRow>,
}

/// Returns the bytes that the program had mapped itself, at each tick at which they changed; none
/// if the query is not about them.
fn mapped_changes(scope: &Scope, process: &Process) -> Vec<(u64, u64)> {
    let mut changes = Vec::new();
    if scope.mappings.has_mappings() && scope.filter.is_all() {
        mapped::for_each_change(process, &mut |tick, bytes| changes.push((tick, bytes)));
    }
    if changes.iter().all(|(_, bytes)| *bytes == 0) { Vec::new() } else { changes }
}

/// Returns the peak of what the program had mapped itself.
fn mapped_peak(query: &Query, process: &Process, symbols: &mut Symbolizer) -> Option<MappedPeak> {
    let changes = mapped_changes(&query.scope, process);
    let &(tick, bytes) = changes.iter().rev().max_by_key(|(_, bytes)| *bytes)?;
    let mapped = mapped_at(query, process, symbols, tick);
    Some(MappedPeak { bytes, at: PointInTime::at(process, tick, None), mapped })
}

/// Returns what the program had mapped itself at a tick.
fn mapped_at(query: &Query, process: &Process, symbols: &mut Symbolizer, tick: u64) -> Vec<MappedRow> {
    if !query.scope.mappings.has_mappings() || !query.scope.filter.is_all() {
        return Vec::new();
    }
    let ranges = mapped::ranges_at(process, tick);
    mapped::rows(query.grouping, process, symbols, mapped::own(&ranges))
}

/// Runs `heaptape peak`. The peaks of single call sites need a pass over the events; without
/// events, the recorder's sums provide the rest.
///
/// # Examples
///
/// ```
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/tape/v1/trace");
/// use heaptape_analyzer::report::{Query, View};
/// use heaptape_analyzer::text::Style;
/// use heaptape_reports::peak;
///
/// let query = Query::of(path, View::json(5));
/// let mut json = Vec::new();
/// peak::run(&query, &mut json, Style::PLAIN)?;
/// let answer: serde_json::Value = serde_json::from_slice(&json)?;
/// assert_eq!(answer["processes"][0]["peak_bytes"], 26_160);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Returns an error when a recording cannot be read, when it does not hold what the report needs,
/// or when `out` fails.
pub fn run(query: &Query, out: &mut dyn Write, style: Style) -> Result<Outcome, Error> {
    print_reports(query, out, style, false, |process, symbols, progress| {
        if query.scope.is_all() && !process.has_events() {
            let sums = sums(process, progress);
            if !sums.has_peak {
                return Err(Unanswerable::NoPeak.into());
            }
            let rows = sums.sites.iter().map(|row| (row.site, [row.peak_bytes, row.peak_blocks]));
            let holders = query.grouping.group(process, symbols, rows);
            let holders = holders.iter().take(query.view.top).map(|group| Row {
                bytes: group.values[0],
                blocks: group.values[1],
                own_peak_bytes: None,
                site: group.describe(process, symbols),
            });
            let totals = &sums.totals;
            let report = PeakReport {
                peak_bytes: totals.peak_bytes,
                peak_blocks: sums.sites.iter().map(|row| row.peak_blocks).sum(),
                at: PointInTime::at(process, totals.peak_tick, None),
                phase: None,
                most_blocks: totals.peak_blocks,
                holders: holders.collect(),
                mapped: mapped_at(query, process, symbols, totals.peak_tick),
                with_mapped: None,
                mapped_peak: mapped_peak(query, process, symbols),
                has_blocks: query.scope.mappings.has_blocks(),
                top: query.view.top,
            };
            return Ok((report, Vec::new()));
        }
        let span = process.span(&query.scope.range);
        let changes = mapped_changes(&query.scope, process);
        let mut model = Peak::within(span);
        let mut whole = (!changes.is_empty()).then(|| Peak::with_mapped(span, changes));
        // A summary knows the peak of the blocks alone.
        let start = if whole.is_some() { None } else { query.scope.replay_start(process, span, true) };
        if let Some(summary) = start.as_ref().and_then(|start| start.summary.as_ref()) {
            model.begin(summary);
        }
        let range = span.with_history();
        let outcome = match &mut whole {
            None => query.scope.replay_from(process, start.as_ref(), range, symbols, progress, &mut model),
            Some(whole) => query.scope.replay(process, range, symbols, progress, &mut (&mut model, &mut *whole)),
        };
        model.finish();
        let (held, at) = model.peak();
        let point = |at: Position| PointInTime::at(process, at.tick, Some(at.number));
        let with_mapped = whole.map(|mut whole| {
            whole.finish();
            let (held, at) = whole.peak();
            WholePeak {
                bytes: held.bytes.saturating_add(whole.mapped_at_peak()),
                heap_bytes: held.bytes,
                heap_blocks: held.blocks,
                mapped_bytes: whole.mapped_at_peak(),
                at: point(at),
                holders: holders(query, process, symbols, &whole),
                mapped: mapped_at(query, process, symbols, at.tick),
            }
        });
        let report = PeakReport {
            peak_bytes: held.bytes,
            peak_blocks: held.blocks,
            at: point(at),
            phase: model.phase().map(|(from, until)| Phase { from: point(from), until: until.map(point) }),
            most_blocks: model.peak_blocks(),
            holders: holders(query, process, symbols, &model),
            mapped: mapped_at(query, process, symbols, at.tick),
            with_mapped,
            mapped_peak: None,
            has_blocks: query.scope.mappings.has_blocks(),
            top: query.view.top,
        };
        Ok((report, outcome.missing))
    })
}

/// Returns the rows of the call sites that hold the bytes at a peak.
fn holders(query: &Query, process: &Process, symbols: &mut Symbolizer, model: &Peak) -> Vec<Row> {
    let rows = model.shares().map(|share| (share.site, [share.at_peak.bytes, share.at_peak.blocks, share.own_peak]));
    let groups = query.grouping.group(process, symbols, rows);
    let row = |group: &SiteGroup| Row {
        bytes: group.values[0],
        blocks: group.values[1],
        own_peak_bytes: Some(group.values[2]),
        site: group.describe(process, symbols),
    };
    groups.iter().take(query.view.top).map(row).collect()
}

impl Phase {
    fn text(&self) -> String {
        let name = |at: &PointInTime| match (at.time_ns, at.event) {
            (Some(nanos), _) => duration(nanos),
            (None, event) => format!("event {}", event.unwrap_or(0)),
        };
        let until = self.until.as_ref().map_or_else(|| "the end".into(), name);
        format!("above 90% of it from {} to {until}", name(&self.from))
    }
}

impl Report for PeakReport {
    fn print(&self, screen: &mut Screen) -> io::Result<()> {
        let (peak, at) = (bytes(self.peak_bytes), self.at.text());
        // Massif does not count blocks.
        screen.line(&match self.peak_blocks {
            0 if self.peak_bytes > 0 => format!("peak of {peak}, {at}"),
            blocks => {
                let (blocks, most) = (counted(blocks, "block"), counted(self.most_blocks, "block"));
                format!("peak of {peak} in {blocks}, {at}; at most {most} at any time")
            }
        })?;
        if let Some(phase) = &self.phase {
            screen.line(&phase.text())?;
        }
        if let Some(line) = self.whole_line() {
            screen.line(&line)?;
        }
        let own = |row: &Row| row.own_peak_bytes.map_or_else(|| "-".into(), bytes);
        let sum = mapped::sum_text(self.mapped.iter());
        let heading = format!("mapped by the program itself at that time: {sum}");
        if !self.has_blocks {
            mapped::print(screen, &heading, &self.mapped, self.top)?;
            return self.print_mapped_peak(screen);
        }
        let rows: Vec<Vec<String>> = self
            .holders
            .iter()
            .map(|row| {
                let share = percent(row.bytes, self.peak_bytes);
                vec![bytes(row.bytes), share, count(row.blocks), own(row), row.site.label.clone()]
            })
            .collect();
        screen.table(&["bytes", "share", "blocks", "own peak", "held by"], &rows)?;
        mapped::print(screen, &heading, &self.mapped, self.top)?;
        self.print_mapped_peak(screen)
    }
}

impl PeakReport {
    /// Returns whether text says what the program had mapped: not less than a percent, which nearly
    /// every program maps somewhere.
    fn is_mapped_much(&self) -> bool {
        self.with_mapped
            .as_ref()
            .is_none_or(|whole| whole.bytes > self.peak_bytes.saturating_add(self.peak_bytes / 100))
    }

    /// Returns the line on the peak with what the program had mapped itself, which follows that on
    /// the blocks.
    fn whole_line(&self) -> Option<String> {
        if !self.is_mapped_much() {
            return None;
        }
        if let Some(MappedPeak { bytes: most, at, .. }) = &self.mapped_peak {
            return Some(format!("the program itself had mapped {} at most, {}", bytes(*most), at.text()));
        }
        let WholePeak { bytes: all, heap_bytes, heap_blocks, mapped_bytes, at, .. } = self.with_mapped.as_ref()?;
        let (blocks, mapped) = (counted(*heap_blocks, "block"), bytes(*mapped_bytes));
        let parts = format!("{mapped} mapped and {} in {blocks}", bytes(*heap_bytes));
        Some(format!("peak of {} with what the program mapped itself: {parts}, {}", bytes(*all), at.text()))
    }

    /// Prints what the program had mapped at the peak of all, unless that is the same as at the
    /// peak of the blocks.
    fn print_mapped_peak(&self, screen: &mut Screen) -> io::Result<()> {
        if !self.is_mapped_much() {
            return Ok(());
        }
        let (at, rows) = match (&self.with_mapped, &self.mapped_peak) {
            (Some(WholePeak { at, mapped, .. }), _) | (None, Some(MappedPeak { at, mapped, .. })) => (at, mapped),
            (None, None) => return Ok(()),
        };
        let rows_of = |rows: &[MappedRow]| -> Vec<(u64, u64, String)> {
            rows.iter().map(|row| (row.bytes, row.ranges, row.site.label.clone())).collect()
        };
        if rows_of(rows) == rows_of(&self.mapped) {
            return Ok(());
        }
        let sum = mapped::sum_text(rows.iter());
        mapped::print(screen, &format!("mapped by the program itself {}: {sum}", at.text()), rows, self.top)
    }
}

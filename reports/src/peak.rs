//! `heaptape peak`: which call sites hold the bytes at the peak, and which have their own peak at
//! another time.

use crate::print::{Report, print_reports};
use heaptape_analyzer::Process;
use heaptape_analyzer::event::Position;
use heaptape_analyzer::model::peak::Peak;
use heaptape_analyzer::report::Unanswerable;
use heaptape_analyzer::report::mapped::{self, MappedRow};
use heaptape_analyzer::report::query::{PointInTime, Query, SiteDescription, group_sites};
use heaptape_analyzer::report::{Error, Outcome};
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
    /// Whether the blocks are shown.
    #[serde(skip)]
    has_blocks: bool,
    /// Maximum number of rows in text.
    #[serde(skip)]
    top: usize,
}

/// Returns what the program had mapped itself at a tick.
fn mapped_at(query: &Query, process: &Process, symbols: &mut Symbolizer, tick: u64) -> Vec<MappedRow> {
    if !query.mappings.has_mappings() || !query.filter.is_all() {
        return Vec::new();
    }
    let ranges = mapped::ranges_at(process, tick);
    mapped::rows(query, process, symbols, mapped::own(&ranges))
}

/// Runs `heaptape peak`. The peaks of single call sites need a pass over the events; without
/// events, the recorder's sums provide the rest.
///
/// # Examples
///
/// ```
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/tape/v1/trace");
/// use heaptape_analyzer::report::Query;
/// use heaptape_analyzer::text::Style;
/// use heaptape_reports::peak;
///
/// let query = Query { paths: vec![path.into()], json: true, top: 5, ..Query::default() };
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
        if query.is_all() && !process.has_events() {
            let sums = sums(process, progress);
            if !sums.has_peak {
                return Err(Unanswerable::NoPeak.into());
            }
            let rows = sums.sites.iter().map(|row| (row.site, [row.peak_bytes, row.peak_blocks]));
            let holders = group_sites(query, process, symbols, rows);
            let holders = holders.iter().take(query.top).map(|group| Row {
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
                has_blocks: query.mappings.has_blocks(),
                top: query.top,
            };
            return Ok((report, Vec::new()));
        }
        let span = process.span(&query.range);
        let mut model = Peak::within(span);
        let start = query.replay_start(process, span, true);
        if let Some(summary) = start.as_ref().and_then(|start| start.summary.as_ref()) {
            model.begin(summary);
        }
        let outcome = query.replay_from(process, start.as_ref(), span.with_history(), symbols, progress, &mut model);
        model.finish();
        let (held, at) = model.peak();
        let rows =
            model.shares().map(|share| (share.site, [share.at_peak.bytes, share.at_peak.blocks, share.own_peak]));
        let holders = group_sites(query, process, symbols, rows);
        let holders = holders.iter().take(query.top).map(|group| Row {
            bytes: group.values[0],
            blocks: group.values[1],
            own_peak_bytes: Some(group.values[2]),
            site: group.describe(process, symbols),
        });
        let point = |at: Position| PointInTime::at(process, at.tick, Some(at.number));
        let report = PeakReport {
            peak_bytes: held.bytes,
            peak_blocks: held.blocks,
            at: PointInTime::at(process, at.tick, Some(at.number)),
            phase: model.phase().map(|(from, until)| Phase { from: point(from), until: until.map(point) }),
            most_blocks: model.peak_blocks(),
            holders: holders.collect(),
            mapped: mapped_at(query, process, symbols, at.tick),
            has_blocks: query.mappings.has_blocks(),
            top: query.top,
        };
        Ok((report, outcome.missing))
    })
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
        let own = |row: &Row| row.own_peak_bytes.map_or_else(|| "-".into(), bytes);
        let sum = mapped::sum_text(self.mapped.iter());
        let heading = format!("mapped by the program itself at that time: {sum}");
        if !self.has_blocks {
            return mapped::print(screen, &heading, &self.mapped, self.top);
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
        mapped::print(screen, &heading, &self.mapped, self.top)
    }
}

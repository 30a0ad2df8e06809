//! `heaptape peak`: who holds the greatest live bytes, and whose own peak lies elsewhere.

use super::questions::{Answer, Query, Shown, When, ask, group};
use super::sums::sums;
use super::{Error, Outcome};
use crate::model::peak::Peak;
use crate::text::{Screen, Style, bytes, count, counted, percent};
use serde::Serialize;
use std::io::{self, Write};

#[derive(Serialize)]
struct Row {
    bytes: u64,
    blocks: u64,
    own_peak_bytes: Option<u64>,
    #[serde(flatten)]
    shown: Shown,
}

#[derive(Serialize)]
struct PeakAnswer {
    peak_bytes: u64,
    peak_blocks: u64,
    at: When,
    most_blocks: u64,
    holders: Vec<Row>,
}

/// `heaptape peak`. Own peaks need a pass over the events; without them the recorder's sums answer
/// the rest.
///
/// # Errors
/// When nothing can be read, or `out` fails.
pub fn run(query: &Query, out: &mut dyn Write, style: Style) -> Result<Outcome, Error> {
    ask(query, out, style, false, |image, symbols, progress| {
        if query.is_all() && !image.has_events() {
            let sums = sums(image, progress);
            if !sums.has_peak {
                return Err(Error::Unanswerable(
                    "the peak needs events, and there are none: a profile holds only sums".into(),
                ));
            }
            let rows = sums.sites.iter().map(|row| (row.site, [row.peak_bytes, row.peak_blocks]));
            let holders = group(query, image, symbols, rows);
            let holders = holders.iter().take(query.top).map(|group| Row {
                bytes: group.values[0],
                blocks: group.values[1],
                own_peak_bytes: None,
                shown: group.shown(image, symbols),
            });
            let totals = &sums.totals;
            let answer = PeakAnswer {
                peak_bytes: totals.peak_bytes,
                peak_blocks: sums.sites.iter().map(|row| row.peak_blocks).sum(),
                at: When::at(image, totals.peak_tick, None),
                most_blocks: totals.peak_blocks,
                holders: holders.collect(),
            };
            return Ok((answer, Vec::new()));
        }
        let span = image.span(&query.range);
        let mut model = Peak::within(span);
        let start = query.start(image, span, true);
        if let Some(summary) = start.as_ref().and_then(|start| start.summary.as_ref()) {
            model.begin(summary);
        }
        let outcome = query.replay_from(image, start.as_ref(), span.with_history(), symbols, progress, &mut model);
        model.finish();
        let (held, at) = model.peak();
        let rows =
            model.shares().map(|share| (share.site, [share.at_peak.bytes, share.at_peak.blocks, share.own_peak]));
        let holders = group(query, image, symbols, rows);
        let holders = holders.iter().take(query.top).map(|group| Row {
            bytes: group.values[0],
            blocks: group.values[1],
            own_peak_bytes: Some(group.values[2]),
            shown: group.shown(image, symbols),
        });
        let answer = PeakAnswer {
            peak_bytes: held.bytes,
            peak_blocks: held.blocks,
            at: When::at(image, at.tick, Some(at.number)),
            most_blocks: model.peak_blocks(),
            holders: holders.collect(),
        };
        Ok((answer, outcome.missing))
    })
}

impl Answer for PeakAnswer {
    fn print(&self, screen: &mut Screen) -> io::Result<()> {
        let (peak, at) = (bytes(self.peak_bytes), self.at.text());
        // Massif counts no blocks.
        screen.line(&match self.peak_blocks {
            0 if self.peak_bytes > 0 => format!("peak of {peak}, {at}"),
            blocks => {
                let (blocks, most) = (counted(blocks, "block"), counted(self.most_blocks, "block"));
                format!("peak of {peak} in {blocks}, {at}; at most {most} at any moment")
            }
        })?;
        let own = |row: &Row| row.own_peak_bytes.map_or_else(|| "-".into(), bytes);
        let rows: Vec<Vec<String>> = self
            .holders
            .iter()
            .map(|row| {
                let share = percent(row.bytes, self.peak_bytes);
                vec![bytes(row.bytes), share, count(row.blocks), own(row), row.shown.place.clone()]
            })
            .collect();
        screen.table(&["bytes", "share", "blocks", "own peak", "held by"], &rows)
    }
}

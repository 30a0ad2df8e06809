//! `heaptape timeline`: live bytes and blocks over the run.

use super::questions::{Answer, Asked, When, ask};
use super::{Error, Outcome};
use crate::event::Moment;
use crate::model::timeline::Timeline;
use crate::pictures;
use crate::text::{Screen, Style, bytes, count, duration};
use serde::Serialize;
use std::io::{self, Write};

#[derive(Serialize)]
struct Row {
    at: When,
    live_bytes: u64,
    live_blocks: u64,
    most_bytes: u64,
    allocs: u64,
    bytes: u64,
    frees: u64,
}

#[derive(Serialize)]
struct TimelineAnswer {
    slices: Vec<Row>,
}

/// `heaptape timeline` in so many slices.
///
/// # Errors
/// When nothing can be read, or `out` fails.
pub fn run(asked: &Asked, slices: usize, out: &mut dyn Write, style: Style) -> Result<Outcome, Error> {
    ask(asked, out, style, true, |image, symbols, progress| {
        let span = image.span(&asked.range);
        let from = Moment { number: span.first, tick: span.first_tick.max(image.clock.start_tick) };
        let to = Moment {
            number: span.end.min(image.tape.events),
            tick: span.end_tick.min(image.tape.last_tick.saturating_add(1)),
        };
        let by_event = !image.has_times() || span.first > 0 || span.end < u64::MAX;
        let mut model = Timeline::new(from, to, !by_event, slices);
        let outcome = asked.replay(image, span.with_history(), symbols, progress, &mut model);
        model.finish();
        let when = |slice: usize| match by_event {
            true => When { time_ns: None, event: Some(model.start_of(slice)) },
            false => When::at(image, model.start_of(slice), None),
        };
        let rows = model.slices.iter().enumerate().map(|(at, slice)| Row {
            at: when(at),
            live_bytes: slice.live_bytes,
            live_blocks: slice.live_blocks,
            most_bytes: slice.most_bytes,
            allocs: slice.allocs,
            bytes: slice.bytes,
            frees: slice.frees,
        });
        Ok((TimelineAnswer { slices: rows.collect() }, outcome.missing))
    })
}

impl Answer for TimelineAnswer {
    fn print(&self, screen: &mut Screen) -> io::Result<()> {
        let most = self.slices.iter().map(|row| row.most_bytes).max().unwrap_or(0).max(1);
        let width = screen.style.width.saturating_sub(64).max(10);
        let style = screen.style;
        let live: Vec<u64> = self.slices.iter().map(|row| row.most_bytes).collect();
        if let Some(line) = pictures::sparkline(style, &live, style.width.saturating_sub(24)) {
            screen.line(&format!("live {line} {}", bytes(most)))?;
        }
        let rows: Vec<Vec<String>> = self
            .slices
            .iter()
            .map(|row| {
                let at = match (row.at.time_ns, row.at.event) {
                    (Some(nanos), _) => duration(nanos),
                    (None, event) => count(event.unwrap_or(0)),
                };
                // Live at the end of the slice, and the most in it.
                let drawn = pictures::bars(style, row.live_bytes, row.most_bytes, most, width);
                vec![at, bytes(row.live_bytes), bytes(row.most_bytes), count(row.live_blocks), count(row.allocs), drawn]
            })
            .collect();
        screen.table(&["from", "live", "most", "blocks", "allocations", ""], &rows)
    }
}

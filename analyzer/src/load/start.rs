//! Finds where a pass over a part of the run can start. The record of a chunk has the numbers of
//! live blocks and bytes before it. If sums by site are needed, the pass starts after a summary.
//! Earlier events are not read.

use super::tape::TraceRange;
use super::{Events, Process};
use crate::event::Span;
use heaptape_formats::tape::{Chunk, Record, Step, Stream, Summary};

/// A point in the middle of a run at which a pass can start.
#[derive(Clone, Debug)]
pub struct StartPoint {
    /// Index of the first trace range to read.
    pub range_index: usize,
    /// Live blocks and bytes before it, without inherited ones.
    pub live: (u64, u64),
    /// The summary of all events before it, if it was requested.
    pub summary: Option<Summary>,
}

impl Process {
    /// Returns the latest start point before a span. Returns `None` if all events must be read:
    /// there is no start point, the recording is damaged, or its chunks have no column of previous
    /// blocks.
    pub fn start_before(&self, span: Span, by_site: bool) -> Option<StartPoint> {
        let is_before = |before: u64, chunk: &Chunk| {
            before.saturating_add(chunk.events) < span.first || chunk.last_tick < span.first_tick
        };
        self.start(&is_before, span, by_site)
    }

    /// Returns the latest start point before the end of a span, with a summary.
    pub fn start_before_end(&self, span: Span) -> Option<StartPoint> {
        let is_before = |before: u64, chunk: &Chunk| {
            before.saturating_add(chunk.events) < span.end && chunk.last_tick < span.end_tick
        };
        self.start(&is_before, span, true)
    }

    fn start(&self, is_before: &dyn Fn(u64, &Chunk) -> bool, span: Span, by_site: bool) -> Option<StartPoint> {
        let Events::Taped { tape, trace: Some(_) } = &self.events else { return None };
        let ranges = &self.tape.ranges;
        let is_before = |range: &TraceRange| matches!(range, TraceRange::Committed { before, chunk, .. } if is_before(*before, chunk));
        let first = ranges.iter().take_while(|range| is_before(range)).count();
        let (range_index, offset) = match by_site {
            true => {
                let summary = self.tape.summaries.iter().rfind(|summary| summary.ranges_before <= first)?;
                (summary.ranges_before, summary.offset)
            }
            false => (first, 0),
        };
        let Some(TraceRange::Committed { chunk, .. }) = ranges.get(range_index).filter(|_| range_index > 0) else {
            return None;
        };
        let live = (chunk.live_blocks, chunk.live_bytes);
        for (index, range) in ranges.iter().enumerate() {
            let TraceRange::Committed { before, chunk, has_previous, .. } = range else { return None };
            if *before >= span.end || chunk.first_tick >= span.end_tick {
                break;
            }
            if chunk.number as usize != index + 1 || (index >= range_index && !has_previous) {
                return None;
            }
        }
        let mut start = StartPoint { range_index, live, summary: None };
        if by_site {
            match Stream::at(tape, offset).step() {
                Ok(Step::Record(_, Record::Summary(summary))) => start.summary = Some(summary),
                _ => return None,
            }
        }
        Some(start)
    }
}

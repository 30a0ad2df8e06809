//! Where a pass may begin that needs what lived at a moment: at a chunk, whose record says how much
//! lived before it, or, where the sums of each site are asked for, behind the last summary before
//! it. What came before is not read.

use super::tape::TraceRange;
use super::{Events, Image};
use crate::event::Span;
use heaptape_formats::tape::{Chunk, Record, Step, Stream, Summary};

/// A place in the middle of a run, and what is known of everything before it.
#[derive(Clone, Debug)]
pub struct StartPoint {
    /// The first place of the tape to be read.
    pub range_index: usize,
    /// Own blocks and bytes live before it.
    pub live: (u64, u64),
    /// Totals and sums up to there.
    pub summary: Option<Summary>,
}

impl Image {
    /// The latest place before a span from which it can be computed. None where a pass over
    /// everything is needed: there is no such place, the recording is torn, or a recorder wrote it
    /// that did not say what events give back.
    pub fn start_before(&self, span: Span, by_site: bool) -> Option<StartPoint> {
        let is_before = |before: u64, chunk: &Chunk| {
            before.saturating_add(chunk.events) < span.first || chunk.last_tick < span.first_tick
        };
        self.start(&is_before, span, by_site)
    }

    /// The latest place before a span's end.
    pub fn start_before_end(&self, span: Span) -> Option<StartPoint> {
        let is_before = |before: u64, chunk: &Chunk| {
            before.saturating_add(chunk.events) < span.end && chunk.last_tick < span.end_tick
        };
        self.start(&is_before, span, true)
    }

    fn start(&self, is_before: &dyn Fn(u64, &Chunk) -> bool, span: Span, by_site: bool) -> Option<StartPoint> {
        let Events::Taped { tape, trace: Some(_) } = &self.events else { return None };
        let places = &self.tape.ranges;
        let is_before = |place: &TraceRange| matches!(place, TraceRange::Committed { before, chunk, .. } if is_before(*before, chunk));
        let first = places.iter().take_while(|place| is_before(place)).count();
        let (place, offset) = match by_site {
            true => {
                self.tape.summaries.iter().rev().map(|&(at, place)| (place, at)).find(|(place, _)| *place <= first)?
            }
            false => (first, 0),
        };
        let Some(TraceRange::Committed { chunk, .. }) = places.get(place).filter(|_| place > 0) else { return None };
        let live = (chunk.live_blocks, chunk.live_bytes);
        for (at, one) in places.iter().enumerate() {
            let TraceRange::Committed { before, chunk, has_previous, .. } = one else { return None };
            if *before >= span.end || chunk.first_tick >= span.end_tick {
                break;
            }
            if chunk.number as usize != at + 1 || (at >= place && !has_previous) {
                return None;
            }
        }
        let mut start = StartPoint { range_index: place, live, summary: None };
        if by_site {
            match Stream::at(tape, offset).step() {
                Ok(Step::Record(_, Record::Summary(summary))) => start.summary = Some(summary),
                _ => return None,
            }
        }
        Some(start)
    }
}

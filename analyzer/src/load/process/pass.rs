//! A pass over the events of a process: up to four threads decode the chunks, and the caller gets
//! them in order.

use super::{Events, Process};
use crate::event::{Event, Span};
use crate::kept_file::KeptFile;
use crate::load::bare;
use crate::load::chunk::{ChunkContext, Decoded, Decoder};
use crate::load::tape::TraceRange;
use crate::missing::Missing;
use crate::progress::Progress;
use heaptape_formats::mtrc;
use heaptape_formats::tape::journal::Splice;
use heaptape_formats::tape::{Process as ProcessRecord, Source};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};

impl Process {
    /// Calls `each` for batches of the events of a span, starting with the trace range of this
    /// index, with the previous state of blocks of earlier chunks
    /// ([`crate::event::Kind::Previous`]).
    pub(crate) fn for_each_from(
        &self,
        from: Option<usize>,
        span: Span,
        progress: &Progress,
        each: &mut dyn FnMut(&[Event]),
    ) -> Vec<Missing> {
        let (tape, trace) = match &self.events {
            Events::Taped { tape, trace: Some(trace) } => (tape, trace),
            Events::Trace(path) => return bare::events(path, span, self.sums.is_none(), each),
            Events::Joined(joined) => return joined.for_each(span, progress, each),
            _ => return Vec::new(),
        };
        let ranges = self.tape.ranges.iter().skip(from.unwrap_or(0));
        let ranges: Vec<&TraceRange> = ranges.filter(|range| overlaps(range, span)).collect();
        let context = ChunkContext { reports_previous: from.is_some(), ..self.chunk_context(trace) };
        progress.start(ranges.len() as u64);
        let mut missing = Vec::new();
        let mut take = |mut decoded: Decoded| {
            missing.append(&mut decoded.missing);
            let events = &decoded.events;
            let from = events.partition_point(|event| span.is_before(event.position()));
            let to = events.partition_point(|event| !span.is_past(event.position()));
            if from < to {
                each(&events[from..to]);
            }
            progress.advance(1);
            decoded.events
        };
        let workers = std::thread::available_parallelism().map_or(1, usize::from).min(4).min(ranges.len() / 4);
        if workers < 2 {
            let (mut decoder, mut used) = (Decoder::default(), Vec::new());
            for range in ranges {
                used = take(decoder.decode(tape, trace, &context, range, used));
            }
            return missing;
        }
        std::thread::scope(|scope| {
            // Worker k decodes the ranges k, k + n, …, so receiving from the workers in turn yields
            // the ranges in order. Each worker gets used vectors back.
            let channels: Vec<(Receiver<Decoded>, Sender<Vec<Event>>)> = (0..workers)
                .map(|first| {
                    let (sender, receiver) = sync_channel(1);
                    let (return_sender, used) = channel();
                    let (ranges, context) = (&ranges, &context);
                    scope.spawn(move || {
                        let mut decoder = Decoder::default();
                        for range in ranges.iter().skip(first).step_by(workers) {
                            let used = used.try_recv().unwrap_or_default();
                            if sender.send(decoder.decode(tape, trace, context, range, used)).is_err() {
                                break;
                            }
                        }
                    });
                    (receiver, return_sender)
                })
                .collect();
            for index in 0..ranges.len() {
                let (receiver, return_sender) = &channels[index % workers];
                if let Ok(decoded) = receiver.recv() {
                    // Sending fails if the worker has ended.
                    let _ = return_sender.send(take(decoded));
                }
            }
        });
        missing
    }

    /// Returns what the decoding of a chunk needs from the rest of the recording.
    pub(crate) fn chunk_context(&self, trace: &Splice<KeptFile>) -> ChunkContext {
        let mut start = Vec::new();
        let header = match trace.read_up_to(0, 20, &mut start) {
            Ok(()) => mtrc::Header::read(&start).unwrap_or_default(),
            Err(_) => mtrc::Header::default(),
        };
        let sites = self.tape.stacks.len() as u32;
        let ProcessRecord { ticks_per_second, free_sites, .. } = self.tape.process;
        ChunkContext { header, ticks_per_second, free_sites, sites, reports_previous: false }
    }
}

/// Returns whether a trace range may have events of a span.
fn overlaps(range: &TraceRange, span: Span) -> bool {
    match range {
        TraceRange::Committed { before, chunk, .. } => {
            let end = before.saturating_add(chunk.events);
            end >= span.first
                && *before < span.end
                && chunk.last_tick >= span.first_tick
                && chunk.first_tick < span.end_tick
        }
        TraceRange::Salvage { before, tick, .. } => {
            *before < span.end && *tick < span.end_tick && span.first_tick <= *tick
        }
    }
}

//! Finds allocations by rank with the index of chunks. Only one chunk is decoded.

use super::chunk::Decoder;
use super::tape::TraceRange;
use super::{Events, Process};
use crate::event::{Kind, Position};

/// Returns the first index and the number of allocations of a chunk.
const fn committed(range: &TraceRange) -> Option<(u64, u64)> {
    match range {
        TraceRange::Committed { chunk, .. } => Some((chunk.first_index, chunk.allocations)),
        TraceRange::Salvage { .. } => None,
    }
}

impl Process {
    /// Returns the position of the allocation at a percentage of all allocations. Returns `None` if
    /// there is no tape or no allocation.
    pub(crate) fn allocation_at(&self, per_cent: u64) -> Option<Position> {
        if let Events::Joined(joined) = &self.events {
            return joined.allocation_at(per_cent);
        }
        let last = self.last_allocation()?;
        let wanted = (u128::from(last) * u128::from(per_cent.min(100)) / 100).min(u128::from(last)) as u64;
        self.allocation_by_rank(wanted)
    }

    /// Returns the position of the event with a number. Returns `None` if there is no tape, if the
    /// event is in no readable chunk, or if the process has several segments.
    pub(crate) fn event_at(&self, number: u64) -> Option<Position> {
        let Events::Taped { tape, trace: Some(trace) } = &self.events else { return None };
        let range = self.tape.ranges.iter().find(|range| match range {
            TraceRange::Committed { before, chunk, .. } => {
                (*before..before.saturating_add(chunk.events)).contains(&number)
            }
            TraceRange::Salvage { .. } => false,
        })?;
        let decoded = Decoder::default().decode(tape, trace, &self.chunk_context(trace), range, Vec::new());
        decoded.events.iter().find(|event| event.number >= number).map(|event| event.position())
    }

    /// Returns the tick after the events before one with a number: what came later is not of their time. For a
    /// chunk that cannot be read it is the chunk's end; without times, for several segments, and after the
    /// last event there is none.
    pub(super) fn tick_after(&self, number: u64) -> u64 {
        if number == 0 || number >= self.tape.events || !self.has_times() {
            return u64::MAX;
        }
        let mut last = None;
        for range in &self.tape.ranges {
            match range {
                TraceRange::Committed { before, chunk, .. } if before.saturating_add(chunk.events) <= number => {
                    last = last.max(Some(chunk.last_tick));
                }
                TraceRange::Committed { before, chunk, .. } if *before < number => {
                    last = last.max(Some(self.last_tick_before(range, number).unwrap_or(chunk.last_tick)));
                }
                // Its ticks are known when it is read.
                TraceRange::Salvage { before, .. } if *before < number => return u64::MAX,
                TraceRange::Committed { .. } | TraceRange::Salvage { .. } => {}
            }
        }
        last.map_or(u64::MAX, |tick| tick.saturating_add(1))
    }

    /// Returns the last tick of the events of a range before one with a number.
    fn last_tick_before(&self, range: &TraceRange, number: u64) -> Option<u64> {
        let Events::Taped { tape, trace: Some(trace) } = &self.events else { return None };
        let decoded = Decoder::default().decode(tape, trace, &self.chunk_context(trace), range, Vec::new());
        decoded.events.iter().filter(|event| event.number < number).map(|event| event.tick).max()
    }

    /// Returns the index of the last allocation, which is also their number.
    pub(super) fn last_allocation(&self) -> Option<u64> {
        let found = self.tape.ranges.iter().rev().find_map(|range| committed(range).filter(|chunk| chunk.1 > 0));
        found.map(|(first, count)| first.saturating_add(count - 1))
    }

    /// Returns the position of the allocation with an index, or of the next one.
    pub(super) fn allocation_by_rank(&self, wanted: u64) -> Option<Position> {
        let Events::Taped { tape, trace: Some(trace) } = &self.events else { return None };
        let range = self.tape.ranges.iter().find(|range| {
            committed(range).is_some_and(|(first, count)| wanted < first.saturating_add(count) && count > 0)
        })?;
        let decoded = Decoder::default().decode(tape, trace, &self.chunk_context(trace), range, Vec::new());
        let mut allocations = decoded.events.iter().filter(|event| event.kind == Kind::Alloc);
        let found = allocations.clone().find(|event| event.index >= wanted).or_else(|| allocations.next_back());
        found.map(|event| event.position())
    }
}

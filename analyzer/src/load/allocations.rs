//! Finds allocations by rank with the index of chunks. Only one chunk is decoded.

use super::chunk::Decoder;
use super::tape::TraceRange;
use super::{Events, Process};
use crate::event::{Kind, Position};

impl Process {
    /// Returns the position of the allocation at a percentage of all allocations. Returns `None` if
    /// there is no tape or no allocation.
    pub fn allocation_at(&self, per_cent: u64) -> Option<Position> {
        let Events::Taped { tape, trace: Some(trace) } = &self.events else { return None };
        let committed = |range: &&TraceRange| match range {
            TraceRange::Committed { chunk, .. } => Some((chunk.first_index, chunk.allocations)),
            TraceRange::Salvage { .. } => None,
        };
        let (first, count) = self.tape.ranges.iter().rev().find_map(|range| committed(&range).filter(|c| c.1 > 0))?;
        let last = first.saturating_add(count - 1);
        let wanted = (u128::from(last) * u128::from(per_cent.min(100)) / 100).min(u128::from(last)) as u64;
        let range = self.tape.ranges.iter().find(|range| {
            committed(range).is_some_and(|(first, count)| wanted < first.saturating_add(count) && count > 0)
        })?;
        let decoded = Decoder::default().decode(tape, trace, &self.chunk_context(trace), range, Vec::new());
        let mut allocations = decoded.events.iter().filter(|event| event.kind == Kind::Alloc);
        let found = allocations.clone().find(|event| event.index >= wanted).or_else(|| allocations.next_back());
        found.map(|event| event.position())
    }
}

//! Where births lie in a run, from the index of chunks and one chunk more.

use super::chunk::Decoder;
use super::tape::TraceRange;
use super::{Events, Image};
use crate::event::{Kind, Position};

impl Image {
    /// Returns the time of the allocation at a percentage of all allocations; none without
    /// a tape or allocations.
    pub fn allocation_at(&self, per_cent: u64) -> Option<Position> {
        let Events::Taped { tape, trace: Some(trace) } = &self.events else { return None };
        let committed = |place: &&TraceRange| match place {
            TraceRange::Committed { chunk, .. } => Some((chunk.first_index, chunk.allocations)),
            TraceRange::Salvage { .. } => None,
        };
        let (first, count) = self.tape.ranges.iter().rev().find_map(|place| committed(&place).filter(|c| c.1 > 0))?;
        let last = first.saturating_add(count - 1);
        let wanted = (u128::from(last) * u128::from(per_cent.min(100)) / 100).min(u128::from(last)) as u64;
        let place = self.tape.ranges.iter().find(|place| {
            committed(place).is_some_and(|(first, count)| wanted < first.saturating_add(count) && count > 0)
        })?;
        let decoded = Decoder::default().decode(tape, trace, &self.chunk_context(trace), place, Vec::new());
        let mut births = decoded.events.iter().filter(|event| event.kind == Kind::Alloc);
        let found = births.clone().find(|event| event.index >= wanted).or_else(|| births.next_back());
        found.map(|event| event.position())
    }
}

//! The snapshots of the pages of a process.

use super::tape::PageSnapshot;
use super::{Events, Process};
use heaptape_formats::recording::TAPE;
use heaptape_formats::regular;
use heaptape_formats::tape::{Division, Record, Residency, Source, Step, Stream};

/// Reads the record at an offset of a tape.
fn read<S: Source + ?Sized>(tape: &S, offset: u64) -> Option<Residency> {
    match Stream::at(tape, offset).step() {
        Ok(Step::Record(_, Record::Residency(record))) => Some(record),
        _ => None,
    }
}

impl Process {
    /// Returns whether all blocks of the process are known one by one.
    pub fn knows_blocks(&self) -> bool {
        self.has_events() && !self.tape.is_sampled()
    }

    /// Returns the memory by use at a snapshot, if the recorder computed it.
    pub fn division_at(&self, tick: u64) -> Option<&Division> {
        let mut snapshots = self.tape.snapshots.iter().rev();
        snapshots.find(|snapshot| snapshot.sums.tick == tick)?.division.as_deref()
    }

    /// Reads a snapshot of this process with its mappings and runs of pages; `None` if the file
    /// does not have it any more.
    pub fn page_snapshot(&self, snapshot: &PageSnapshot) -> Option<Residency> {
        match &self.events {
            Events::Taped { tape, .. } => read(tape, snapshot.offset),
            Events::Joined(joined) => joined.segments.get(snapshot.segment)?.process.page_snapshot(snapshot),
            Events::Sums => read(&regular::open(&self.path.join(TAPE)).ok()?, snapshot.offset),
            _ => None,
        }
    }
}

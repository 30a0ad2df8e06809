//! Which block holds which, from the file beside the tape.

use super::{Events, Process};
use crate::model::references::{Graph, GraphBuilder, MOST_BLOCKS};
use heaptape_formats::recording::{Exit, REFERENCES};
use heaptape_formats::tape::{
    RESIDENCY_EXIT, ROOT_REGISTERS, Record, References, ReferencesEnd, RootRegion, Step, Stream,
};
use heaptape_formats::{Ending, regular};
use std::io::ErrorKind;
use std::path::Path;

/// The references of a process at one point in time.
#[derive(Debug, Default)]
pub struct ReferenceSnapshot {
    pub head: References,
    pub graph: Graph,
    /// What was found; `None` if the file was cut.
    pub end: Option<ReferencesEnd>,
    /// What is missing from the file, as the end of a sentence; empty if nothing is.
    pub damage: String,
}

impl ReferenceSnapshot {
    /// Returns whether they are those of the end of the process, and not of a time at which it ran on.
    pub const fn is_of_end(&self) -> bool {
        self.head.cause == RESIDENCY_EXIT
    }

    /// Returns whether they show who holds what is live when the recording of a process ends: they are
    /// those of its end, or it ran on, and they are from the last tenth of the recording.
    pub fn shows_end_of(&self, process: &Process) -> bool {
        let last = process.clock.nanos(process.last_event_tick().unwrap_or_default());
        let ran_on = process.about.exit == Some(Exit::Running);
        self.is_of_end() || (ran_on && process.clock.nanos(self.head.tick) >= last - last / 10)
    }

    /// Returns why blocks cannot be called lost, or `None` if all references are there.
    pub fn lacks(&self) -> Option<String> {
        let lacks = self.end.as_ref().map(|end| end.lacks.lossy().into_owned()).unwrap_or_default();
        let both: Vec<&str> = [&*lacks, &*self.damage].into_iter().filter(|text| !text.is_empty()).collect();
        (!both.is_empty()).then(|| both.join("; "))
    }

    /// Returns the number of registers of waiting threads that could not be read. Those of such a
    /// thread that it has to find unchanged after its system call are rbx, rbp and r12 to r15.
    pub(crate) fn unseen_registers(&self) -> u64 {
        const ARGUMENTS: u64 = 6 * 8;
        const KEPT: u64 = 6;
        let is_it = |region: &&RootRegion| region.kind == ROOT_REGISTERS && region.length == ARGUMENTS;
        self.head.regions.iter().filter(is_it).count() as u64 * KEPT
    }
}

impl Process {
    /// Reads which block holds which at the end of the process, or at the last time at which somebody
    /// asked. Returns `None` if that was not recorded.
    ///
    /// # Errors
    /// The file cannot be read, or is no tape.
    pub fn references(&self) -> Result<Option<ReferenceSnapshot>, String> {
        let Events::Joined(joined) = &self.events else { return self.own_references() };
        for segment in joined.segments.iter().rev() {
            if let Some(mut snapshot) = segment.process.own_references()? {
                snapshot.graph.blocks.renumber_sites(|site| segment.site(site));
                return Ok(Some(snapshot));
            }
        }
        Ok(None)
    }

    /// Reads them from the folder of the process.
    fn own_references(&self) -> Result<Option<ReferenceSnapshot>, String> {
        let path = self.path.join(REFERENCES);
        read(&path).map_err(|error| format!("{}: {error}", path.display()))
    }
}

/// What was read so far.
#[derive(Default)]
pub(crate) struct Reading {
    head: Option<References>,
    graph: GraphBuilder,
    end: Option<ReferencesEnd>,
    damage: Option<String>,
}

impl Reading {
    fn damaged(&mut self, why: impl ToString) {
        self.damage.get_or_insert_with(|| why.to_string());
    }

    pub(crate) fn add(&mut self, record: Record) {
        let result = match record {
            Record::References(head) => {
                self.head.get_or_insert(head);
                Ok(())
            }
            Record::ReferenceBlocks(record) => {
                let blocks = self.graph.blocks();
                let count = blocks.len();
                let last = count.checked_sub(1).and_then(|last| blocks.address(last));
                let result = record.each(|block| {
                    if blocks.len() < MOST_BLOCKS {
                        blocks.push(&block);
                    }
                });
                // The numbers of edges would be those of other blocks.
                let is_next = record.first == count as u64;
                let is_later = last.is_none_or(|last| blocks.address(count).is_none_or(|next| next > last));
                if result.is_err() || !is_next || !is_later {
                    blocks.truncate(count);
                    self.damaged(format!("blocks from number {count} on are missing"));
                }
                result
            }
            Record::ReferenceEdges(record) => record.each(|edge| self.graph.edge(edge)),
            Record::ReferenceRoots(record) => record.each(|edge| self.graph.root(edge)),
            Record::ReferenceOffsets(record) => record.each(|edge| self.graph.offset(edge)),
            Record::ReferencesEnd(end) => {
                self.end = Some(end);
                Ok(())
            }
            _ => Ok(()),
        };
        if let Err(error) = result {
            self.damaged(error);
        }
    }

    pub(crate) fn finish(mut self) -> Result<ReferenceSnapshot, String> {
        let Some(head) = self.head.take() else {
            return Err(self.damage.unwrap_or_else(|| "it has no first record".into()));
        };
        let found = self.graph.counts();
        match &self.end {
            None => self.damaged("the file was cut"),
            Some(end) if (end.blocks, end.edges, end.root_edges) != found => {
                self.damaged("some references are missing from the file");
            }
            Some(_) => {}
        }
        let (graph, bad) = self.graph.finish(head.regions.clone());
        if bad > 0 {
            self.damage.get_or_insert_with(|| format!("{bad} references of the file lead nowhere"));
        }
        Ok(ReferenceSnapshot { head, graph, end: self.end, damage: self.damage.unwrap_or_default() })
    }
}

fn read(path: &Path) -> Result<Option<ReferenceSnapshot>, String> {
    let file = match regular::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let mut stream = Stream::new(&file).map_err(|error| error.to_string())?;
    let mut reading = Reading::default();
    loop {
        match stream.step() {
            Ok(Step::Record(_, record)) => reading.add(record),
            Ok(Step::Unknown(..)) => {}
            Ok(Step::Damage(_, _, error)) => reading.damaged(error),
            Ok(Step::End(Ending::Complete)) => break,
            Ok(Step::End(Ending::Truncated { offset, field })) => {
                reading.damaged(format!("cut at offset {offset} ({field})"));
                break;
            }
            Err(error) => {
                reading.damaged(error);
                break;
            }
        }
    }
    reading.finish().map(Some)
}

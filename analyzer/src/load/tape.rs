//! Reads a tape from beginning to end. Of the chunks only the ranges in the trace are kept, about
//! 100 bytes for each chunk, so memory does not grow with the number of events.

use super::code_names;
use super::mappings::TapeMappings;
use crate::missing::Missing;
use crate::stacks::{Mapped, Module, Site, Stacks};
use heaptape_formats::tape::field::{Added, Text};
use heaptape_formats::tape::{
    Account, COLUMN_PREVIOUS, Chunk, CodeRange, Codec, Division, END_RUNNING, End, History, Inherited, Loss, Mark,
    Note, Process, Record, Residency, Segment, SiteErrors, Source, Step, Stream, Summary, Thread,
};
use heaptape_formats::{Ending, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A range of the trace file: a chunk, or bytes without a commit record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceRange {
    /// A chunk with a commit record.
    Committed {
        /// Offset of the record in the tape.
        offset: u64,
        /// Number of events in the chunks before it.
        before: u64,
        /// The record, without its columns.
        chunk: Chunk,
        /// Whether the chunk has the column of previous blocks.
        has_previous: bool,
    },
    /// Bytes that do not belong to a readable chunk.
    Salvage {
        /// Offset of the bytes in the trace file.
        offset: u64,
        /// Number of events in the chunks before it.
        before: u64,
        /// Number of bytes, or `u64::MAX` for all up to the end of the file.
        length: u64,
        codec: Codec,
        /// Tick of the last event before them.
        tick: u64,
    },
}

#[derive(Debug, Default)]
pub struct Tape {
    pub process: Process,
    /// The record of the segment; `None` if the recorder did not write it.
    pub segment: Option<Segment>,
    /// The call sites and modules.
    pub stacks: Stacks,
    /// The latest record of each thread, by number.
    pub threads: BTreeMap<u32, Thread>,
    /// The ranges of the trace file in order.
    pub ranges: Vec<TraceRange>,
    /// The latest accounts of all threads.
    pub accounts: Vec<Account>,
    /// Whether the accounts include every chunk.
    pub accounts_are_final: bool,
    /// All gaps of dropped events.
    pub losses: Vec<Loss>,
    /// The latest summary, if any.
    pub summary: Option<Summary>,
    pub summaries: Vec<SummaryPosition>,
    /// Whether the latest summary includes every chunk.
    pub summary_is_last: bool,
    /// Snapshots of sites that grew, if the recording has no events.
    pub history: History,
    /// Standard errors of `history`, if it is of a sampled profile.
    pub history_errors: Vec<SiteErrors>,
    /// The end record, if there is one.
    pub end: Option<End>,
    pub notes: Vec<Note>,
    /// The marks of the program, in their order.
    pub marks: Vec<Mark>,
    /// The snapshots of the pages in memory, in their order.
    pub snapshots: Vec<PageSnapshot>,
    /// The calls that map and unmap memory.
    pub mappings: TapeMappings,
    /// The record of inherited blocks.
    pub inherited: Option<Inherited>,
    /// Names of generated code.
    pub code: Vec<CodeRange>,
    /// The damage that was found.
    pub missing: Vec<Missing>,
    /// Tick of the last record that has one.
    pub last_tick: u64,
    /// Time at which the clocks were read last.
    pub(super) clock_tick: u64,
    /// Number of events in all chunks.
    pub events: u64,
}

/// A snapshot of the pages of a process. The pages themselves are in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageSnapshot {
    /// Offset of the record in the tape.
    pub offset: u64,
    /// Index of the segment in a joined process.
    pub segment: usize,
    /// The record without mappings and runs.
    pub sums: Residency,
    /// The memory by use, if the recorder computed it.
    pub division: Option<Arc<Division>>,
}

impl PageSnapshot {
    /// Renumbers the call sites of the division as a joined process has them.
    pub(super) fn renumber_sites(&mut self, number: impl Fn(u32) -> u32) {
        if let Some(division) = &mut self.division {
            Arc::make_mut(division).sites.iter_mut().for_each(|row| row.site = number(row.site));
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SummaryPosition {
    /// Offset of the record in the tape.
    pub offset: u64,
    /// Number of trace ranges before it.
    pub ranges_before: usize,
}

/// Reads a tape from beginning to end.
///
/// # Errors
/// Returns an error if the file cannot be read or has no tape header. Damage after the header is
/// listed in [`Tape::missing`].
pub fn read<S: Source + ?Sized>(source: &S) -> Result<Tape> {
    let mut stream = Stream::new(source)?;
    let mut tape = Tape::default();
    let mut mapped = Mapped::default();
    // A site has at least three bytes in the file, so a corrupt file cannot make the table larger.
    let limit = usize::try_from(source.length().unwrap_or(0) / 3).unwrap_or(usize::MAX);
    loop {
        match stream.step()? {
            Step::Record(offset, record) => tape.add(offset, record, &mut mapped, limit),
            Step::Unknown(..) => {}
            Step::Damage(from, to, error) => {
                tape.missing.push(Missing::DamagedTape { from, to, why: error.to_string() })
            }
            Step::End(ending) => {
                if let Ending::Truncated { offset, field } = ending {
                    tape.missing.push(Missing::Truncated {
                        name: "events.tape".into(),
                        at: format!("offset {offset} ({field})"),
                    });
                }
                break;
            }
        }
    }
    // What is left of a process that has ended may be written much later.
    if tape.end.as_ref().is_none_or(|end| end.reason == END_RUNNING) {
        tape.last_tick = tape.last_tick.max(tape.clock_tick);
    }
    if tape.end.is_none() {
        tape.missing.push(Missing::NoEnd);
    }
    tape.missing.extend(tape.gaps());
    tape.stacks.settle();
    code_names::assign(&mut tape.stacks, std::mem::take(&mut tape.code));
    Ok(tape)
}

impl Tape {
    fn add(&mut self, offset: u64, record: Record, mapped: &mut Mapped, limit: usize) {
        match record {
            Record::Process(process) => {
                self.last_tick = self.last_tick.max(process.start_tick);
                self.process = process;
            }
            Record::Module(module) => {
                mapped.add(&module, self.stacks.modules.len());
                let heaptape_formats::tape::Module {
                    start,
                    end,
                    bias,
                    path: Text(path),
                    build_id: Text(build_id),
                    file: Added(file),
                    ..
                } = module;
                self.stacks.modules.push(Module { start, end, bias, path, build_id, file, ..Module::default() });
            }
            Record::ModuleGone(gone) => mapped.remove(gone.number),
            Record::Sites(sites) => {
                for (number, site) in (u64::from(sites.first)..).zip(&sites.sites) {
                    let module = mapped.find(site.address);
                    let site = Site { parent: site.parent, module, named: 0, flags: site.flags, address: site.address };
                    self.stacks.set(u32::try_from(number).unwrap_or(0), site, limit);
                }
            }
            Record::Thread(thread) => drop(self.threads.insert(thread.number, thread)),
            Record::Chunk(chunk) => self.chunk(offset, chunk),
            Record::Accounts(record) => (self.accounts, self.accounts_are_final) = (record.accounts, true),
            Record::Loss(loss) => self.losses.push(loss),
            Record::Clock(clock) => self.clock_tick = self.clock_tick.max(clock.tick),
            Record::Summary(summary) => {
                self.summary = Some(summary);
                self.summaries.push(SummaryPosition { offset, ranges_before: self.ranges.len() });
                self.summary_is_last = true;
            }
            Record::End(end) => {
                self.last_tick = self.last_tick.max(end.tick);
                self.end = Some(end);
            }
            Record::Note(note) => self.notes.push(note),
            Record::Mark(mark) => self.marks.push(mark),
            Record::Residency(mut sums) => {
                sums.stored.0.clear();
                (sums.mappings, sums.names, sums.plain_length) = (Vec::new(), Vec::new(), 0);
                sums.stored.0.shrink_to_fit();
                self.snapshots.push(PageSnapshot { offset, segment: 0, sums, division: None });
            }
            Record::Division(division) => {
                if let Some(snapshot) = self.snapshots.iter_mut().rfind(|one| one.sums.tick == division.tick) {
                    snapshot.division = Some(Arc::new(division));
                }
            }
            Record::Mappings(record) => self.mappings.add(offset, &record),
            Record::Segment(segment) => self.segment = Some(segment),
            Record::Inherited(inherited) => self.inherited = Some(inherited),
            Record::History(history) => self.history = history,
            Record::HistoryErrors(errors) => self.history_errors = errors.sites,
            Record::Code(code) => self.code.extend(code.ranges),
            // They have files of their own.
            Record::Symbols(_)
            | Record::References(_)
            | Record::ReferenceBlocks(_)
            | Record::ReferenceEdges(_)
            | Record::ReferenceRoots(_)
            | Record::ReferenceOffsets(_)
            | Record::ReferencesEnd(_) => {}
        }
    }

    /// Adds the range of a chunk, and one for the bytes between it and the previous chunk.
    fn chunk(&mut self, offset: u64, mut chunk: Chunk) {
        let has_previous = chunk.columns.iter().any(|column| column.kind == COLUMN_PREVIOUS);
        chunk.columns = Vec::new();
        (self.summary_is_last, self.accounts_are_final) = (false, false);
        let expected = self.stored_end();
        let codec = Codec::from_number(chunk.codec).unwrap_or_default();
        if chunk.stored_offset > expected {
            // The commit record of the bytes between is damaged.
            let length = chunk.stored_offset - expected;
            let tick = self.last_tick;
            self.ranges.push(TraceRange::Salvage { offset: expected, before: self.events, length, codec, tick });
        }
        self.last_tick = self.last_tick.max(chunk.last_tick);
        let before = self.events;
        self.events = self.events.saturating_add(chunk.events);
        self.ranges.push(TraceRange::Committed { offset, before, chunk, has_previous });
    }

    /// Returns the number of events that were sampled out, according to the accounts.
    pub fn sampled_out(&self) -> u64 {
        self.accounts.iter().fold(0, |sum, account| sum.saturating_add(account.sampled_out))
    }

    /// Returns whether the recording is sampled.
    pub fn is_sampled(&self) -> bool {
        self.process.sample_bytes != 0 || self.sampled_out() > 0
    }

    /// Returns the offset in the trace file after the last chunk.
    pub fn stored_end(&self) -> u64 {
        let end = |range: &TraceRange| match range {
            TraceRange::Committed { chunk, .. } => Some(chunk.stored_offset.saturating_add(chunk.stored_length)),
            TraceRange::Salvage { .. } => None,
        };
        self.ranges.iter().rev().find_map(end).unwrap_or(0)
    }

    /// Returns the codec of the chunks, or `None` if there is no chunk.
    pub fn codec(&self) -> Option<Codec> {
        self.ranges.iter().find_map(|range| match range {
            TraceRange::Committed { chunk, .. } => Codec::from_number(chunk.codec),
            TraceRange::Salvage { .. } => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use heaptape_formats::tape::{Clock, END_EXITED, Writer};

    #[test]
    fn what_is_written_after_the_end_is_no_time_of_the_run() {
        let last_tick = |reason| {
            let (mut writer, mut bytes) = (Writer::default(), Vec::new());
            Writer::file_header(&mut bytes);
            let clock = Record::Clock(Clock { tick: 900, ..Clock::default() });
            let end = Record::End(End { tick: 500, reason, ..End::default() });
            for record in [Record::Process(Process { start_tick: 10, ..Process::default() }), clock, end] {
                writer.record(&record, &mut bytes);
            }
            read(&bytes[..]).map(|tape| tape.last_tick).ok()
        };
        assert_eq!((last_tick(END_EXITED), last_tick(END_RUNNING)), (Some(500), Some(900)));
    }
}

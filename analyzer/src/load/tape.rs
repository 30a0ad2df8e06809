//! A tape read once from front to end: everything but the columns of its chunks, of which only the
//! places are kept (about 100 bytes a chunk), so that memory does not grow with the events.

use super::code_names;
use crate::missing::Missing;
use crate::stacks::{Mapped, Module, Site, Stacks};
use heaptape_formats::tape::field::Text;
use heaptape_formats::tape::{
    Account, COLUMN_PREVIOUS, Chunk, CodeRange, Codec, End, History, Inherited, Loss, Note, Process, Record, Source,
    Step, Stream, Summary, Thread,
};
use heaptape_formats::{Ending, Result};
use std::collections::BTreeMap;

/// Where the events of a chunk lie, or bytes of the trace that no commit names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceRange {
    /// A chunk: offset of its record in the tape, events before it, and its record without columns.
    Committed {
        /// Offset of the record in the tape.
        offset: u64,
        /// Events in the chunks before it.
        before: u64,
        /// The record, without its columns.
        chunk: Chunk,
        /// Whether it says what its events gave back.
        has_previous: bool,
    },
    /// Bytes of the trace that belong to no chunk that can be read.
    Salvage {
        /// Offset in the trace file.
        offset: u64,
        /// Events in the chunks before it.
        before: u64,
        /// How many bytes; `u64::MAX`: to the end of the file.
        length: u64,
        /// How they are stored.
        codec: Codec,
        /// Tick of the last event before them.
        tick: u64,
    },
}

/// What a tape says.
#[derive(Debug, Default)]
pub struct Tape {
    /// Which process image.
    pub process: Process,
    /// Call sites and modules.
    pub stacks: Stacks,
    /// Threads, the latest record of each.
    pub threads: BTreeMap<u32, Thread>,
    /// The chunks in order, with salvage between and behind them.
    pub ranges: Vec<TraceRange>,
    /// The latest ledger.
    pub accounts: Vec<Account>,
    /// Whether it speaks of every chunk.
    pub accounts_are_final: bool,
    /// Every gap.
    pub losses: Vec<Loss>,
    /// The latest totals and sums.
    pub summary: Option<Summary>,
    /// Where each of them stands in the tape, and how many places come before it.
    pub summaries: Vec<(u64, usize)>,
    /// Whether they count every chunk.
    pub summary_is_last: bool,
    /// How sites that grew stood over the run, where there are no events.
    pub history: History,
    /// How it ended.
    pub end: Option<End>,
    /// What the recorder had to say.
    pub notes: Vec<Note>,
    /// Blocks inherited by fork.
    pub inherited: Option<Inherited>,
    /// Names of code that no file describes.
    pub code: Vec<CodeRange>,
    /// What is damaged.
    pub missing: Vec<Missing>,
    /// Tick of the last thing known to have happened.
    pub last_tick: u64,
    /// Events in all chunks.
    pub events: u64,
}

/// Reads a tape.
///
/// # Errors
/// When the file cannot be read, or does not start as a tape does. Damage behind the start is part
/// of the answer.
pub fn read<S: Source + ?Sized>(source: &S) -> Result<Tape> {
    let mut stream = Stream::new(source)?;
    let mut tape = Tape::default();
    let mut mapped = Mapped::default();
    // A site takes three bytes at least: no file can make the table larger than this.
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
                    start, end, bias, path: Text(path), build_id: Text(build_id), ..
                } = module;
                self.stacks.modules.push(Module { start, end, bias, path, build_id, ..Module::default() });
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
            Record::Clock(clock) => self.last_tick = self.last_tick.max(clock.tick),
            Record::Summary(summary) => {
                self.summary = Some(summary);
                self.summaries.push((offset, self.ranges.len()));
                self.summary_is_last = true;
            }
            Record::End(end) => {
                self.last_tick = self.last_tick.max(end.tick);
                self.end = Some(end);
            }
            Record::Note(note) => self.notes.push(note),
            Record::Inherited(inherited) => self.inherited = Some(inherited),
            Record::History(history) => self.history = history,
            Record::Code(code) => self.code.extend(code.ranges),
            // They stand in a file of their own.
            Record::Symbols(_) => {}
        }
    }

    fn chunk(&mut self, offset: u64, mut chunk: Chunk) {
        let has_previous = chunk.columns.iter().any(|column| column.kind == COLUMN_PREVIOUS);
        chunk.columns = Vec::new();
        (self.summary_is_last, self.accounts_are_final) = (false, false);
        let expected = self.stored_end();
        let codec = Codec::from_number(chunk.codec).unwrap_or_default();
        if chunk.stored_offset > expected {
            // The commit of what lies between was torn.
            let length = chunk.stored_offset - expected;
            let tick = self.last_tick;
            self.ranges.push(TraceRange::Salvage { offset: expected, before: self.events, length, codec, tick });
        }
        self.last_tick = self.last_tick.max(chunk.last_tick);
        let before = self.events;
        self.events = self.events.saturating_add(chunk.events);
        self.ranges.push(TraceRange::Committed { offset, before, chunk, has_previous });
    }

    /// Events that sampling passed over, as far as the ledger knows.
    pub fn sampled_out(&self) -> u64 {
        self.accounts.iter().fold(0, |sum, account| sum.saturating_add(account.sampled_out))
    }

    /// Whether blocks stand for more than themselves.
    pub fn is_sampled(&self) -> bool {
        self.process.sample_bytes != 0 || self.sampled_out() > 0
    }

    /// First byte of the trace file behind the last chunk.
    pub fn stored_end(&self) -> u64 {
        let end = |place: &TraceRange| match place {
            TraceRange::Committed { chunk, .. } => Some(chunk.stored_offset.saturating_add(chunk.stored_length)),
            TraceRange::Salvage { .. } => None,
        };
        self.ranges.iter().rev().find_map(end).unwrap_or(0)
    }

    /// The codec of the chunks.
    pub fn codec(&self) -> Option<Codec> {
        self.ranges.iter().find_map(|place| match place {
            TraceRange::Committed { chunk, .. } => Codec::from_number(chunk.codec),
            TraceRange::Salvage { .. } => None,
        })
    }
}

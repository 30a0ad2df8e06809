//! mptrace's view of a trace: a table of events, statistics, HATF text, and a C program that allocates alike.
//!
//! [`View`] is fed one record at a time and keeps only the live blocks, and which indexes ever were. (For the table of events
//! it also keeps when the last indexes that were freed had first been allocated: mptrace counts lifetimes from there.) Every
//! line is as
//! mptrace 1.4 prints it, white space included; where that misreads numbers or lets counts wrap, this one prints the truth.
//! `docs/mpatrol.md` lists all differences.

mod hatf;
mod known;
mod simulation;
mod table;

pub use hatf::Hatf;
pub use simulation::Simulation;

use heaptape_formats::mtrc::{Place, Record};
use heaptape_formats::{Error, Kind};
use known::Known;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::io::{self, Write};

/// What mptrace says of a file that cannot be read.
pub fn read_error_message(error: &Error) -> &'static str {
    match error.kind {
        Kind::Version(_) => "Tracing file version too new",
        Kind::Cut => "Error reading file",
        _ => "Invalid file format",
    }
}

/// What to print.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The table of events.
    pub verbose: bool,
    /// Thread, function, file and line under each event of the table.
    pub source: bool,
    /// Bytes of an address: 4 makes the table's column narrower. Anything else counts as 8.
    pub word: u8,
}

/// A block that is alive.
#[derive(Clone, Copy, Debug)]
struct Live {
    address: u64,
    size: u64,
    /// The event that first allocated its index.
    born: u64,
    /// Its slot in the simulation.
    slot: u64,
}

/// Blocks and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    blocks: u64,
    bytes: u128,
}

impl Count {
    fn add(&mut self, size: u64) {
        self.blocks += 1;
        self.bytes += u128::from(size);
    }
}

/// The statistics.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    allocated: Count,
    freed: Count,
    /// The most blocks, and, at another time perhaps, the most bytes.
    peak: Count,
    reserved: Count,
    internal: Count,
    smallest: u64,
    largest: u64,
}

impl Totals {
    fn live(&self) -> Count {
        Count {
            blocks: self.allocated.blocks.saturating_sub(self.freed.blocks),
            bytes: self.allocated.bytes.saturating_sub(self.freed.bytes),
        }
    }

    fn taken(&mut self, size: u64) {
        self.allocated.add(size);
        let live = self.live();
        self.peak.blocks = self.peak.blocks.max(live.blocks);
        self.peak.bytes = self.peak.bytes.max(live.bytes);
        // 0 stands for "none yet" in mptrace, so that a block of size 0 starts the search for the smallest again.
        if self.smallest == 0 || size < self.smallest {
            self.smallest = size;
        }
        self.largest = self.largest.max(size);
    }
}

/// The event that first allocated an index, for as many indexes as were freed last. Only old libraries use an index again,
/// and soon, so that few need be kept: 10 MB.
#[derive(Debug, Default)]
struct Births {
    events: HashMap<u64, u64>,
    freed: VecDeque<u64>,
}

impl Births {
    const KEPT: usize = 1 << 18;

    fn keep(&mut self, index: u64, born: u64) {
        self.events.insert(index, born);
        self.freed.push_back(index);
        if self.freed.len() > Births::KEPT
            && let Some(oldest) = self.freed.pop_front()
        {
            self.events.remove(&oldest);
        }
    }
}

/// Prints what it is fed.
pub struct View<'a> {
    options: Options,
    out: &'a mut dyn Write,
    complaints: &'a mut dyn Write,
    hatf: Option<Hatf<'a>>,
    simulation: Option<Simulation<'a>>,
    event: u64,
    live: HashMap<u64, Live>,
    known: Known,
    births: Births,
    totals: Totals,
}

impl<'a> View<'a> {
    /// Starts, with the head of the table if there is to be one. Contradictions in the trace are told to `complaints`.
    ///
    /// # Errors
    /// When `out` fails.
    pub fn new(options: Options, out: &'a mut dyn Write, complaints: &'a mut dyn Write) -> io::Result<Self> {
        if options.verbose {
            table::head(options.word, out)?;
        }
        let (live, known, births, totals) = Default::default();
        Ok(View { options, out, complaints, hatf: None, simulation: None, event: 0, live, known, births, totals })
    }

    /// Also writes HATF text.
    pub fn hatf(&mut self, hatf: Hatf<'a>) {
        self.hatf = Some(hatf);
    }

    /// Also writes a C program.
    pub fn simulation(&mut self, simulation: Simulation<'a>) {
        self.simulation = Some(simulation);
    }

    /// Takes one record.
    ///
    /// # Errors
    /// When an output fails.
    pub fn record(&mut self, record: &Record) -> io::Result<()> {
        match *record {
            Record::Heap { address, size } => {
                self.totals.reserved.add(size);
                self.taken_from_system("reserve", address, size)
            }
            Record::Internal { address, size } => {
                self.totals.internal.add(size);
                self.taken_from_system("internal", address, size)
            }
            Record::Alloc { index, address, size, place } => self.alloc(index, address, size, &place),
            Record::Resize { index, address, size, place } => self.resize(index, address, size, &place),
            Record::Free { index, place } => self.free(index, &place),
        }
    }

    fn taken_from_system(&mut self, what: &str, address: u64, size: u64) -> io::Result<()> {
        if self.options.verbose { table::system(self.options.word, what, address, size, self.out) } else { Ok(()) }
    }

    fn alloc(&mut self, index: u64, address: u64, size: u64, place: &Place) -> io::Result<()> {
        self.event += 1;
        let slot = self.simulation.as_mut().map_or(Ok(0), |simulation| simulation.alloc(size))?;
        let mut live = Live { address, size, born: self.births.events.remove(&index).unwrap_or(self.event), slot };
        match self.live.entry(index) {
            Entry::Vacant(entry) => {
                entry.insert(live);
                self.known.insert(index);
            }
            Entry::Occupied(mut entry) => {
                live.born = entry.get().born;
                entry.insert(live);
                let complaint = "has been allocated twice without being freed";
                writeln!(self.complaints, "mptrace: Allocation index `{index}' {complaint}")?;
            }
        }
        self.totals.taken(size);
        self.hatf.as_mut().map_or(Ok(()), |hatf| hatf.alloc(address, size))?;
        self.row("alloc", index, &live, None, place)
    }

    fn resize(&mut self, index: u64, address: u64, size: u64, place: &Place) -> io::Result<()> {
        self.event += 1;
        let Some(live) = self.live.get_mut(&index) else { return self.unmatched(index) };
        let old = std::mem::replace(live, Live { address, size, ..*live });
        let live = *live;
        self.totals.freed.add(old.size);
        self.totals.taken(size);
        self.simulation.as_mut().map_or(Ok(()), |simulation| simulation.resize(live.slot, size))?;
        self.hatf.as_mut().map_or(Ok(()), |hatf| hatf.resize(old.address, address, size))?;
        self.row("realloc", index, &live, None, place)
    }

    fn free(&mut self, index: u64, place: &Place) -> io::Result<()> {
        self.event += 1;
        let Some(live) = self.live.remove(&index) else { return self.unmatched(index) };
        if self.options.verbose {
            self.births.keep(index, live.born);
        }
        self.totals.freed.add(live.size);
        self.simulation.as_mut().map_or(Ok(()), |simulation| simulation.free(live.slot))?;
        self.hatf.as_mut().map_or(Ok(()), |hatf| hatf.free(live.address))?;
        self.row("free", index, &live, Some(self.event - live.born), place)
    }

    fn unmatched(&mut self, index: u64) -> io::Result<()> {
        if self.known.contains(index) {
            writeln!(self.complaints, "mptrace: Allocation index `{index}' has already been freed")
        } else {
            writeln!(self.complaints, "mptrace: Unknown allocation index `{index}'")
        }
    }

    fn row(&mut self, what: &str, index: u64, live: &Live, life: Option<u64>, place: &Place) -> io::Result<()> {
        if !self.options.verbose {
            return Ok(());
        }
        let row = table::Row { event: self.event, what, index, life, address: live.address, size: live.size };
        table::event(self.options.word, &row, self.totals.live(), self.out)?;
        if self.options.source { table::source(place, self.out) } else { Ok(()) }
    }

    /// Prints the statistics and ends the other outputs.
    ///
    /// # Errors
    /// When an output fails.
    pub fn finish(self) -> io::Result<()> {
        if self.options.verbose {
            writeln!(self.out)?;
        }
        table::statistics(&self.totals, self.out)?;
        self.simulation.map_or(Ok(()), Simulation::finish)
    }
}

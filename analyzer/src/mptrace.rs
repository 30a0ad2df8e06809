//! mptrace's view of a trace: a table of events, statistics, HATF text, and a C program that
//! repeats the allocations.
//!
//! [`View`] receives one record at a time. It keeps only the live blocks and the set of all indexes
//! that were allocated. For the table of events it also keeps the first allocation of the indexes
//! that were freed last, because mptrace counts lifetimes from there.
//!
//! The output is byte for byte that of mptrace 1.4, white space included. Where mptrace misreads
//! numbers or lets counts wrap, this view prints the correct number. `docs/mpatrol.md` lists all
//! differences.

mod hatf;
mod index_set;
mod simulation;
mod table;

pub use hatf::Hatf;
pub use simulation::Simulation;

use heaptape_formats::mtrc::{Location, ReadError, Record, Stream};
use heaptape_formats::{Error, Kind};
use index_set::IndexSet;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::io::{self, Read, Write};

/// Returns the message that mptrace prints for a file that cannot be read.
pub fn read_error_message(error: &Error) -> &'static str {
    match error.kind {
        Kind::Version(_) => "Tracing file version too new",
        Kind::Truncated => "Error reading file",
        _ => "Invalid file format",
    }
}

/// Options of the view `mptrace`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Prints the table of events.
    pub verbose: bool,
    /// Prints thread, function, file and line below each event of the table.
    pub source: bool,
    /// Bytes of an address: 4 makes the column of the table narrower. Any other value means 8.
    pub address_bytes: u8,
}

/// A block that is live at the current event.
#[derive(Clone, Copy, Debug)]
struct Live {
    address: u64,
    size: u64,
    /// Number of the event that first allocated the block's index.
    first_event: u64,
    /// The block's slot in the simulation.
    slot: u64,
}

/// A number of blocks and bytes.
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

/// The statistics of a trace.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    allocated: Count,
    freed: Count,
    /// The maximum number of live blocks, and the maximum number of live bytes. The two may be of
    /// different times.
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

    fn add_allocation(&mut self, size: u64) {
        self.allocated.add(size);
        let live = self.live();
        self.peak.blocks = self.peak.blocks.max(live.blocks);
        self.peak.bytes = self.peak.bytes.max(live.bytes);
        // In mptrace 0 means "none yet", so a block of size 0 restarts the search for the smallest.
        if self.smallest == 0 || size < self.smallest {
            self.smallest = size;
        }
        self.largest = self.largest.max(size);
    }
}

/// The event that first allocated an index, for the [`FirstEvents::CAPACITY`] indexes that were
/// freed last (10 MB). Only old libraries reuse an index, and they do so soon after the free.
#[derive(Debug, Default)]
struct FirstEvents {
    events: HashMap<u64, u64>,
    freed: VecDeque<u64>,
}

impl FirstEvents {
    const CAPACITY: usize = 1 << 18;

    fn keep(&mut self, index: u64, event: u64) {
        self.events.insert(index, event);
        self.freed.push_back(index);
        if self.freed.len() > FirstEvents::CAPACITY
            && let Some(oldest) = self.freed.pop_front()
        {
            self.events.remove(&oldest);
        }
    }
}

/// Prints a trace that is passed record by record.
pub struct View<'a> {
    options: Options,
    out: &'a mut dyn Write,
    warnings: &'a mut dyn Write,
    hatf: Option<Hatf<'a>>,
    simulation: Option<Simulation<'a>>,
    event: u64,
    live: HashMap<u64, Live>,
    known: IndexSet,
    first_events: FirstEvents,
    totals: Totals,
}

impl<'a> View<'a> {
    /// Creates a view and prints the header of the table if one is requested. Contradictions in the
    /// trace are reported to `warnings`.
    ///
    /// # Errors
    /// Returns an error if writing to `out` fails.
    pub fn new(options: Options, out: &'a mut dyn Write, warnings: &'a mut dyn Write) -> io::Result<Self> {
        if options.verbose {
            table::header(options.address_bytes, out)?;
        }
        Ok(View {
            options,
            out,
            warnings,
            hatf: None,
            simulation: None,
            event: 0,
            live: HashMap::new(),
            known: IndexSet::default(),
            first_events: FirstEvents::default(),
            totals: Totals::default(),
        })
    }

    /// Sets where HATF text is written.
    pub fn hatf(&mut self, hatf: Hatf<'a>) {
        self.hatf = Some(hatf);
    }

    /// Sets where a C program is written that repeats the events.
    pub fn simulation(&mut self, simulation: Simulation<'a>) {
        self.simulation = Some(simulation);
    }

    /// Takes in the rest of the records of a trace. Returns the error that ended reading early.
    ///
    /// # Errors
    /// Returns an error if writing to an output fails.
    pub fn records(&mut self, stream: &mut Stream<Box<dyn Read>>) -> io::Result<Result<(), ReadError>> {
        loop {
            match stream.next() {
                Ok(Some(record)) => self.record(&record)?,
                Ok(None) => return Ok(Ok(())),
                Err(error) => return Ok(Err(error)),
            }
        }
    }

    /// Processes the next record of the trace.
    ///
    /// # Errors
    /// Returns an error if writing to an output fails.
    pub fn record(&mut self, record: &Record) -> io::Result<()> {
        match *record {
            Record::Heap { address, size } => {
                self.totals.reserved.add(size);
                self.system_memory("reserve", address, size)
            }
            Record::Internal { address, size } => {
                self.totals.internal.add(size);
                self.system_memory("internal", address, size)
            }
            Record::Alloc { index, address, size, location } => self.alloc(index, address, size, &location),
            Record::Resize { index, address, size, location } => self.resize(index, address, size, &location),
            Record::Free { index, location } => self.free(index, &location),
        }
    }

    fn system_memory(&mut self, what: &str, address: u64, size: u64) -> io::Result<()> {
        if self.options.verbose {
            table::system(self.options.address_bytes, what, address, size, self.out)
        } else {
            Ok(())
        }
    }

    fn alloc(&mut self, index: u64, address: u64, size: u64, location: &Location) -> io::Result<()> {
        self.event += 1;
        let slot = self.simulation.as_mut().map_or(Ok(0), |simulation| simulation.alloc(size))?;
        let mut live =
            Live { address, size, first_event: self.first_events.events.remove(&index).unwrap_or(self.event), slot };
        match self.live.entry(index) {
            Entry::Vacant(entry) => {
                entry.insert(live);
                self.known.insert(index);
            }
            Entry::Occupied(mut entry) => {
                live.first_event = entry.get().first_event;
                entry.insert(live);
                let warning = "has been allocated twice without being freed";
                writeln!(self.warnings, "mptrace: Allocation index `{index}' {warning}")?;
            }
        }
        self.totals.add_allocation(size);
        self.hatf.as_mut().map_or(Ok(()), |hatf| hatf.alloc(address, size))?;
        self.row("alloc", index, &live, None, location)
    }

    fn resize(&mut self, index: u64, address: u64, size: u64, location: &Location) -> io::Result<()> {
        self.event += 1;
        let Some(live) = self.live.get_mut(&index) else { return self.unmatched(index) };
        let old = std::mem::replace(live, Live { address, size, ..*live });
        let live = *live;
        self.totals.freed.add(old.size);
        self.totals.add_allocation(size);
        self.simulation.as_mut().map_or(Ok(()), |simulation| simulation.resize(live.slot, size))?;
        self.hatf.as_mut().map_or(Ok(()), |hatf| hatf.resize(old.address, address, size))?;
        self.row("realloc", index, &live, None, location)
    }

    fn free(&mut self, index: u64, location: &Location) -> io::Result<()> {
        self.event += 1;
        let Some(live) = self.live.remove(&index) else { return self.unmatched(index) };
        if self.options.verbose {
            self.first_events.keep(index, live.first_event);
        }
        self.totals.freed.add(live.size);
        self.simulation.as_mut().map_or(Ok(()), |simulation| simulation.free(live.slot))?;
        self.hatf.as_mut().map_or(Ok(()), |hatf| hatf.free(live.address))?;
        self.row("free", index, &live, Some(self.event - live.first_event), location)
    }

    fn unmatched(&mut self, index: u64) -> io::Result<()> {
        if self.known.contains(index) {
            writeln!(self.warnings, "mptrace: Allocation index `{index}' has already been freed")
        } else {
            writeln!(self.warnings, "mptrace: Unknown allocation index `{index}'")
        }
    }

    fn row(&mut self, what: &str, index: u64, live: &Live, life: Option<u64>, location: &Location) -> io::Result<()> {
        if !self.options.verbose {
            return Ok(());
        }
        let row = table::Row { event: self.event, what, index, life, address: live.address, size: live.size };
        table::event(self.options.address_bytes, &row, self.totals.live(), self.out)?;
        if self.options.source { table::source(location, self.out) } else { Ok(()) }
    }

    /// Prints the statistics and completes the other outputs.
    ///
    /// # Errors
    /// Returns an error if writing to an output fails.
    pub fn finish(self) -> io::Result<()> {
        if self.options.verbose {
            writeln!(self.out)?;
        }
        table::statistics(&self.totals, self.out)?;
        self.simulation.map_or(Ok(()), Simulation::finish)
    }
}

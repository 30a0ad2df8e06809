//! mpatrol traces: the events of a process as one uncompressed file with its end mark.

use super::rebase::{Fit, Learner, Rebase};
use super::{Error, Exporter, Needs, Out, Shape, Source, Totals};
use crate::event::{Event, Kind};
use crate::export::Impossible;
use crate::load::{Events, Process, bare};
use crate::missing::Missing;
use crate::report::call_site;
use heaptape_formats::mtrc::{Header, Location, Options, Record, Stream, Writer};
use rustc_hash::FxHashMap;

/// Size in bytes of the write buffer.
const GATHERED: usize = 1 << 20;

/// The exporter of mpatrol traces.
pub struct Export;

impl Exporter for Export {
    fn name(&self) -> &'static str {
        "mtrc"
    }

    fn extension(&self) -> &'static str {
        "mtrc"
    }

    fn summary(&self) -> &'static str {
        "mpatrol's trace of every event, for mptrace"
    }

    fn needs(&self) -> Needs {
        Needs { events: true, shape: Shape::OnePerProcess }
    }

    fn write(&self, source: &mut Source<'_>, out: &mut Out) -> Result<(), Error> {
        let Some(&process) = source.processes.first() else { return Ok(()) };
        let options = source.options;
        let rebase = options.for_mptrace.then(|| rebase_of(source, process));
        if let Some(note) = rebase.as_ref().and_then(note) {
            out.note(note);
        }
        let mut header = match &process.events {
            Events::Trace(path) => header_of(path),
            _ => Header::default(),
        };
        header.abi = options.flavour.unwrap_or(header.abi);
        header.version = options.version.unwrap_or(header.version);
        if options.names && !header.has_location() {
            return Err(Impossible::TraceWithoutNames(header.version).into());
        }
        let mut file = out.stream()?;
        let mut buffer = Vec::with_capacity(GATHERED + 4096);
        let mut writer = Writer::new(Options { header, padding: true });
        writer.header(&mut buffer);
        let mut threads = Threads::default();
        let mut failed = None;
        each_record(source, process, options.names, &mut |record| {
            let record = match &rebase {
                Some(rebase) => rebased(record, rebase, &mut threads),
                None => *record,
            };
            writer.record(&mut buffer, &record);
            if buffer.len() >= GATHERED && failed.is_none() {
                failed = file.put(&buffer).err();
                buffer.clear();
            }
        });
        if let Some(error) = failed {
            return Err(error);
        }
        writer.end(&mut buffer);
        file.put(&buffer)?;
        file.finish()
    }

    fn totals(&self, source: &mut Source<'_>) -> Result<Totals, Error> {
        let mut totals = Totals::default();
        for process in source.processes.clone() {
            each_record(source, process, false, &mut |record| totals.record(record));
        }
        Ok(totals)
    }
}

fn header_of(path: &std::path::Path) -> Header {
    bare::open(path)
        .ok()
        .and_then(|reader| Stream::new(reader).ok())
        .map_or(Header::default(), |stream| stream.header())
}

/// Maps thread numbers to small ones.
#[derive(Default)]
struct Threads(FxHashMap<u64, u64>);

impl Threads {
    fn of(&mut self, thread: u64) -> u64 {
        if thread < 1 << 20 {
            return thread;
        }
        let next = self.0.len() as u64 + 1;
        *self.0.entry(thread).or_insert(next)
    }
}

fn rebased<'r>(record: &Record<'r>, rebase: &Rebase, threads: &mut Threads) -> Record<'r> {
    let mut record = *record;
    match &mut record {
        Record::Heap { address, .. } | Record::Internal { address, .. } => *address = rebase.of(*address),
        Record::Alloc { address, location, .. } | Record::Resize { address, location, .. } => {
            *address = rebase.of(*address);
            location.thread = threads.of(location.thread);
        }
        Record::Free { location, .. } => location.thread = threads.of(location.thread),
    }
    record
}

fn rebase_of(source: &mut Source<'_>, process: &Process) -> Rebase {
    let mut learner = Learner::default();
    each_record(source, process, false, &mut |record| match *record {
        Record::Heap { address, size }
        | Record::Internal { address, size }
        | Record::Alloc { address, size, .. }
        | Record::Resize { address, size, .. } => learner.block(address, size),
        Record::Free { .. } => {}
    });
    learner.finish()
}

fn note(rebase: &Rebase) -> Option<&'static str> {
    match rebase.fit {
        Fit::Whole => None,
        Fit::Starts => Some("more than 2 GiB of addresses: large blocks seem to reach into others"),
        Fit::Folded => Some("more than 2 GiB of addresses: some stand for several"),
    }
}

/// Calls `each` for the records of a process: those of a bare trace as they are in the file, or
/// else records made of its events. If `names` is set, they contain names of functions, files and
/// lines.
pub fn each_record(source: &mut Source<'_>, process: &Process, names: bool, each: &mut dyn FnMut(&Record)) {
    if let Events::Trace(path) = &process.events {
        if let Some(missing) = bare_records(source, process, path, each) {
            source.found(&[missing]);
        }
        return;
    }
    let mut named = SiteNames::default();
    let span = process.span(&source.range());
    let symbols = std::cell::RefCell::new(&mut source.symbols);
    let progress = crate::Progress::new("exporting events");
    let missing = process.for_each(span, &progress, &mut |events| {
        for event in events {
            let name = if names { named.of(&mut symbols.borrow_mut(), process, event.site) } else { &NONE };
            if let Some(record) = record(event, name) {
                each(&record);
            }
        }
    });
    source.found(&missing);
}

fn bare_records(
    source: &Source<'_>,
    process: &Process,
    path: &std::path::Path,
    each: &mut dyn FnMut(&Record),
) -> Option<Missing> {
    let span = process.span(&source.range());
    let mut number = 0;
    bare::walk(path, |record| {
        if (span.first..span.end).contains(&number) {
            each(record);
        }
        number += u64::from(!matches!(record, Record::Heap { .. } | Record::Internal { .. }));
        true
    })
}

/// Names at the blamed frame of a site.
#[derive(Default)]
struct Name {
    function: Option<Vec<u8>>,
    file: Option<Vec<u8>>,
    line: u64,
}

const NONE: Name = Name { function: None, file: None, line: 0 };

/// The names of sites that occurred so far.
#[derive(Default)]
struct SiteNames(FxHashMap<u32, Name>);

impl SiteNames {
    /// Returns the names at the blamed frame of a site.
    fn of(&mut self, symbols: &mut crate::symbols::Symbolizer, process: &Process, site: u32) -> &Name {
        self.0.entry(site).or_insert_with(|| {
            if site == 0 {
                return NONE;
            }
            let frame = call_site(symbols, process.stacks(), site, 1).frame;
            Name {
                function: Some(frame.title().into_bytes()),
                line: frame.line.map_or(0, u64::from),
                file: frame.file.map(String::into_bytes),
            }
        })
    }
}

fn record<'n>(event: &Event, name: &'n Name) -> Option<Record<'n>> {
    let location = Location {
        thread: event.thread.into(),
        function: name.function.as_deref(),
        file: name.file.as_deref(),
        line: name.line,
    };
    let &Event { index, address, size, .. } = event;
    match event.kind {
        Kind::Alloc => Some(Record::Alloc { index, address, size, location }),
        Kind::Resize => Some(Record::Resize { index, address, size, location }),
        Kind::Free => Some(Record::Free { index, location }),
        // It has no index, and the format has no record for it.
        Kind::Unmatched | Kind::Previous => None,
    }
}

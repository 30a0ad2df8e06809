//! Stacks and events as rows, for formats that are tables.

use super::{Error, Measure, Source, Totals, measure};
use crate::event::{Event, Kind};
use crate::load::Process;
use crate::report::{FrameJson, call_site, frames_of};
use crate::symbols::Symbolizer;
use heaptape_formats::tape::Entry;
use rustc_hash::FxHashMap;

/// Maximum number of stacks of events that are kept as text. A gigabyte of memory holds many times
/// as many.
const KEPT: usize = 1 << 18;

pub(super) struct StackRow<'a> {
    pub process: &'a str,
    pub pid: u32,
    pub site: u32,
    /// Values of the requested measures.
    pub values: &'a [u64],
    /// The innermost program frame.
    pub frame: &'a FrameJson,
    /// The stack's functions between semicolons, outermost first.
    pub stack: &'a str,
}

pub(super) struct EventRow<'a> {
    pub process: &'a str,
    pub pid: u32,
    pub event: &'a Event,
    /// `alloc`, `resize`, `free` or `unmatched`.
    pub kind: &'static str,
    /// Name of the called function; empty if unknown.
    pub function: &'static str,
    /// Nanoseconds after the start of the run.
    pub time_ns: u64,
    /// The stack's functions between semicolons, outermost first.
    pub stack: &'a str,
}

/// Calls `each` for every stack that has a sum.
///
/// # Errors
/// Returns the first error of `each`.
pub(super) fn each_stack(
    source: &mut Source<'_>,
    measures: &[Measure],
    each: &mut dyn FnMut(&StackRow<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    for process in source.processes.clone() {
        let (sums, ended, name) = (source.sums(process), process.has_ended(), process.name());
        for row in &sums.sites {
            let values: Vec<u64> = measures.iter().map(|what| what.of(row, ended)).collect();
            let (stack, frame) = text(&mut source.symbols, process, row.site);
            let (pid, site) = (process.about.pid, row.site);
            each(&StackRow { process: &name, pid, site, values: &values, frame: &frame, stack: &stack })?;
        }
    }
    Ok(())
}

/// Calls `each` for every event.
///
/// # Errors
/// Returns the first error of `each`.
pub(super) fn each_event(
    source: &mut Source<'_>,
    each: &mut dyn FnMut(&EventRow<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut failed = None;
    for process in source.processes.clone() {
        let name = process.name();
        let span = process.span(&source.range());
        let progress = crate::Progress::new("exporting events");
        let mut stacks: FxHashMap<u32, String> = FxHashMap::default();
        let mut live: FxHashMap<u64, u64> = FxHashMap::default();
        let symbols = &mut source.symbols;
        let missing = process.for_each(span, &progress, &mut |events| {
            for event in events {
                if failed.is_some() {
                    return;
                }
                if stacks.len() > KEPT {
                    stacks.clear();
                }
                let stack = stacks.entry(event.site).or_insert_with(|| match event.site {
                    0 => String::new(),
                    site => text(symbols, process, site).0,
                });
                // A free has only the index of its block in the file.
                let address = match event.kind {
                    Kind::Alloc | Kind::Resize => {
                        live.insert(event.index, event.address);
                        event.address
                    }
                    Kind::Free => live.remove(&event.index).unwrap_or(0),
                    Kind::Unmatched | Kind::Previous => event.address,
                };
                let row = EventRow {
                    process: &name,
                    pid: process.about.pid,
                    event: &Event { address, ..*event },
                    kind: kind(event.kind),
                    function: Entry::from_number(event.entry).map_or("", Entry::name),
                    time_ns: process.clock.nanos(event.tick),
                    stack,
                };
                failed = each(&row).err();
            }
        });
        source.found(&missing);
    }
    failed.map_or(Ok(()), Err)
}

const fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Alloc => "alloc",
        Kind::Resize => "resize",
        Kind::Free => "free",
        Kind::Unmatched => "unmatched",
        Kind::Previous => "known",
    }
}

/// Adds an event that was read back to the totals.
pub(super) fn count(totals: &mut Totals, kind: &str, size: u64) {
    totals.add(kind, 1);
    if matches!(kind, "alloc" | "resize") {
        totals.add("bytes", size.into());
    }
}

/// Returns what a file of rows must sum up to.
///
/// # Errors
/// The sums of the recording cannot be read.
pub(super) fn totals(source: &mut Source<'_>) -> Result<Totals, Error> {
    if !source.options.each_event {
        let measures = measure::known(source, Measure::ALL);
        return measure::totals(source, &measures);
    }
    let mut totals = Totals::default();
    for process in source.processes.clone() {
        let span = process.span(&source.range());
        let missing = process.for_each(span, source.progress(), &mut |events| {
            events.iter().for_each(|event| count(&mut totals, kind(event.kind), event.size));
        });
        source.found(&missing);
    }
    Ok(totals)
}

/// Returns a stack on one line, and its innermost program frame.
fn text(symbols: &mut Symbolizer, process: &Process, site: u32) -> (String, FrameJson) {
    let frames = frames_of(symbols, process.stacks(), site);
    let frame = FrameJson { blamed: true, ..FrameJson::from(&call_site(symbols, process.stacks(), site, 1).frame) };
    let titles: Vec<String> = frames.iter().rev().map(|frame| frame.title().replace(';', ":")).collect();
    (titles.join(";"), frame)
}

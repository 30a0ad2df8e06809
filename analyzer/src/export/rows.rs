//! Stacks and events as rows, for formats that are tables.

use super::{Error, Measure, Source, Totals};
use crate::event::{Event, Kind};
use crate::load::Image;
use crate::report::{FrameJson, call_site, frames_of};
use crate::symbols::Symbolizer;
use heaptape_formats::tape::Entry;
use rustc_hash::FxHashMap;

/// Stacks of events that are kept as text: what a gigabyte of memory holds many times over.
const KEPT: usize = 1 << 18;

/// A stack and its sums.
pub struct StackRow<'a> {
    /// Name of the process.
    pub process: &'a str,
    /// Its process id.
    pub pid: u32,
    /// The site's number.
    pub site: u32,
    /// The measures that were asked for.
    pub values: &'a [u64],
    /// The innermost frame of the program.
    pub place: &'a FrameJson,
    /// The stack's functions between semicolons, outermost first.
    pub stack: &'a str,
}

/// An event.
pub struct EventRow<'a> {
    /// Name of the process.
    pub process: &'a str,
    /// Its process id.
    pub pid: u32,
    /// The event.
    pub event: &'a Event,
    /// `alloc`, `resize`, `free` or `unmatched`.
    pub kind: &'static str,
    /// The function called; empty when not known.
    pub function: &'static str,
    /// Nanoseconds after the start.
    pub time_ns: u64,
    /// The stack, likewise.
    pub stack: &'a str,
}

/// Hands on every stack that has a sum.
///
/// # Errors
/// What `each` says.
pub fn each_stack(
    source: &mut Source<'_>,
    measures: &[Measure],
    each: &mut dyn FnMut(&StackRow<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    for image in source.images.clone() {
        let (sums, ended, process) = (source.sums(image), image.has_ended(), image.name());
        for row in &sums.sites {
            let values: Vec<u64> = measures.iter().map(|what| what.of(row, ended)).collect();
            let (stack, place) = text(&mut source.symbols, image, row.site);
            let (pid, site) = (image.about.pid, row.site);
            each(&StackRow { process: &process, pid, site, values: &values, place: &place, stack: &stack })?;
        }
    }
    Ok(())
}

/// Hands on every event.
///
/// # Errors
/// What `each` says.
pub fn each_event(
    source: &mut Source<'_>,
    each: &mut dyn FnMut(&EventRow<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut failed = None;
    for image in source.images.clone() {
        let process = image.name();
        let span = image.span(&source.range());
        let progress = crate::Progress::new("exporting events");
        let mut stacks: FxHashMap<u32, String> = FxHashMap::default();
        let symbols = &mut source.symbols;
        let missing = image.for_each(span, &progress, &mut |events| {
            for event in events {
                if failed.is_some() {
                    return;
                }
                if stacks.len() > KEPT {
                    stacks.clear();
                }
                let stack = stacks.entry(event.site).or_insert_with(|| match event.site {
                    0 => String::new(),
                    site => text(symbols, image, site).0,
                });
                let row = EventRow {
                    process: &process,
                    pid: image.about.pid,
                    event,
                    kind: kind(event.kind),
                    function: Entry::from_number(event.entry).map_or("", Entry::name),
                    time_ns: image.clock.nanos(event.tick),
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

/// Counts an event that was read back.
pub fn count(totals: &mut Totals, kind: &str, size: u64) {
    totals.add(kind, 1);
    if matches!(kind, "alloc" | "resize") {
        totals.add("bytes", size.into());
    }
}

/// What the events add up to.
///
/// # Errors
/// None; the type is that of [`super::Exporter::totals`].
pub fn event_totals(source: &mut Source<'_>) -> Result<Totals, Error> {
    let mut totals = Totals::default();
    for image in source.images.clone() {
        let span = image.span(&source.range());
        let missing = image.for_each(span, source.progress(), &mut |events| {
            events.iter().for_each(|event| count(&mut totals, kind(event.kind), event.size));
        });
        source.found(&missing);
    }
    Ok(totals)
}

/// A stack in one line, and its innermost frame that is the program's.
fn text(symbols: &mut Symbolizer, image: &Image, site: u32) -> (String, FrameJson) {
    let frames = frames_of(symbols, image.stacks(), site);
    let place = FrameJson { blamed: true, ..FrameJson::from(&call_site(symbols, image.stacks(), site, 1).frame) };
    let titles: Vec<String> = frames.iter().rev().map(|frame| frame.title().replace(';', ":")).collect();
    (titles.join(";"), place)
}

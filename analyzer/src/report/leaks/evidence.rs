//! Why a verdict is what it is: the evidence of a site as `--json` holds it, and what the run as a
//! whole says.

use crate::event::Span;
use crate::load::Image;
use crate::load::tape::TraceRange;
use crate::missing::Missing;
use crate::model::leaks::{Axis, History, LIFETIME_CLASSES, Leaks, SLICES, Survivors, lifetime_bound};
use crate::model::verdict::{Run, Verdict, slope};
use crate::report::place;
use crate::report::questions::When;
use crate::symbols::Symbolizer;
use serde::Serialize;

/// Why the verdict is what it is.
#[derive(Clone, Debug, Serialize)]
pub struct Evidence {
    /// Birth of the oldest survivor.
    pub first: When,
    /// Birth of the youngest.
    pub last: When,
    /// Bytes a second by which the site grew; none without times, and in runs too short to say.
    pub bytes_per_second: Option<f64>,
    /// Unit of lifetimes and ages: `ns`, or `events` without times and in short runs.
    pub unit: &'static str,
    /// Allocations and resizes of the site.
    pub allocs: u64,
    /// Of these, freed.
    pub freed: u64,
    /// Of these, resized away.
    pub resized: u64,
    /// Mean lifetime of the freed ones.
    pub mean_life: Option<u64>,
    /// The longest.
    pub longest_life: Option<u64>,
    /// How the lifetimes of the freed ones are spread.
    pub lives: Vec<Lives>,
    /// Age of the oldest survivor at the end, in the same unit.
    pub oldest_age: u64,
    /// Age of the youngest.
    pub youngest_age: u64,
    /// Smallest survivor; none where only sums are known.
    pub smallest: Option<u64>,
    /// Largest, likewise.
    pub largest: Option<u64>,
    /// The first few threads that allocated survivors.
    pub threads: Vec<u32>,
    /// The oldest few: address and size.
    pub examples: Vec<(String, u64)>,
    /// The most bytes of the site alive at once.
    pub most_bytes: u64,
    /// Live bytes of the site at the end of each 16th of the run.
    pub live_bytes: [u64; SLICES],
    /// Births of survivors in each 16th of the run: how their ages are spread.
    pub births: [u64; SLICES],
    /// Where siblings were freed, most often first, when frees were recorded with stacks.
    pub freed_at: Vec<FreedAt>,
    /// Events missing from the recording; a free of a survivor may be among them.
    pub missing_events: Option<u64>,
    /// What would be said of it in a longer run or of more bytes, where that is too little to tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trend: Option<Verdict>,
}

/// So many blocks lived less than a bound, and not less than the bound before.
#[derive(Clone, Debug, Serialize)]
pub struct Lives {
    /// The bound; none: longer than all bounds.
    pub below: Option<u64>,
    /// How many.
    pub blocks: u32,
}

/// A place where siblings were freed.
#[derive(Clone, Debug, Serialize)]
pub struct FreedAt {
    /// How many.
    pub blocks: u64,
    /// The innermost frames of the program.
    pub functions: Vec<String>,
}

/// A run shorter than this is measured in events: its time is mostly the start's and the
/// scheduler's.
const SHORT_NS: u64 = 100_000_000;
/// A shorter one than this, too, when its allocations do not fill a quarter of its time: a single
/// stall may be the rest.
const STALLED_NS: u64 = 400_000_000;

/// How an image's run is measured, up to the end of a span.
pub fn axis(image: &Image, span: Span) -> Axis {
    let (mut start, mut end) = (image.clock.start_tick, image.tape.last_tick.min(span.end_tick));
    if is_told_by_time(image, end) && span.end == u64::MAX {
        // Waiting before the first birth and behind the last is no time in which nothing grew,
        // unless it is most of the run. Nor is a long time of taking down what was built up.
        let half = start + end.saturating_sub(start) / 2;
        if let Some(last) = image.allocation_at(100).filter(|last| last.tick < end) {
            let frees = image.tape.events.saturating_sub(last.number + 1);
            let live = image.tape.summary.as_ref().map_or(u64::MAX, |summary| summary.totals.live_blocks);
            let taken_down = frees > 0 && frees >= live.saturating_add(frees) / 4;
            // A short run that was busy for long enough: how late its end was seen says nothing.
            let whole = image.clock.nanos(end);
            let busy = whole < 1_000_000_000 && image.clock.nanos(last.tick) >= SHORT_NS;
            end = if taken_down || busy || last.tick >= half { last.tick } else { end };
        }
        if let Some(first) = image.allocation_at(0).filter(|first| first.tick <= half && first.tick < end) {
            start = first.tick;
        }
        return Axis { by_tick: true, start, end };
    }
    let events = match image.tape.events {
        0 => u64::MAX,
        events => events,
    };
    let last = image.allocation_at(99).map_or(events, |last| last.number + 1);
    Axis { by_tick: false, start: 0, end: last.min(span.end) }
}

/// Whether time says more about a run than events do.
fn is_told_by_time(image: &Image, end: u64) -> bool {
    if !image.has_times() || image.clock.nanos(end) < SHORT_NS {
        return false;
    }
    let filled = || match (image.allocation_at(1), image.allocation_at(99)) {
        (Some(from), Some(to)) => image.clock.span_nanos(to.tick.saturating_sub(from.tick)),
        _ => u64::MAX,
    };
    image.clock.nanos(end) >= STALLED_NS || filled() >= image.clock.nanos(end) / 4
}

/// What the run as a whole says to every site.
pub fn run_of(image: &Image, axis: Axis, span: Span, model: &Leaks, missing: &[Missing]) -> Run {
    let end_tick = image.tape.last_tick.min(span.end_tick);
    // How late the recorder sees a death is no age of anything, unless nothing happened for long.
    let last_event = image.tape.ranges.iter().rev().find_map(|place| match place {
        TraceRange::Committed { chunk, .. } => Some(chunk.last_tick),
        TraceRange::Salvage { .. } => None,
    });
    let busy = |last: &u64| *last >= axis.start + end_tick.saturating_sub(axis.start) / 4 * 3;
    let seen = last_event.filter(busy).unwrap_or(end_tick).min(end_tick);
    let end = if axis.by_tick { seen } else { image.tape.events.min(span.end).max(axis.end) };
    let seconds = if image.has_times() { image.clock.nanos(end_tick) as f64 / 1e9 } else { 0.0 };
    let last_birth = image.allocation_at(100).map_or(end_tick, |last| last.tick.min(end_tick));
    let active_seconds = if image.has_times() { image.clock.nanos(last_birth) as f64 / 1e9 } else { 0.0 };
    let (mut allocs, mut live) = (0, [0u64; SLICES]);
    for (_, history) in model.histories() {
        allocs += history.allocs;
        live.iter_mut().zip(history.series).for_each(|(sum, bytes)| *sum = sum.saturating_add(bytes));
    }
    let peak_bytes = live.into_iter().max().unwrap_or(0);
    let mut run = Run { axis, end, seconds, active_seconds, allocs, peak_bytes, hidden: 0, hidden_until: 0 };
    for one in missing.iter().filter(|one| one.hides_events()) {
        let events = match one {
            Missing::Dropped { events, .. } | Missing::Chunk { events, .. } => *events,
            _ => u64::MAX,
        };
        run.hidden = run.hidden.saturating_add(events);
        let until = one.ticks().filter(|_| axis.by_tick).map_or(u64::MAX, |(_, until)| until);
        run.hidden_until = run.hidden_until.max(until);
    }
    run
}

/// The evidence of a site.
pub fn evidence(
    image: &Image,
    run: &Run,
    history: &History,
    survivors: &Survivors,
    freed_at: Vec<FreedAt>,
) -> Evidence {
    let by_tick = run.axis.by_tick;
    let unit = |value: u64| if by_tick { image.clock.span_nanos(value) } else { value };
    let died = history.freed > 0;
    let (first, last) = (survivors.first, survivors.last);
    let age = |birth: (u64, u64)| unit(run.end.saturating_sub(if by_tick { birth.0 } else { birth.1 }));
    let lives = history.lifetimes.iter().enumerate().filter(|(_, blocks)| **blocks > 0).map(|(class, &blocks)| Lives {
        below: (class + 1 < LIFETIME_CLASSES).then(|| unit(lifetime_bound(class))),
        blocks,
    });
    Evidence {
        first: When::at(image, first.0, Some(first.1)),
        last: When::at(image, last.0, Some(last.1)),
        bytes_per_second: by_tick.then(|| slope(run, history) * image.clock.ticks_per_second as f64),
        unit: if by_tick { "ns" } else { "events" },
        allocs: history.allocs,
        freed: history.freed,
        resized: history.resized,
        mean_life: died.then(|| unit(history.lifetime_sum / history.freed.max(1))),
        longest_life: died.then(|| unit(history.longest_lifetime)),
        lives: lives.collect(),
        oldest_age: age(first),
        youngest_age: age(last),
        smallest: Some(survivors.smallest),
        largest: Some(survivors.largest),
        threads: survivors.threads.clone(),
        examples: survivors.examples.iter().map(|&(_, address, size)| (format!("{address:#x}"), size)).collect(),
        most_bytes: history.peak_bytes,
        live_bytes: history.series,
        births: survivors.allocs_by_slice,
        freed_at,
        missing_events: (run.hidden > 0 && run.hidden < u64::MAX).then_some(run.hidden),
        trend: None,
    }
}

/// The evidence of a site of which only sums are known, at some moments: no sizes, no lives.
pub fn of_course(image: &Image, run: &Run, history: &History, survivors: &Survivors) -> Evidence {
    let (mean_life, longest_life, smallest, largest) = (None, None, None, None);
    let (first, last) = (When::at(image, survivors.first.0, None), When::at(image, survivors.last.0, None));
    let evidence = evidence(image, run, history, survivors, Vec::new());
    Evidence { first, last, mean_life, longest_life, smallest, largest, ..evidence }
}

/// Places told of where siblings were freed.
const PLACES: usize = 3;

/// Where blocks of a site were freed.
pub fn freed_at(image: &Image, model: &Leaks, site: u32, symbols: &mut Symbolizer) -> Vec<FreedAt> {
    let mut named: Vec<FreedAt> = Vec::new();
    for (at, blocks) in model.freed_at(site) {
        let names = place(symbols, image.stacks(), at, 2).names;
        match named.iter().position(|known| known.functions == names) {
            Some(known) => named[known].blocks += blocks,
            None if named.len() < PLACES => named.push(FreedAt { blocks, functions: names }),
            None => {}
        }
    }
    named
}

//! The evidence of verdicts: that of a site, as JSON holds it, and what the run as a whole
//! contributes.

use crate::event::{Position, Span};
use crate::load::Process;
use crate::missing::Missing;
use crate::model::axis::Axis;
use crate::model::axis::SLICES;
use crate::model::climb::{is_burst, slope};
use crate::model::leaks::{History, LIFETIME_CLASSES, Leaks, Survivors, lifetime_bound};
use crate::model::run::Run;
use crate::model::verdict::Verdict;
use crate::report::{PointInTime, call_site};
use crate::symbols::Symbolizer;
use serde::Serialize;

#[derive(Clone, Debug, Serialize)]
pub struct Evidence {
    /// Time of the allocation of the oldest survivor.
    pub first: PointInTime,
    /// Time of the allocation of the youngest survivor.
    pub last: PointInTime,
    /// Growth of the site in bytes per second; `None` without times, in runs that are too short, and
    /// where all survivors were allocated at one time.
    pub bytes_per_second: Option<f64>,
    /// Standard error of `bytes_per_second`, if the bytes are estimates of a sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_second_error: Option<f64>,
    /// Unit of lifetimes and ages: `ns`, or `events` without times.
    pub unit: &'static str,
    /// Number of allocations and reallocations of the site.
    pub allocs: u64,
    /// Number of these that were freed.
    pub freed: u64,
    /// Number of these whose block was reallocated.
    pub resized: u64,
    /// Mean lifetime of the freed blocks.
    #[serde(rename = "mean_life")]
    pub mean_lifetime: Option<u64>,
    /// Longest lifetime of a freed block.
    #[serde(rename = "longest_life")]
    pub longest_lifetime: Option<u64>,
    /// Distribution of the lifetimes of the freed blocks.
    #[serde(rename = "lives")]
    pub lifetimes: Vec<LifetimeClass>,
    /// Age of the oldest survivor at the end of the run, in `unit`.
    pub oldest_age: u64,
    /// Age of the youngest survivor at the end of the run, in `unit`.
    pub youngest_age: u64,
    /// Size of the smallest survivor; `None` where only sums are known.
    pub smallest: Option<u64>,
    /// Size of the largest survivor; `None` where only sums are known.
    pub largest: Option<u64>,
    /// The first few threads that allocated survivors.
    pub threads: Vec<u32>,
    /// Address and size of the oldest survivors.
    pub examples: Vec<(String, u64)>,
    /// Peak of the live bytes of the site.
    pub most_bytes: u64,
    /// Live bytes of the site at the end of each 16th of the run.
    pub live_bytes: [u64; SLICES],
    /// Number of survivors that were allocated in each 16th of the run: the distribution of their
    /// ages.
    #[serde(rename = "births")]
    pub allocs_by_slice: [u64; SLICES],
    /// Where blocks of the same site were freed, most frequent first, if frees were recorded with
    /// stacks.
    pub freed_at: Vec<FreedAt>,
    /// Number of events that are missing from the recording; a free of a survivor may be among
    /// them.
    pub missing_events: Option<u64>,
    /// The time from which on the site is judged, where events were lost before. Growth is that
    /// since then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub judged_since: Option<PointInTime>,
    /// The verdict that a longer run, or more bytes, would lead to; present where there is too
    /// little of either.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trend: Option<Verdict>,
}

/// A class of lifetimes: blocks that lived less than a bound, and not less than the bound of the
/// class before.
#[derive(Clone, Debug, Serialize)]
pub struct LifetimeClass {
    /// The bound; `None` for the class of the longest lifetimes.
    pub below: Option<u64>,
    pub blocks: u32,
}

/// A call site that freed blocks of the same allocation site.
#[derive(Clone, Debug, Serialize)]
pub struct FreedAt {
    pub blocks: u64,
    /// Names of the innermost program frames.
    pub functions: Vec<String>,
}

/// Returns what the run as a whole contributes to the verdict on every site.
pub(super) fn run_of(process: &Process, axis: Axis, span: Span, model: &Leaks, missing: &[Missing]) -> Run {
    let end_tick = process.tape.last_tick.min(span.end_tick);
    // The recorder may notice the end of a process late. This delay is not part of the age of a
    // block, unless nothing happened for a long time before.
    let last_event = process.last_event_tick();
    let busy = |last: &u64| *last >= axis.start + end_tick.saturating_sub(axis.start) / 4 * 3;
    let seen = last_event.filter(busy).unwrap_or(end_tick).min(end_tick);
    let end = if axis.by_tick { seen } else { process.tape.events.min(span.end).max(axis.end) };
    let seconds = if process.has_times() { process.clock.nanos(end_tick) as f64 / 1e9 } else { 0.0 };
    let last_birth = process.allocation_at(100).map_or(end_tick, |last| last.tick.min(end_tick));
    let active_seconds = if process.has_times() { process.clock.nanos(last_birth) as f64 / 1e9 } else { 0.0 };
    let (mut allocs, mut live) = (0, [0u64; SLICES]);
    for (_, history) in model.histories() {
        allocs += history.allocs;
        live.iter_mut().zip(history.series).for_each(|(sum, bytes)| *sum = sum.saturating_add(bytes));
    }
    let peak_bytes = live.into_iter().max().unwrap_or(0);
    let slicing = model.slicing();
    let mut run = Run { axis, slicing, end, seconds, active_seconds, allocs, peak_bytes, hidden: 0, hidden_until: 0 };
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

/// Minimum length of a run for a rate, in seconds.
const MIN_RATE_SECONDS: f64 = 0.1;

/// Returns the evidence of a site.
pub(super) fn evidence(
    process: &Process,
    run: &Run,
    history: &History,
    survivors: &Survivors,
    freed_at: Vec<FreedAt>,
) -> Evidence {
    let by_tick = run.axis.by_tick;
    let unit = |value: u64| if by_tick { process.clock.span_nanos(value) } else { value };
    let has_frees = history.freed > 0;
    let (first, last) = (survivors.first, survivors.last);
    let age = |birth: Position| unit(run.end.saturating_sub(run.axis.unit(birth)));
    let lifetimes = history.lifetimes.iter().enumerate().filter(|(_, blocks)| **blocks > 0).map(|(class, &blocks)| {
        LifetimeClass { below: (class + 1 < LIFETIME_CLASSES).then(|| unit(lifetime_bound(class))), blocks }
    });
    Evidence {
        first: PointInTime::at(process, first.tick, Some(first.number)),
        last: PointInTime::at(process, last.tick, Some(last.number)),
        bytes_per_second_error: history.rise_error.map(|error| error as f64 / (run.seconds / 2.0).max(0.001)),
        bytes_per_second: (by_tick && run.active_seconds >= MIN_RATE_SECONDS && !is_burst(survivors))
            .then(|| slope(run, history) * process.clock.ticks_per_second as f64),
        unit: if by_tick { "ns" } else { "events" },
        allocs: history.allocs,
        freed: history.freed,
        resized: history.resized,
        mean_lifetime: has_frees.then(|| unit(history.lifetime_sum / history.freed.max(1))),
        longest_lifetime: has_frees.then(|| unit(history.longest_lifetime)),
        lifetimes: lifetimes.collect(),
        oldest_age: age(first),
        youngest_age: age(last),
        smallest: Some(survivors.smallest),
        largest: Some(survivors.largest),
        threads: survivors.threads.clone(),
        examples: survivors.examples.iter().map(|block| (format!("{:#x}", block.address), block.size)).collect(),
        most_bytes: history.peak_bytes,
        live_bytes: history.series,
        allocs_by_slice: survivors.allocs_by_slice,
        freed_at,
        missing_events: (run.hidden > 0 && run.hidden < u64::MAX).then_some(run.hidden),
        judged_since: None,
        trend: None,
    }
}

/// Returns the evidence of a site of which only snapshots of its sums are known: without sizes and
/// lifetimes.
pub(super) fn evidence_from_snapshots(
    process: &Process,
    run: &Run,
    history: &History,
    survivors: &Survivors,
) -> Evidence {
    let (mean_lifetime, longest_lifetime, smallest, largest) = (None, None, None, None);
    let (first, last) =
        (PointInTime::at(process, survivors.first.tick, None), PointInTime::at(process, survivors.last.tick, None));
    let evidence = evidence(process, run, history, survivors, Vec::new());
    Evidence { first, last, mean_lifetime, longest_lifetime, smallest, largest, ..evidence }
}

/// Maximum number of freeing call sites in the evidence.
const MAX_FREE_SITES: usize = 3;

/// Returns the call sites that freed blocks of a site.
pub(super) fn freed_at(process: &Process, model: &Leaks, site: u32, symbols: &mut Symbolizer) -> Vec<FreedAt> {
    let mut named: Vec<FreedAt> = Vec::new();
    for (at, blocks) in model.freed_at(site) {
        let names = call_site(symbols, process.stacks(), at, 2).names;
        match named.iter().position(|known| known.functions == names) {
            Some(known) => named[known].blocks += blocks,
            None if named.len() < MAX_FREE_SITES => named.push(FreedAt { blocks, functions: names }),
            None => {}
        }
    }
    named
}

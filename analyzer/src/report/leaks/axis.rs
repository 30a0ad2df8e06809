//! The axis on which the run of a process is measured, and where its exit begins.

use crate::event::{Position, Span};
use crate::load::Process;
use crate::missing::Missing;
use crate::model::axis::{Axis, EVENTS_NS};
use heaptape_formats::recording::Exit;

/// A time without events at the end of a run that does not count, in nanoseconds: the recorder
/// notices the end of a process some milliseconds late.
const LATE_NS: u64 = 15_000_000;
/// What happens within this time happens at one time, in nanoseconds.
const MOMENT_NS: u64 = 1_000_000;
/// Length of the exit, in nanoseconds, in a run of seconds.
const EXIT_NS: u64 = 250_000_000;
/// The exit is not longer than this share of a short run, and as long as that of a long one.
const EXIT_SHARES: (u64, u64) = (8, 64);

/// Returns the axis of the run of a process, up to the end of a span. The model of the candidates
/// must use it.
pub(crate) fn axis(process: &Process, span: Span) -> Axis {
    if !process.has_times() {
        let events = match process.tape.events {
            0 => u64::MAX,
            events => events,
        };
        let last = |per_cent| process.allocation_at(per_cent).map_or(events, |last| last.number + 1);
        let exit = if has_exit(process, span) { last(100) } else { u64::MAX };
        return Axis { exit, ..Axis::plain(false, 0, last(99).min(span.end)) };
    }
    let ticks = |nanos: u64| {
        let ticks = u128::from(nanos) * u128::from(process.clock.ticks_per_second) / 1_000_000_000;
        u64::try_from(ticks).unwrap_or(u64::MAX)
    };
    let begin = process.clock.start_tick;
    let noticed = process.tape.last_tick.min(span.end_tick);
    let half = begin + noticed.saturating_sub(begin) / 2;
    // The time before the first allocation does not show that nothing grows, unless it is most of
    // the run.
    let first = process.allocation_at(0).filter(|first| first.tick <= half && first.tick < noticed);
    let start = first.map_or(begin, |first| first.tick);
    let is_whole = reaches_end(process, span);
    let seen = if is_whole { end_of_events(process, noticed, ticks(LATE_NS)) } else { noticed };
    let run = seen.saturating_sub(start);
    let exit_ticks = ticks(EXIT_NS).min(run / EXIT_SHARES.0).max(run / EXIT_SHARES.1);
    let events = process.tape.events.min(span.end);
    let mut axis = Axis { events: (0, events), ..Axis::plain(true, start, seen) };
    axis.exit = seen.saturating_sub(exit_ticks);
    if let Some(teardown) = teardown(process, (start, seen), exit_ticks).filter(|_| is_whole) {
        (axis.end, axis.events.1) = (teardown.tick.max(start), teardown.number);
        axis.exit = axis.exit.min(teardown.tick);
    }
    if !has_exit(process, span) {
        axis.exit = u64::MAX;
    }
    axis.event_ticks = ticks(EVENTS_NS) / axis.events.1.max(1);
    axis.moment = ticks(MOMENT_NS);
    axis
}

/// Returns whether a span goes on to the end of what was recorded of a process.
pub(super) fn reaches_end(process: &Process, span: Span) -> bool {
    span.end == u64::MAX && (span.end_tick > process.tape.last_tick || !process.has_times())
}

/// Returns whether a span has the end of a process. Frees just before the end of a `--until`, or of
/// the recording of a program that ran on, are frees like any others.
fn has_exit(process: &Process, span: Span) -> bool {
    let ran_on = process.about.exit == Some(Exit::Running) || process.missing.contains(&Missing::NoEnd);
    reaches_end(process, span) && !ran_on
}

/// Returns the end of a process without the time by which the recorder may have noticed it late.
fn end_of_events(process: &Process, noticed: u64, late: u64) -> u64 {
    process.last_event_tick().map_or(noticed, |last| last.max(noticed.saturating_sub(late)).min(noticed))
}

/// Returns where the teardown at the end of a run begins: the frees after the last allocation, if
/// they go on up to the exit and are spread over their time. In that time nothing can grow. A
/// program that frees for longer than a quarter of its run is at work.
fn teardown(process: &Process, run: (u64, u64), exit_ticks: u64) -> Option<Position> {
    let last_allocation = process.allocation_at(100)?;
    let number = last_allocation.number + 1;
    let frees = process.tape.events.checked_sub(number)?;
    let at = |per_cent: u64| process.event_at(number + (u128::from(frees) * u128::from(per_cent) / 100) as u64);
    let (first, middle, last) = (at(10)?, at(50)?, at(90)?);
    let (one, other) = (middle.tick.saturating_sub(first.tick), last.tick.saturating_sub(middle.tick));
    let rest = run.1.saturating_sub(last.tick);
    let is_even = one.max(other) <= one.min(other).saturating_mul(4).max(exit_ticks);
    let tick = first.tick.saturating_sub((one + other) / 4).max(last_allocation.tick);
    let is_short = run.1.saturating_sub(tick) <= run.1.saturating_sub(run.0) / 4;
    (is_even && is_short && rest <= (one + other).max(exit_ticks)).then_some(Position { number, tick })
}

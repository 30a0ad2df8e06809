//! Times of events that have no timestamp.
//!
//! While a process has one thread and many events, only each 16th has a timestamp
//! (`preload/src/timestamp.rs`). The others have the tick of the event before them. We spread them
//! evenly up to the next tick, and note how far off each may be.

use crate::event::{Event, Kind};
use heaptape_formats::tape::Entry;

/// The time between two passes of the recorder: an event without a timestamp is dated at least as
/// late as the last pass at which its ring was empty, so it happened at most this long after its
/// tick.
const PASSES_PER_SECOND: u64 = 100;
/// After a gap of more ticks than this, the library gives several events in a row a timestamp. A
/// run of events without one was dated by a pass of the recorder, its first event, too.
const PAUSE_TICKS: u64 = 1 << 16;

/// Interpolates the times of the events of a chunk. They must be in order.
pub(super) fn interpolate(events: &mut [Event], ticks_per_second: u64) {
    let pass = (ticks_per_second / PASSES_PER_SECOND).max(1);
    let (mut rest, mut before) = (events, None::<u64>);
    while let Some(first) = rest.first() {
        let tick = first.tick;
        let length = rest.iter().take_while(|event| event.tick == tick).count();
        let (run, later) = rest.split_at_mut(length);
        if length > 1 {
            let is_dated_by_pass = before.is_some_and(|before| tick.saturating_sub(before) > PAUSE_TICKS);
            spread(run, later.first().map(|event| event.tick.saturating_sub(tick)), pass, is_dated_by_pass);
        }
        (rest, before) = (later, Some(tick));
    }
}

/// Spreads a run of events with the same tick over the ticks to the next one.
fn spread(run: &mut [Event], to_next: Option<u64>, pass: u64, is_dated_by_pass: bool) {
    let thread = run[0].thread;
    let events = run.iter().filter(|event| is_event(event)).count() as u64;
    // Several threads have timestamps for all events, which are equal by chance.
    if events < 2 || run.iter().any(|event| event.thread != thread) {
        return;
    }
    // Nothing is known about the end of a chunk: its events keep the tick of the last timestamp.
    let ticks = to_next.unwrap_or(0).min(pass);
    let error = if is_dated_by_pass || to_next.is_none() { pass } else { ticks };
    let tick_error = (u64::BITS - error.leading_zeros()) as u8;
    let mut number = 0;
    for event in run {
        if number > 0 || is_dated_by_pass {
            event.tick += (u128::from(ticks) * u128::from(number.min(events - 1)) / u128::from(events)) as u64;
            event.tick_error = tick_error;
        }
        number += u64::from(is_event(event));
    }
}

/// Returns whether the program made this event. Those that the recorder added have the time of the
/// event that they belong to, which comes after them.
fn is_event(event: &Event) -> bool {
    let added =
        [Entry::Inherited, Entry::InheritedEmpty, Entry::Implied, Entry::Carried, Entry::Pooled, Entry::FreeAdded];
    event.kind != Kind::Previous && !added.iter().any(|entry| *entry as u8 == event.entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(ticks: &[u64]) -> Vec<Event> {
        let event = |(number, &tick): (usize, &u64)| Event {
            entry: 1,
            thread: 1,
            site: 1,
            number: number as u64,
            index: number as u64,
            size: 1,
            tick,
            ..Event::of(Kind::Alloc)
        };
        ticks.iter().enumerate().map(event).collect()
    }

    fn interpolated(mut events: Vec<Event>) -> Vec<(u64, u8)> {
        interpolate(&mut events, 1_000_000_000);
        events.iter().map(|event| (event.tick, event.tick_error)).collect()
    }

    #[test]
    fn untimed_events_are_spread_up_to_the_next_timestamp() {
        let found = interpolated(events(&[100, 100, 100, 100, 500, 501]));
        assert_eq!(found, [(100, 0), (200, 9), (300, 9), (400, 9), (500, 0), (501, 0)]);
    }

    #[test]
    fn a_pause_is_spread_over_one_pass_only() {
        let found = interpolated(events(&[5, 5, 5_000_000_000, 6_000_000_000]));
        assert_eq!(found, [(5, 0), (5_000_005, 24), (5_000_000_000, 0), (6_000_000_000, 0)]);
    }

    #[test]
    fn events_that_a_pass_dates_are_marked_from_the_first_one() {
        let found = interpolated(events(&[5, 5_000_000, 5_000_000, 5_000_400]));
        assert_eq!(found, [(5, 0), (5_000_000, 24), (5_000_200, 24), (5_000_400, 0)]);
    }

    #[test]
    fn untimed_events_at_the_end_keep_their_tick_and_are_marked() {
        assert_eq!(interpolated(events(&[5, 7, 7])), [(5, 0), (7, 0), (7, 24)]);
    }

    #[test]
    fn equal_timestamps_of_several_threads_are_kept() {
        let mut two = events(&[5, 5, 9]);
        two[1].thread = 2;
        assert_eq!(interpolated(two), [(5, 0), (5, 0), (9, 0)]);
    }

    #[test]
    fn added_events_have_the_time_of_the_next_one() {
        let mut added = events(&[100, 100, 100, 300]);
        added[1].entry = Entry::Implied as u8;
        assert_eq!(interpolated(added), [(100, 0), (200, 8), (200, 8), (300, 0)]);
        let mut only = events(&[100, 100, 300]);
        only[0].entry = Entry::Inherited as u8;
        assert_eq!(interpolated(only), [(100, 0), (100, 0), (300, 0)]);
    }

    #[test]
    fn times_never_decrease_and_stay_before_the_next_timestamp() {
        for count in 1..40 {
            for gap in [0, 1, 7, 1000, u64::MAX - 100] {
                let mut ticks = vec![50; count];
                ticks.push(50 + gap);
                let found = interpolated(events(&ticks));
                assert!(found.is_sorted_by_key(|(tick, _)| *tick), "{count} events, {gap} ticks");
            }
        }
    }
}

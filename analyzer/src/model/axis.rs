//! The axis on which a run is measured. A run is measured in time, and its events together count as
//! much as [`EVENTS_NS`]. So seconds are seconds in a run of seconds, also in one that sleeps most
//! of them. A run of some milliseconds, in which a single stall is longer than all of the work, is
//! measured by its events.

use crate::event::Position;

/// Number of time slices of a run.
pub const SLICES: usize = 16;
/// The time as which all events of a run count together, in nanoseconds.
pub(crate) const EVENTS_NS: u64 = 50_000_000;

/// The axis on which a run is measured: time with a share for events, or event numbers if there are
/// no times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Whether `start`, `end` and `exit` are ticks. Otherwise they are event numbers.
    pub by_tick: bool,
    pub start: u64,
    /// End of the last slice. Later events, such as frees at exit, count to the last slice.
    pub end: u64,
    /// Numbers of the events between which the axis is.
    pub events: (u64, u64),
    /// Number of ticks that an event counts; 0 without times.
    pub event_ticks: u64,
    /// Start of the exit: what is freed from here on is freed at exit. `u64::MAX` where the process ran
    /// on after `end`.
    pub exit: u64,
    /// What happens within as many ticks happens at one time, however short the run is.
    pub moment: u64,
}

impl Axis {
    /// Returns an axis of ticks only, or of event numbers only.
    pub const fn plain(by_tick: bool, start: u64, end: u64) -> Axis {
        Axis { by_tick, start, end, events: (0, 0), event_ticks: 0, exit: end, moment: 0 }
    }

    /// Returns a tick or an event number, whichever is the unit of the axis.
    #[inline]
    pub const fn unit(&self, at: Position) -> u64 {
        if self.by_tick { at.tick } else { at.number }
    }

    /// Returns the position of an event. It has the unit of the axis, and counts from its start.
    #[inline]
    pub const fn position(&self, at: Position) -> u64 {
        let of_event = at.number.saturating_sub(self.events.0).saturating_mul(self.event_ticks);
        self.unit(at).saturating_sub(self.start).saturating_add(of_event)
    }

    /// Returns the width of a slice in positions.
    pub(crate) const fn slice_width(&self) -> u64 {
        (self.position(Position { tick: self.end, number: self.last_number() }) / SLICES as u64).saturating_add(1)
    }

    const fn last_number(&self) -> u64 {
        if self.by_tick { self.events.1 } else { self.end }
    }

    /// Returns the length from the start to the end, in ticks or events.
    pub const fn length(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }
}

/// The points in time, or numbers of events, at which slices begin, and at last the end of the
/// last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slicing {
    starts: [u64; SLICES + 1],
}

impl Slicing {
    /// Returns slices of the same length.
    pub fn even(axis: &Axis) -> Slicing {
        let width = axis.length() / SLICES as u64;
        Slicing { starts: std::array::from_fn(|slice| axis.start.saturating_add(width.saturating_mul(slice as u64))) }
    }

    /// Returns the slices that begin at these points.
    pub(super) const fn new(starts: [u64; SLICES + 1]) -> Slicing {
        Slicing { starts }
    }

    /// Returns the start of a slice; of the one after the last, the end of the last.
    pub fn start(&self, slice: usize) -> u64 {
        self.starts[slice.min(SLICES)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an axis of nanoseconds with a number of events.
    fn axis(milliseconds: u64, events: u64) -> Axis {
        let event_ticks = EVENTS_NS / events;
        Axis { events: (0, events), event_ticks, ..Axis::plain(true, 0, milliseconds * 1_000_000) }
    }

    /// Returns the slice of an event.
    fn slice(axis: &Axis, milliseconds: u64, number: u64) -> u64 {
        axis.position(Position { tick: milliseconds * 1_000_000, number }) / axis.slice_width()
    }

    #[test]
    fn long_run_is_measured_in_time() {
        let long = axis(10_000, 1000);
        assert_eq!(slice(&long, 0, 0), 0);
        // All events at the start, then sleep.
        assert_eq!(slice(&long, 5, 1000), 0);
        assert_eq!(slice(&long, 5000, 1000), 8);
        assert_eq!(slice(&long, 10_000, 1000), 15);
        // All events at the end.
        assert_eq!(slice(&long, 9000, 0), 14);
    }

    #[test]
    fn short_run_is_measured_in_events() {
        let short = axis(2, 1000);
        for (number, expected) in [(0, 0), (300, 4), (510, 8), (999, 15)] {
            assert_eq!(slice(&short, number / 500, number), expected, "{number}");
        }
        // A stall of 10 ms amid the work takes less than a quarter of the axis.
        let stalled = axis(12, 1000);
        assert!(slice(&stalled, 11, 500) - slice(&stalled, 1, 500) < 4);
    }

    #[test]
    fn run_without_times_is_measured_in_events() {
        let events = Axis::plain(false, 0, 1600);
        let position = |number| events.position(Position { tick: 77, number });
        assert_eq!((position(0), position(800)), (0, 800));
        assert_eq!(Slicing::even(&events).start(8), 800);
        assert_eq!(Slicing::even(&events).start(99), 1600);
    }

    #[test]
    fn any_numbers_are_accepted() {
        for end in [0, 1, u64::MAX] {
            for event_ticks in [0, 1, u64::MAX] {
                let axis = Axis { events: (end, 0), event_ticks, ..Axis::plain(true, 7, end) };
                assert!(axis.slice_width() > 0);
                axis.position(Position { tick: end, number: u64::MAX });
                Slicing::even(&axis);
            }
        }
    }
}

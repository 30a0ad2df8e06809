//! A point in time of a run, as reports name it.

use super::segments::is_attached;
use crate::load::Process;
use crate::text::duration;
use serde::Serialize;

/// A point in time of a run: nanoseconds after the start if the recording has times, and the number
/// of events before it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PointInTime {
    /// Nanoseconds after the start; `None` without times.
    pub time_ns: Option<u64>,
    /// Number of events before it; `None` if unknown.
    pub event: Option<u64>,
    /// Whether the start is that of an attach: the program ran before.
    #[serde(skip)]
    pub is_of_attach: bool,
}

impl PointInTime {
    /// Returns the point in time of a tick and, where it is known, of an event number.
    pub fn at(process: &Process, tick: u64, event: Option<u64>) -> Self {
        let time_ns = process.has_times().then(|| process.clock.nanos(tick));
        PointInTime { time_ns, event, is_of_attach: is_attached(process) }
    }

    /// Returns the point in time as text for people.
    pub fn text(&self) -> String {
        match (self.time_ns, self.event) {
            (Some(_), _) if self.is_of_attach => format!("{} after the attach", self.amount()),
            (Some(_), _) => format!("{} after the start", self.amount()),
            (None, _) => self.amount(),
        }
    }

    /// Returns it without what it counts from, for the first of two points.
    pub(crate) fn amount(&self) -> String {
        match (self.time_ns, self.event) {
            (Some(nanos), _) => duration(nanos),
            (None, Some(event)) => format!("event {event}"),
            (None, None) => "an unknown point in time".into(),
        }
    }
}

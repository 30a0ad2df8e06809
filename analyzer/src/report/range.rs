//! Checks of time ranges against recordings.

use super::filter::NEEDS_EVENTS;
use crate::event::{Bound, Range};
use crate::load::Process;
use crate::similar::hint;
use crate::text::{clean, count, duration};

/// Why a time range selects nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// No process has events.
    #[error("{NEEDS_EVENTS}")]
    NeedsEvents,
    /// The range is given in times, and no process has any.
    #[error("the recording holds no times: use a share of the run (40%) or an event number")]
    NoTimes,
    /// No process has the mark.
    #[error("no mark '{}' in the recording{}", clean(name), clean(hint))]
    NoMark {
        name: String,
        /// End of the message: similar names, or that there are none.
        hint: String,
    },
    /// The end of the range is not after its start.
    #[error("the time range is empty: --from {from} is not before --until {until}")]
    Empty {
        /// Start of the range.
        from: String,
        /// End of the range.
        until: String,
    },
    /// The range begins after the end of the longest run.
    #[error("--from {from} is after the end of the recording ({end})")]
    AfterEnd {
        /// Start of the range.
        from: String,
        /// End of the recording, as a time and a number of events.
        end: String,
    },
}

/// How a range relates to the run of a process.
enum RangeStatus {
    /// The range overlaps the run.
    Overlaps,
    /// The range begins after the end of the run.
    AfterEnd,
    /// The end of the range is not after its start.
    Empty,
}

impl Range {
    /// Checks that the range overlaps the run of at least one of these processes.
    ///
    /// # Errors
    /// Returns an error when the range overlaps no run, or when it is given in times and no
    /// process has any.
    pub fn check(&self, processes: &[&Process]) -> Result<(), RangeError> {
        if self.is_all() {
            return Ok(());
        }
        let is_time = |bound: &Option<Bound>| matches!(bound, Some(Bound::Time(_) | Bound::BeforeEnd(_)));
        let with_events: Vec<&&Process> = processes.iter().filter(|process| process.has_events()).collect();
        if with_events.is_empty() {
            return Err(RangeError::NeedsEvents);
        }
        if (is_time(&self.from) || is_time(&self.to)) && !with_events.iter().any(|process| process.has_times()) {
            return Err(RangeError::NoTimes);
        }
        for bound in self.from.iter().chain(&self.to) {
            if let Bound::Mark(name) = bound {
                check_mark(name, &with_events)?;
            }
        }
        let statuses: Vec<RangeStatus> = with_events.iter().map(|process| self.status(process)).collect();
        if statuses.iter().any(|status| matches!(status, RangeStatus::Overlaps)) {
            return Ok(());
        }
        let shown = |bound: &Option<Bound>, open: &str| bound.as_ref().map_or_else(|| open.to_string(), shown);
        if statuses.iter().any(|status| matches!(status, RangeStatus::Empty)) {
            return Err(RangeError::Empty { from: shown(&self.from, "0%"), until: shown(&self.to, "100%") });
        }
        let nanos = with_events.iter().filter(|process| process.has_times());
        let longest = nanos.map(|process| process.clock.nanos(process.tape.last_tick)).max();
        let events = with_events.iter().map(|process| process.tape.events).max().unwrap_or(0);
        let end = match longest {
            Some(nanos) => format!("{}, event {}", duration(nanos), count(events)),
            None => format!("event {}", count(events)),
        };
        Err(RangeError::AfterEnd { from: shown(&self.from, "0%"), end })
    }

    /// Returns how the range relates to the run of a process.
    fn status(&self, process: &Process) -> RangeStatus {
        let span = process.span(self);
        let end_tick = if process.has_times() { process.tape.last_tick.saturating_add(1) } else { u64::MAX };
        let is_whole = self.from == Some(Bound::Share(1.0));
        if is_whole || span.first_tick >= end_tick || (span.first > 0 && span.first >= process.tape.events) {
            return RangeStatus::AfterEnd;
        }
        if span.first >= span.end || span.first_tick >= span.end_tick {
            RangeStatus::Empty
        } else {
            RangeStatus::Overlaps
        }
    }
}

fn check_mark(name: &str, processes: &[&&Process]) -> Result<(), RangeError> {
    if processes.iter().any(|process| process.mark(name, 0).is_some()) {
        return Ok(());
    }
    let names: Vec<String> = processes
        .iter()
        .flat_map(|process| process.tape.marks.iter().map(|mark| mark.text.lossy().into_owned()))
        .collect();
    let hint = match names.is_empty() {
        true => ": the programs set none (see heaptape.h)".into(),
        false => hint(name, names.iter().map(String::as_str)),
    };
    Err(RangeError::NoMark { name: name.into(), hint })
}

/// Formats a bound as it is written on the command line.
fn shown(bound: &Bound) -> String {
    match bound {
        Bound::Time(nanos) => duration(*nanos).replace(' ', ""),
        Bound::BeforeEnd(nanos) => format!("-{}", duration(*nanos).replace(' ', "")),
        bound => bound.to_string(),
    }
}

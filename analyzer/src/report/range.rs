//! Whether a time range holds anything of a recording.

use crate::event::{Bound, Range};
use crate::load::Image;
use crate::text::{count, duration};

/// What a range is for one process.
enum Held {
    /// Something of the run.
    Some,
    /// Nothing: it begins behind the end of the run.
    Behind,
    /// Nothing: its end is not behind its start.
    Reversed,
}

impl Range {
    /// Whether the range holds a part of at least one of these processes.
    ///
    /// # Errors
    /// When it holds nothing, or has times and no process has any.
    pub fn check(&self, images: &[&Image]) -> Result<(), String> {
        if self.is_all() {
            return Ok(());
        }
        let is_time = |bound: &Option<Bound>| matches!(bound, Some(Bound::Time(_)));
        let with_events: Vec<&&Image> = images.iter().filter(|image| image.has_events()).collect();
        if with_events.is_empty() {
            return Err(super::questions::NEEDS_EVENTS.into());
        }
        if (is_time(&self.from) || is_time(&self.to)) && !with_events.iter().any(|image| image.has_times()) {
            return Err("the recording holds no times: give a share of the run (40%) or an event's number".into());
        }
        let held: Vec<Held> = with_events.iter().map(|image| self.held(image)).collect();
        if held.iter().any(|held| matches!(held, Held::Some)) {
            return Ok(());
        }
        let shown = |bound: Option<Bound>, open: &str| bound.map_or_else(|| open.to_string(), shown);
        if held.iter().any(|held| matches!(held, Held::Reversed)) {
            let (from, to) = (shown(self.from, "0%"), shown(self.to, "100%"));
            return Err(format!("the time range is empty: --from {from} is not before --until {to}"));
        }
        let nanos = with_events.iter().filter(|image| image.has_times());
        let longest = nanos.map(|image| image.clock.nanos(image.tape.last_tick)).max();
        let events = with_events.iter().map(|image| image.tape.events).max().unwrap_or(0);
        let end = match longest {
            Some(nanos) => format!("{}, event {}", duration(nanos), count(events)),
            None => format!("event {}", count(events)),
        };
        Err(format!("--from {} is behind the end of the recording ({end})", shown(self.from, "0%")))
    }

    fn held(&self, image: &Image) -> Held {
        let span = image.span(self);
        let end_tick = if image.has_times() { image.tape.last_tick.saturating_add(1) } else { u64::MAX };
        let is_whole = self.from == Some(Bound::Share(1.0));
        if is_whole || span.first_tick >= end_tick || (span.first > 0 && span.first >= image.tape.events) {
            return Held::Behind;
        }
        if span.first >= span.end || span.first_tick >= span.end_tick { Held::Reversed } else { Held::Some }
    }
}

/// A bound as a person writes it.
fn shown(bound: Bound) -> String {
    match bound {
        Bound::Time(nanos) => duration(nanos).replace(' ', ""),
        bound => bound.to_string(),
    }
}

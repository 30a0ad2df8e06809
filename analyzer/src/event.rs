//! Events as the models receive them, positions in a run, and the time ranges that a query selects.

use heaptape_formats::quantity::{self, Time};
use heaptape_formats::tape::Entry;
use std::str::FromStr;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A block was allocated.
    Alloc,
    /// A block was reallocated: it has a new size or address.
    Resize,
    /// A block was freed.
    Free,
    /// An address that was not known to be allocated was freed or reallocated. The event has no
    /// index.
    Unmatched,
    /// Not an event of the program, but the site and bytes of a block before the next event. Only a
    /// pass that starts in the middle of the run receives it, for blocks that were allocated in
    /// earlier chunks.
    Previous,
}

/// An event with its data from the trace and the tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub kind: Kind,
    /// The function that was called, as a `tape::Entry` number, or 0 if it is unknown.
    pub entry: u8,
    /// Thread number, or 0 if it is unknown.
    pub thread: u32,
    /// Number of the call site, or 0 if it is unknown.
    pub site: u32,
    /// Number of allocations, reallocations and frees before the event in its process.
    pub number: u64,
    pub index: u64,
    /// Address of the block for `Alloc` and `Resize`, the unknown address for `Unmatched`, 0 for
    /// `Free`.
    pub address: u64,
    /// Requested size in bytes for `Alloc` and `Resize`.
    pub size: u64,
    /// Number of bytes that a sampled event represents, or 0 if every event was recorded.
    pub weight: u64,
    /// Time in ticks of the process' clock, or 0 if the file has no times.
    pub tick: u64,
    /// 0 if `tick` is a timestamp of the event. Otherwise it is interpolated, and off by less than
    /// 2 to the power of this many ticks.
    pub tick_error: u8,
}

/// Returns the most ticks by which times with these [`Event::tick_error`]s are off together.
#[inline]
pub(crate) const fn ticks_off(errors: [u8; 2]) -> u64 {
    const fn most(error: u8) -> u64 {
        if error == 0 {
            0
        } else if error < 64 {
            1 << error
        } else {
            u64::MAX
        }
    }
    most(errors[0]).saturating_add(most(errors[1]))
}

impl Event {
    /// Returns an event of which we know nothing but the kind: every number is 0.
    pub(crate) const fn of(kind: Kind) -> Event {
        Event {
            kind,
            entry: 0,
            thread: 0,
            site: 0,
            number: 0,
            index: 0,
            address: 0,
            size: 0,
            weight: 0,
            tick: 0,
            tick_error: 0,
        }
    }

    /// Returns the number of bytes that the event counts for.
    #[inline]
    pub const fn bytes(&self) -> u64 {
        if self.weight > 0 { self.weight } else { self.size }
    }

    /// Returns whether the end of a block was inferred, because its free was not recorded. Time and
    /// thread of such an event are not those of the free.
    #[inline]
    pub const fn is_implied(&self) -> bool {
        !matches!(self.kind, Kind::Free) || self.entry == Entry::Implied as u8
    }

    /// Returns the position of the event in the run.
    #[inline]
    pub const fn position(&self) -> Position {
        Position { number: self.number, tick: self.tick }
    }
}

/// A point in a run, as a time and as a number of events. The earlier one is the smaller one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Time in ticks of the process' clock.
    pub tick: u64,
    /// Number of events before it.
    pub number: u64,
}

/// One end of a time range as the user writes it: a time after the start (`1.5s`, `300ms`, `2m`,
/// `1h`) or before the end (`-1m`), a share of the run (`40%`), the number of an event, or a mark
/// of the program (`mark:NAME`).
///
/// # Examples
///
/// ```
/// use heaptape_analyzer::event::Bound;
///
/// assert_eq!("1.5s".parse(), Ok(Bound::Time(1_500_000_000)));
/// assert_eq!("-1m".parse(), Ok(Bound::BeforeEnd(60_000_000_000)));
/// assert_eq!("40%".parse(), Ok(Bound::Share(0.4)));
/// assert_eq!("5000".parse(), Ok(Bound::Number(5000)));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum Bound {
    /// Time after the start, in nanoseconds.
    Time(u64),
    /// Time before the end of the recording, in nanoseconds.
    BeforeEnd(u64),
    /// Share of the run from 0 to 1: of its time, or of its events if it has no times.
    Share(f64),
    /// Number of events before it.
    Number(u64),
    /// The first mark with this name; at the end of a range the first one after its start.
    Mark(String),
}

/// Prefix of a bound that is a mark.
const MARK: &str = "mark:";

/// The text is not a [`Bound`]. The message names what was expected, not the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}, a share such as 40%, an event number, or mark:NAME", quantity::Error::NotATime)]
pub struct BoundError;

impl FromStr for Bound {
    type Err = BoundError;

    fn from_str(text: &str) -> Result<Self, BoundError> {
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            return text.parse().map(Bound::Number).map_err(|_| BoundError);
        }
        if let Some(name) = text.strip_prefix(MARK).filter(|name| !name.is_empty()) {
            return Ok(Bound::Mark(name.to_owned()));
        }
        if let Some(share) = text.strip_suffix('%') {
            let percent = share.parse().ok().filter(|percent| (0.0..=100.0).contains(percent));
            return percent.map(|percent: f64| Bound::Share(percent / 100.0)).ok_or(BoundError);
        }
        if let Some(time) = text.strip_prefix('-') {
            return match time.parse() {
                Ok(Bound::Time(nanos)) => Ok(Bound::BeforeEnd(nanos)),
                _ => Err(BoundError),
            };
        }
        // A number without a unit is an event, and events have no fractions.
        let time = text.parse::<Time>().ok().filter(|_| text.ends_with(|c: char| c.is_ascii_alphabetic()));
        let Time(time) = time.ok_or(BoundError)?;
        Ok(Bound::Time(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// Writes the bound in the syntax that [`FromStr`] reads.
impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Bound::Time(nanos) => write!(f, "{nanos}ns"),
            Bound::BeforeEnd(nanos) => write!(f, "-{nanos}ns"),
            Bound::Share(share) => write!(f, "{}%", share * 100.0),
            Bound::Number(number) => write!(f, "{number}"),
            Bound::Mark(name) => write!(f, "{MARK}{name}"),
        }
    }
}

/// The time range that a query selects, as the user writes it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Range {
    /// Start of the range, or `None` for the start of the run.
    pub from: Option<Bound>,
    /// End of the range (exclusive), or `None` for the end of the run.
    pub to: Option<Bound>,
}

impl Range {
    /// The whole run.
    pub const ALL: Range = Range { from: None, to: None };

    /// Returns whether the range is the whole run.
    pub const fn is_all(&self) -> bool {
        self.from.is_none() && self.to.is_none()
    }
}

/// A [`Range`] in event numbers and ticks of one process. An event is inside if both its number and
/// its tick are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub first: u64,
    /// First event number after the span.
    pub end: u64,
    pub first_tick: u64,
    /// First tick after the span.
    pub end_tick: u64,
}

impl Span {
    /// The whole run.
    pub const ALL: Span = Span { first: 0, end: u64::MAX, first_tick: 0, end_tick: u64::MAX };

    /// Returns whether a position is after the span.
    #[inline]
    pub(crate) const fn is_past(&self, at: Position) -> bool {
        at.number >= self.end || at.tick >= self.end_tick
    }

    #[inline]
    pub const fn is_before(&self, at: Position) -> bool {
        at.number < self.first || at.tick < self.first_tick
    }

    /// Returns whether a position is inside the span.
    #[inline]
    pub const fn contains(&self, at: Position) -> bool {
        !self.is_before(at) && !self.is_past(at)
    }

    /// Returns the span from the start of the run to the end of this one, for queries that need
    /// what happened before.
    pub const fn with_history(self) -> Span {
        Span { first: 0, first_tick: 0, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_parsed_and_printed() {
        assert_eq!("1.5s".parse(), Ok(Bound::Time(1_500_000_000)));
        assert_eq!("300ms".parse(), Ok(Bound::Time(300_000_000)));
        assert_eq!("2m".parse(), Ok(Bound::Time(120_000_000_000)));
        assert_eq!("-1s".parse(), Ok(Bound::BeforeEnd(1_000_000_000)));
        assert_eq!("40%".parse(), Ok(Bound::Share(0.4)));
        assert_eq!("123456".parse(), Ok(Bound::Number(123_456)));
        assert_eq!("mark:a: 40%".parse(), Ok(Bound::Mark("a: 40%".into())));
        for text in ["mark:x", "1500000000ns", "-1500000000ns", "40%", "12.5%", "123456"] {
            assert_eq!(text.parse::<Bound>().map(|bound| bound.to_string()), Ok(text.to_string()));
        }
        for bad in ["", "s", "-", "--1s", "-5", "-40%", "1.5", "101%", "3 parsecs", "1e9", "mark:", "mark"] {
            assert!(bad.parse::<Bound>().is_err(), "{bad}");
        }
    }
}

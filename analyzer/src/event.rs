//! One event as the models see it, and the part of a run that a question is about.

use heaptape_formats::tape::Entry;
use std::str::FromStr;

/// What happened to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It was handed out.
    Alloc,
    /// It got a new size or address.
    Resize,
    /// It was given back.
    Free,
    /// A free or resize of an address that was not known to be allocated. It has no index.
    Unmatched,
    /// No event of the program: what a block was before the next one, its site and bytes. Reported
    /// only to a pass that begins in the middle of the run, of blocks that were allocated in
    /// earlier chunks.
    Known,
}

/// One event, with what the trace and the tape say of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub kind: Kind,
    /// The function called, a `tape::Entry` number; 0 when not known.
    pub entry: u8,
    /// Thread number; 0 when not known.
    pub thread: u32,
    /// Call site; 0 when not known.
    pub site: u32,
    /// Allocations, resizes and frees before it in this image.
    pub number: u64,
    /// The allocation's index.
    pub index: u64,
    /// Alloc, resize: the block's address. Unmatched: the unknown one. Free: 0.
    pub address: u64,
    /// Alloc, resize: bytes asked for.
    pub size: u64,
    /// Bytes that a sampled event stands for; 0 when every event was recorded.
    pub weight: u64,
    /// When, in ticks of the image's clock; 0 when the file holds no times.
    pub tick: u64,
}

impl Event {
    /// The bytes that the event counts for.
    #[inline]
    pub const fn bytes(&self) -> u64 {
        if self.weight > 0 { self.weight } else { self.size }
    }

    /// Whether it is a death that nobody saw: its moment and thread are not the program's.
    #[inline]
    pub const fn is_implied(&self) -> bool {
        !matches!(self.kind, Kind::Free) || self.entry == Entry::Implied as u8
    }

    /// Where the event lies in the run.
    #[inline]
    pub const fn moment(&self) -> Moment {
        Moment { number: self.number, tick: self.tick }
    }
}

/// A place in a run: how many events came before, and when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// Events before it.
    pub number: u64,
    /// Ticks of the image's clock.
    pub tick: u64,
}

/// One end of a range as a person writes it: `1.5s`, `300ms`, `2m`, `1h` after the start, `40%` of
/// the run, or the number of an event.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// Nanoseconds after the start.
    Time(u64),
    /// Share of the run, 0 to 1: of its time, or of its events where no times are known.
    Share(f64),
    /// Events before it.
    Number(u64),
}

impl FromStr for Bound {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let refused = || format!("'{text}' is no time (1.5s, 300ms, 2m, 1h), share (40%) or event number");
        let value: f64 = number.parse().map_err(|_| refused())?;
        let nanos = |scale: f64| Bound::Time((value * scale) as u64);
        match unit {
            "" => number.parse().map(Bound::Number).map_err(|_| refused()),
            "%" if value <= 100.0 => Ok(Bound::Share(value / 100.0)),
            "ns" => Ok(nanos(1.0)),
            "us" => Ok(nanos(1e3)),
            "ms" => Ok(nanos(1e6)),
            "s" => Ok(nanos(1e9)),
            "m" | "min" => Ok(nanos(60e9)),
            "h" => Ok(nanos(3600e9)),
            _ => Err(refused()),
        }
    }
}

/// As [`FromStr`] reads it.
impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Bound::Time(nanos) => write!(f, "{nanos}ns"),
            Bound::Share(share) => write!(f, "{}%", share * 100.0),
            Bound::Number(number) => write!(f, "{number}"),
        }
    }
}

/// The part of a run that a question is about, as asked.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Range {
    /// Its start; none: the start of the run.
    pub from: Option<Bound>,
    /// Its end (not part of it); none: the end of the run.
    pub to: Option<Bound>,
}

impl Range {
    /// The whole run.
    pub const ALL: Range = Range { from: None, to: None };

    /// Whether it leaves nothing out.
    pub const fn is_all(&self) -> bool {
        self.from.is_none() && self.to.is_none()
    }
}

/// A [`Range`] in the numbers and ticks of one image: an event belongs to it when both hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First event number.
    pub first: u64,
    /// First event number behind it.
    pub end: u64,
    /// First tick.
    pub first_tick: u64,
    /// First tick behind it.
    pub end_tick: u64,
}

impl Span {
    /// The whole run.
    pub const ALL: Span = Span { first: 0, end: u64::MAX, first_tick: 0, end_tick: u64::MAX };

    /// Whether the moment is behind the end.
    #[inline]
    pub const fn is_past(&self, at: Moment) -> bool {
        at.number >= self.end || at.tick >= self.end_tick
    }

    /// Whether the moment is before the start.
    #[inline]
    pub const fn is_before(&self, at: Moment) -> bool {
        at.number < self.first || at.tick < self.first_tick
    }

    /// Whether the moment belongs to it.
    #[inline]
    pub const fn contains(&self, at: Moment) -> bool {
        !self.is_before(at) && !self.is_past(at)
    }

    /// The same end, from the start of the run on: for questions that need the history.
    pub const fn with_history(self) -> Span {
        Span { first: 0, first_tick: 0, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_read_as_people_write_them() {
        assert_eq!("1.5s".parse(), Ok(Bound::Time(1_500_000_000)));
        assert_eq!("300ms".parse(), Ok(Bound::Time(300_000_000)));
        assert_eq!("2m".parse(), Ok(Bound::Time(120_000_000_000)));
        assert_eq!("40%".parse(), Ok(Bound::Share(0.4)));
        assert_eq!("123456".parse(), Ok(Bound::Number(123_456)));
        for text in ["1500000000ns", "40%", "12.5%", "123456"] {
            assert_eq!(text.parse::<Bound>().map(|bound| bound.to_string()), Ok(text.to_string()));
        }
        for bad in ["", "s", "-1s", "1.5", "101%", "3 parsecs", "1e9"] {
            assert!(bad.parse::<Bound>().is_err(), "{bad}");
        }
    }
}

//! The phase around a peak: the time in which a number stayed above nine tenths of its maximum, in
//! constant memory and in one pass.
//!
//! The end of the phase is known when the number falls below for the first time. Its start is the
//! last time before at which the number was below. For that the last time of each low value is
//! kept: of values within a hundredth of each other only one, and none that a later, lower value
//! covers. Their number is at most that of hundredths between 1 and 2^64.

use crate::event::Position;

/// The last time of a value, or of values up to a hundredth above it. After it the number stayed
/// above.
#[derive(Clone, Copy, Debug)]
struct Low {
    value: u64,
    at: Position,
}

/// Follows a number, and remembers the phase of its maximum.
#[derive(Debug, Default)]
pub(super) struct Phase {
    most: u64,
    /// These are the low values in ascending order, with their times.
    lows: Vec<Low>,
    /// This is the start of the phase, once an event came after the maximum.
    from: Option<Position>,
    until: Option<Position>,
}

impl Phase {
    pub(super) fn begin(&mut self, value: u64, at: Position) {
        *self = Phase { most: value, lows: vec![Low { value, at }], from: None, until: None };
    }

    /// Takes the value after an event.
    #[inline]
    pub(super) fn change(&mut self, value: u64, at: Position) {
        if value > self.most {
            (self.most, self.from, self.until) = (value, None, None);
        } else if self.from.is_none() {
            self.from = Some(self.start());
        }
        if self.until.is_none() && value < self.limit() {
            self.until = Some(at);
        }
        while self.lows.last().is_some_and(|low| low.value >= value) {
            self.lows.pop();
        }
        match self.lows.last_mut() {
            Some(low) if low.value >= value - value / 100 => low.at = at,
            _ => self.lows.push(Low { value, at }),
        }
    }

    /// Returns the maximum of all values.
    pub(super) fn most(&self) -> u64 {
        self.most
    }

    /// Returns the start of the phase, and its end if it ended.
    pub(super) fn span(&self) -> (Position, Option<Position>) {
        (self.from.unwrap_or_else(|| self.start()), self.until)
    }

    fn limit(&self) -> u64 {
        self.most - self.most / 10
    }

    /// Returns the last time at which the number was below the limit, or the first time of all.
    fn start(&self) -> Position {
        let below = self.lows.partition_point(|low| low.value < self.limit());
        self.lows[below.saturating_sub(1)].at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(number: u64) -> Position {
        Position { number, tick: number }
    }

    fn phase(values: &[u64]) -> Phase {
        let mut phase = Phase::default();
        phase.begin(0, at(0));
        values.iter().zip(1..).for_each(|(value, number)| phase.change(*value, at(number)));
        phase
    }

    fn numbers(values: &[u64]) -> (u64, Option<u64>) {
        let (from, until) = phase(values).span();
        (from.number, until.map(|until| until.number))
    }

    #[test]
    fn phase_is_around_the_maximum() {
        assert_eq!(numbers(&[1000, 500, 950, 1000, 920, 990, 400, 600]), (0, Some(2)), "the first of equal maxima");
        assert_eq!(numbers(&[1000, 500, 950, 1001, 920, 990, 400, 600]), (2, Some(7)));
        assert_eq!(numbers(&[1000, 500, 950, 1001, 920]), (2, None), "it lasts to the end");
        assert_eq!(numbers(&[]), (0, None));
    }

    /// What a walk over all values says, on random ones. The start may be that of a value which is
    /// a hundredth above the limit.
    #[test]
    fn phase_is_that_of_a_plain_search() {
        let mut random = 1u64;
        let mut next = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            random >> 33
        };
        for _ in 0..500 {
            let mut value = 0;
            let step = 1 + next() % 2000;
            let mut values = vec![0];
            for _ in 0..next() % 300 {
                value = if next() % 2 == 0 { value + next() % step } else { value.saturating_sub(next() % step) };
                values.push(value);
            }
            let most = *values.iter().max().unwrap_or(&0);
            let peak = values.iter().position(|value| *value == most).unwrap_or(0);
            let is_below = |value: u64| value < most - most / 10;
            let start = values[..peak].iter().rposition(|value| is_below(*value)).unwrap_or(0);
            let end = values[peak..].iter().position(|value| is_below(*value)).map(|after| peak + after);
            let found = phase(&values[1..]);
            assert!(found.lows.len() < 4000);
            let (from, until) = found.span();
            assert_eq!(until.map(|until| until.number as usize), end, "{values:?}");
            let from = from.number as usize;
            assert!(from >= start && !values[from + 1..=peak].iter().any(|value| is_below(*value)), "{values:?}");
            assert!(from == 0 || is_below(values[from] - values[from] / 50), "{values:?}");
        }
    }
}

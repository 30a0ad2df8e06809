//! The clock of a process: ticks of its events as times.

/// Converts ticks to time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clock {
    /// Number of ticks in a second; 0 if the events have no times.
    pub ticks_per_second: u64,
    pub start_tick: u64,
    /// Wall-clock time of the start in nanoseconds since 1970.
    pub start_unix_ns: u64,
}

impl Clock {
    /// Returns the nanoseconds from the start to a tick.
    pub fn nanos(&self, tick: u64) -> u64 {
        self.span_nanos(tick.saturating_sub(self.start_tick))
    }

    /// Converts a number of ticks to nanoseconds.
    pub fn span_nanos(&self, ticks: u64) -> u64 {
        match self.ticks_per_second {
            0 => 0,
            rate => (u128::from(ticks) * 1_000_000_000 / u128::from(rate)).min(u64::MAX.into()) as u64,
        }
    }

    /// Returns the tick that is `nanos` nanoseconds after the start.
    pub fn tick(&self, nanos: u64) -> u64 {
        let ticks = u128::from(nanos) * u128::from(self.ticks_per_second) / 1_000_000_000;
        self.start_tick.saturating_add(ticks.min(u64::MAX.into()) as u64)
    }

    /// Returns whether the events have times.
    pub const fn is_known(&self) -> bool {
        self.ticks_per_second > 0
    }
}

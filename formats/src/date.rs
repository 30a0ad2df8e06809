//! Dates and times of day in UTC, by the Gregorian calendar.

use std::fmt;

/// A date with the time of day, in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Date {
    /// The year, with its century.
    pub year: u64,
    /// The month from 1 to 12.
    pub month: u64,
    /// The day from 1 to 31.
    pub day: u64,
    /// The hour from 0 to 23, in UTC.
    pub hour: u64,
    /// The minute from 0 to 59.
    pub minute: u64,
    /// The second from 0 to 60.
    pub second: u64,
}

impl Date {
    /// Returns whether there is such a date. A minute may have a leap second.
    pub fn is_valid(&self) -> bool {
        (1..=12).contains(&self.month)
            && (1..=days_of(self.year, self.month)).contains(&self.day)
            && self.hour < 24
            && self.minute < 60
            && self.second <= 60
    }

    /// Converts seconds after 1970-01-01 00:00 UTC.
    pub fn from_unix(seconds: u64) -> Date {
        let (mut days, rest) = (seconds / 86_400, seconds % 86_400);
        // Periods of 400 years first, so that the loops are short for any number of seconds.
        let mut year = 1970 + days / 146_097 * 400;
        days %= 146_097;
        while days >= days_in_year(year) {
            days -= days_in_year(year);
            year += 1;
        }
        let mut month = 1;
        while days >= days_of(year, month) {
            days -= days_of(year, month);
            month += 1;
        }
        Date { year, month, day: days + 1, hour: rest / 3600, minute: rest / 60 % 60, second: rest % 60 }
    }
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Date { year, month, day, hour, minute, second } = self;
        write!(f, "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
    }
}

const fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

const fn days_in_year(year: u64) -> u64 {
    if is_leap(year) { 366 } else { 365 }
}

const fn days_of(year: u64, month: u64) -> u64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

//! Sizes and times as users write them, in options, rules and the daemon's configuration.
//!
//! A quantity is a decimal number, which may have a fraction, and a unit. Letters of size units may
//! have either case.
//!
//! | unit of a size | bytes |
//! |---|---|
//! | none, `B` | 1 |
//! | `K` or `KiB`, `M` or `MiB`, `G` or `GiB`, `T` or `TiB` | 1024 and its powers |
//! | `KB`, `MB`, `GB`, `TB` | 1000 and its powers |
//!
//! | unit of a time | |
//! |---|---|
//! | `ns`, `us`, `ms` | a part of a second |
//! | none, `s` | seconds |
//! | `m` or `min`, `h`, `d` | minutes, hours, days |
//!
//! A time may have several parts, larger units first, as reports print it: `3m40s`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The two grammars in one line each, for `--help`.
pub const HELP: &str = "\
Sizes are numbers with a unit: 4096 (bytes), 512KiB or 512K, 1.5GiB, 10MB (1000 * 1000 bytes).
Times are numbers with a unit: 250us, 300ms, 1.5s, 2m, 1h, 30d, or several: 3m40s.";

/// A number of bytes.
///
/// # Examples
///
/// ```
/// use heaptape_formats::quantity::Size;
///
/// assert_eq!("512KiB".parse(), Ok(Size(512 << 10)));
/// assert_eq!("1.5g".parse(), Ok(Size(3 << 29)));
/// assert_eq!("10MB".parse(), Ok(Size(10_000_000)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

/// A length of time.
///
/// # Examples
///
/// ```
/// use heaptape_formats::quantity::Time;
/// use std::time::Duration;
///
/// assert_eq!("1.5s".parse(), Ok(Time(Duration::from_millis(1500))));
/// assert_eq!("30d".parse(), Ok(Time(Duration::from_secs(30 * 86_400))));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time(pub Duration);

/// Why a text is not a size or a time. The message names what was expected, not the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The text is not a size.
    NotASize,
    /// The text is not a time.
    NotATime,
    /// The value has more than 64 bits.
    TooLarge,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Error::NotASize => "must be a size such as 4096, 512KiB, 1.5GiB or 10MB",
            Error::NotATime => "must be a time such as 250us, 300ms, 1.5s, 2m, 1h or 30d",
            Error::TooLarge => "too large",
        })
    }
}

impl std::error::Error for Error {}

impl FromStr for Size {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (number, unit) = split(text).ok_or(Error::NotASize)?;
        let scale = match unit.to_ascii_lowercase().as_str() {
            // There is no fraction of a byte.
            "" | "b" if number.decimals == 0 => 1,
            "k" | "kib" => 1 << 10,
            "m" | "mib" => 1 << 20,
            "g" | "gib" => 1 << 30,
            "t" | "tib" => 1 << 40,
            "kb" => 1000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            _ => return Err(Error::NotASize),
        };
        let bytes = number.times(scale).and_then(|bytes| u64::try_from(bytes).ok());
        bytes.map(Size).ok_or(Error::TooLarge)
    }
}

impl FromStr for Time {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        const SECOND: u128 = 1_000_000_000;
        let (mut rest, mut nanos, mut last) = (text.trim(), 0u128, u128::MAX);
        while last == u128::MAX || !rest.is_empty() {
            let (number, after) = split(rest).ok_or(Error::NotATime)?;
            let end = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
            let (unit, next) = after.split_at(end);
            let scale = match unit {
                "ns" => 1,
                "us" => 1000,
                "ms" => 1_000_000,
                "" if last == u128::MAX && next.is_empty() => SECOND,
                "s" => SECOND,
                "m" | "min" => 60 * SECOND,
                "h" => 3600 * SECOND,
                "d" => 86_400 * SECOND,
                _ => return Err(Error::NotATime),
            };
            // The larger unit comes first.
            if scale >= last {
                return Err(Error::NotATime);
            }
            nanos = number.times(scale).and_then(|part| nanos.checked_add(part)).ok_or(Error::TooLarge)?;
            (rest, last) = (next.trim_start(), scale);
        }
        let seconds = u64::try_from(nanos / SECOND).map_err(|_| Error::TooLarge)?;
        Ok(Time(Duration::new(seconds, (nanos % SECOND) as u32)))
    }
}

/// A decimal number: `digits` without the decimal point, and how many of them follow it.
struct Decimal {
    digits: u128,
    decimals: u32,
}

impl Decimal {
    /// Returns the product with an integer, rounded down; `None` when it does not fit.
    fn times(&self, scale: u128) -> Option<u128> {
        Some(self.digits.checked_mul(scale)? / 10u128.checked_pow(self.decimals)?)
    }
}

/// Splits a text into its number and its unit. Spaces around and between them are ignored.
fn split(text: &str) -> Option<(Decimal, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let fraction = fraction.trim_end_matches('0');
    let digits = format!("0{whole}{fraction}").parse().ok()?;
    Some((Decimal { digits, decimals: u32::try_from(fraction.len()).ok()? }, unit.trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_and_decimal_units() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("7b", 7),
            ("3m", 3 << 20),
            ("512KiB", 512 << 10),
            ("64 KiB", 64 << 10),
            ("1.5MiB", 3 << 19),
            ("0.25k", 256),
            (".5k", 512),
            ("1.k", 1024),
            ("2.0", 2),
            ("10GiB", 10 << 30),
            ("1T", 1 << 40),
            ("10MB", 10_000_000),
            ("1TB", 1_000_000_000_000),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for text in ["", "x", "KiB", "1.5", "1.5B", ".k", "1.2.3k", "-1", "+1", "1e3", "1EiB", "1 000", "1s"] {
            assert_eq!(text.parse::<Size>(), Err(Error::NotASize), "{text}");
        }
        for text in ["18446744073709551616", "99999999999G", "16777216TiB"] {
            assert_eq!(text.parse::<Size>(), Err(Error::TooLarge), "{text}");
        }
    }

    #[test]
    fn times_have_units_from_nanoseconds_to_days() {
        for (text, nanos) in [
            ("5ns", 5),
            ("250us", 250_000),
            ("300ms", 300_000_000),
            ("1.5s", 1_500_000_000),
            ("15", 15_000_000_000),
            ("2m", 120_000_000_000),
            ("2min", 120_000_000_000),
            ("0.5h", 1_800_000_000_000),
            ("30d", 30 * 86_400_000_000_000),
            ("0.1ns", 0),
            ("3m40s", 220_000_000_000),
            ("1h01m", 3_660_000_000_000),
            ("1m 1.5s", 61_500_000_000),
            ("3.142 s", 3_142_000_000),
        ] {
            assert_eq!(text.parse(), Ok(Time(Duration::from_nanos(nanos))), "{text}");
        }
        assert_eq!("999999999d".parse(), Ok(Time(Duration::from_secs(999_999_999 * 86_400))));
        for text in ["", "s", "1y", "1S", "-1s", "3 parsecs", "1e9", "1KiB", "40s3m", "1m1m", "1m30", "3m,40s", "1m-1s"]
        {
            assert_eq!(text.parse::<Time>(), Err(Error::NotATime), "{text}");
        }
        assert_eq!("18446744073709551615h".parse::<Time>(), Err(Error::TooLarge));
    }

    #[test]
    fn digits_without_end_are_refused() {
        let nines = "9".repeat(100);
        assert!(nines.parse::<Size>().is_err() && format!("1.{nines}s").parse::<Time>().is_err());
    }
}

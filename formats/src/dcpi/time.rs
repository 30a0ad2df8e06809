//! The time of the samples, from the header line `epoch`.

use crate::date::Date as Epoch;

impl Epoch {
    /// Parses `YYMMDDHHMM` (70..99 is 19xx, 00..69 is 20xx), `YYYYMMDDHHMM` or `YYYYMMDDHHMMSS`.
    /// Returns `None` if the date is not valid.
    pub fn parse(digits: &[u8]) -> Option<Epoch> {
        if !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let number = |from: usize, to: usize| {
            digits[from..to].iter().fold(0u64, |value, digit| value * 10 + u64::from(digit - b'0'))
        };
        let (year, rest) = match digits.len() {
            10 => (number(0, 2) + if number(0, 2) < 70 { 2000 } else { 1900 }, 2),
            12 | 14 => (number(0, 4), 4),
            _ => return None,
        };
        let pair = |index: usize| number(rest + 2 * index, rest + 2 * index + 2);
        let second = if digits.len() == 14 { pair(4) } else { 0 };
        let epoch = Epoch { year, month: pair(0), day: pair(1), hour: pair(2), minute: pair(3), second };
        epoch.is_valid().then_some(epoch)
    }

    /// Returns the ten digits for the header.
    pub fn digits(&self) -> String {
        let Epoch { year, month, day, hour, minute, .. } = self;
        format!("{:02}{month:02}{day:02}{hour:02}{minute:02}", year % 100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_lengths_and_centuries_are_parsed() {
        let shown = |digits: &[u8]| Epoch::parse(digits).map(|epoch| epoch.to_string());
        assert_eq!(shown(b"9611251730").as_deref(), Some("1996-11-25 17:30:00 UTC"));
        assert_eq!(shown(b"6911251730").as_deref(), Some("2069-11-25 17:30:00 UTC"));
        assert_eq!(shown(b"199805191724").as_deref(), Some("1998-05-19 17:24:00 UTC"));
        assert_eq!(shown(b"20000229235960").as_deref(), Some("2000-02-29 23:59:60 UTC"));
        for impossible in
            [&b"9613251730"[..], b"9600251730", b"9902291200", b"96112517", b"", b"961125173x", b"9611252460"]
        {
            assert_eq!(Epoch::parse(impossible), None);
        }
    }

    #[test]
    fn seconds_are_converted_to_digits() {
        assert_eq!(Epoch::from_unix(0).digits(), "7001010000");
        assert_eq!(Epoch::from_unix(848_943_000).digits(), "9611251730");
        assert_eq!(Epoch::from_unix(951_868_799).to_string(), "2000-02-29 23:59:59 UTC");
        assert_eq!(Epoch::from_unix(4_107_542_400).to_string(), "2100-03-01 00:00:00 UTC");
        assert!(Epoch::from_unix(u64::MAX).year > 500_000_000_000);
        let now = Epoch::from_unix(1_795_249_800);
        assert_eq!(Epoch::parse(now.digits().as_bytes()), Some(Epoch { second: 0, ..now }));
    }
}

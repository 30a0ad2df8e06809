//! perf maps: `/tmp/perf-PID.map`, where a process tells what code it makes at run time. Source: Linux,
//! tools/perf/Documentation/jit-interface.txt. A line is `START SIZE NAME`, both numbers hexadecimal, and the name is the rest of the line
//! with whatever it holds. Code that takes the place of other code has the later line.

use std::collections::BTreeSet;

/// One line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// First address.
    pub start: u64,
    /// Bytes of code.
    pub length: u64,
    /// The name.
    pub name: &'a [u8],
}

fn hexadecimal(word: &[u8]) -> Option<u64> {
    let digits = word.strip_prefix(b"0x").unwrap_or(word);
    // `from_str_radix` takes a sign too.
    digits.first().filter(|digit| digit.is_ascii_hexdigit())?;
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

impl Line<'_> {
    /// Reads a line; none when it is not one.
    pub fn read(line: &[u8]) -> Option<Line<'_>> {
        let mut words = line.splitn(3, |byte| *byte == b' ');
        let (start, length) = (hexadecimal(words.next()?)?, hexadecimal(words.next()?)?);
        let name = words.next()?.trim_ascii();
        (length > 0 && !name.is_empty()).then_some(Line { start, length, name })
    }
}

/// Addresses that have no name yet. Ranges are given in order of their strength, the strongest first: each address goes to the first one
/// that holds it. However many ranges overlap, an address is looked at once.
#[derive(Clone, Debug, Default)]
pub struct Unnamed {
    addresses: BTreeSet<u64>,
}

impl Unnamed {
    /// Whether all have a name.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    /// Takes out the addresses that a range holds.
    pub fn take(&mut self, start: u64, length: u64) -> Vec<u64> {
        let Some(last) = length.checked_sub(1).map(|more| start.saturating_add(more)) else { return Vec::new() };
        let inside: Vec<u64> = self.addresses.range(start..=last).copied().collect();
        for address in &inside {
            self.addresses.remove(address);
        }
        inside
    }
}

impl FromIterator<u64> for Unnamed {
    fn from_iter<I: IntoIterator<Item = u64>>(addresses: I) -> Unnamed {
        Unnamed { addresses: addresses.into_iter().collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        let line = |text: &'static str| Line::read(text.as_bytes());
        let made = |start, length, name: &'static str| Some(Line { start, length, name: name.as_bytes() });
        assert_eq!(
            line("7f6578026140 338 JS:*outer /srv/my app.js:2:25"),
            made(0x7f65_7802_6140, 0x338, "JS:*outer /srv/my app.js:2:25")
        );
        assert_eq!(line("0x10 0xFF \tpy::f:/x.py\r"), made(16, 255, "py::f:/x.py"));
        assert_eq!(line("ffffffffffffffff 1 last"), made(u64::MAX, 1, "last"));
        for bad in [
            "",
            " ",
            "10",
            "10 20",
            "10 20 ",
            "10 0 empty",
            "10 20  ",
            "x 20 f",
            "10 +2 f",
            "-1 2 f",
            "11112222333344445 1 f",
            "10 \u{fffd} f",
        ] {
            assert_eq!(line(bad), None, "{bad:?}");
        }
        assert_eq!(Line::read(b"10 20 \xff\x1b[1m").map(|line| line.name), Some(&b"\xff\x1b[1m"[..]));
    }

    #[test]
    fn the_strongest_range_has_an_address() {
        let mut unnamed: Unnamed = [5, 10, 11, 20, u64::MAX].into_iter().collect();
        assert_eq!(unnamed.take(10, 1), [10]);
        assert_eq!(unnamed.take(0, 12), [5, 11]);
        assert!(unnamed.take(0, 12).is_empty());
        assert!(unnamed.take(20, 0).is_empty());
        assert_eq!(unnamed.take(1, u64::MAX), [20, u64::MAX]);
        assert!(unnamed.is_empty());
    }
}

//! Reader of perf maps: files `/tmp/perf-PID.map` in which a process names the code that it
//! generates at run time. Source: Linux, tools/perf/Documentation/jit-interface.txt. A line is
//! `START SIZE NAME` with hexadecimal numbers; the name is the rest of the line, with any bytes.
//! Where code replaces other code, the later line applies.

use std::collections::BTreeSet;

/// One line of a perf map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// First address of the code.
    pub start: u64,
    /// Size of the code in bytes.
    pub length: u64,
    /// Name of the code, any bytes.
    pub name: &'a [u8],
}

fn hexadecimal(field: &[u8]) -> Option<u64> {
    let digits = field.strip_prefix(b"0x").unwrap_or(field);
    // `from_str_radix` accepts a sign, too.
    digits.first().filter(|digit| digit.is_ascii_hexdigit())?;
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

impl Line<'_> {
    /// Parses a line. Returns `None` if it is not one.
    ///
    /// # Examples
    ///
    /// ```
    /// use heaptape_formats::perf_map::Line;
    ///
    /// let line = Line::read(b"7f6578026140 338 JS:*outer app.js:2").unwrap();
    /// assert_eq!((line.start, line.length), (0x7f65_7802_6140, 0x338));
    /// assert_eq!(line.name, b"JS:*outer app.js:2");
    /// assert!(Line::read(b"no address").is_none());
    /// ```
    pub fn read(line: &[u8]) -> Option<Line<'_>> {
        let mut fields = line.splitn(3, |byte| *byte == b' ');
        let (start, length) = (hexadecimal(fields.next()?)?, hexadecimal(fields.next()?)?);
        let name = fields.next()?.trim_ascii();
        (length > 0 && !name.is_empty()).then_some(Line { start, length, name })
    }
}

/// Addresses that have no name yet. Ranges are passed in order of precedence, the first one wins:
/// each address goes to the first range that contains it. However many ranges overlap, an address
/// is looked at once.
#[derive(Clone, Debug, Default)]
pub struct UnnamedAddresses {
    addresses: BTreeSet<u64>,
}

impl UnnamedAddresses {
    /// Returns whether every address has a name.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    /// Removes the addresses inside a range and returns them.
    pub fn take(&mut self, start: u64, length: u64) -> Vec<u64> {
        let Some(last) = length.checked_sub(1).map(|more| start.saturating_add(more)) else { return Vec::new() };
        let inside: Vec<u64> = self.addresses.range(start..=last).copied().collect();
        for address in &inside {
            self.addresses.remove(address);
        }
        inside
    }
}

impl FromIterator<u64> for UnnamedAddresses {
    fn from_iter<I: IntoIterator<Item = u64>>(addresses: I) -> UnnamedAddresses {
        UnnamedAddresses { addresses: addresses.into_iter().collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        let line = |text: &'static str| Line::read(text.as_bytes());
        let parsed = |start, length, name: &'static str| Some(Line { start, length, name: name.as_bytes() });
        assert_eq!(
            line("7f6578026140 338 JS:*outer /srv/my app.js:2:25"),
            parsed(0x7f65_7802_6140, 0x338, "JS:*outer /srv/my app.js:2:25")
        );
        assert_eq!(line("0x10 0xFF \tpy::f:/x.py\r"), parsed(16, 255, "py::f:/x.py"));
        assert_eq!(line("ffffffffffffffff 1 last"), parsed(u64::MAX, 1, "last"));
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
    fn first_range_wins_an_address() {
        let mut unnamed: UnnamedAddresses = [5, 10, 11, 20, u64::MAX].into_iter().collect();
        assert_eq!(unnamed.take(10, 1), [10]);
        assert_eq!(unnamed.take(0, 12), [5, 11]);
        assert!(unnamed.take(0, 12).is_empty());
        assert!(unnamed.take(20, 0).is_empty());
        assert_eq!(unnamed.take(1, u64::MAX), [20, u64::MAX]);
        assert!(unnamed.is_empty());
    }
}

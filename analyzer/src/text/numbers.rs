//! Formats numbers, sizes and times.

/// Formats a number of bytes with three significant digits and a binary unit.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1024.0;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    let decimals = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.decimals$} {}", UNITS[unit])
}

/// Formats a number with thousands separators.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats a number with a noun: `1 block`, `2 blocks`, `2 processes`.
pub fn counted(number: u64, noun: &str) -> String {
    let plural = if noun.ends_with('s') { "es" } else { "s" };
    format!("{} {noun}{}", count(number), if number == 1 { "" } else { plural })
}

/// Formats a duration in nanoseconds with a suitable unit.
pub fn duration(nanos: u64) -> String {
    let value = nanos as f64;
    match nanos {
        0..1_000 => format!("{nanos} ns"),
        1_000..=999_999 => format!("{:.3} us", value / 1e3),
        // A value that rounds up to the next unit is shown in that unit.
        1_000_000..=999_999_499 => format!("{:.3} ms", value / 1e6),
        999_999_500..60_000_000_000 => format!("{:.3} s", value / 1e9),
        60_000_000_000..3_600_000_000_000 => format!("{}m{:02}s", nanos / 60_000_000_000, nanos / 1_000_000_000 % 60),
        _ => format!("{}h{:02}m", nanos / 3_600_000_000_000, nanos / 60_000_000_000 % 60),
    }
}

/// Formats `part` of `whole` as a percentage.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".into() } else { format!("{:.1}%", part as f64 * 100.0 / whole as f64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let shown: Vec<String> = [0, 1023, 1024, 10_240, 123_456, 1 << 20, 1_048_000, u64::MAX].map(bytes).into();
        assert_eq!(shown, ["0 B", "1023 B", "1.00 KiB", "10.0 KiB", "121 KiB", "1.00 MiB", "1.00 MiB", "16.0 EiB"]);
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        let shown = [5, 1_500, 2_000_000, 3_141_592_653, 61_000_000_000, 3_660_000_000_000].map(duration);
        assert_eq!(shown, ["5 ns", "1.500 us", "2.000 ms", "3.142 s", "1m01s", "1h01m"]);
    }
}

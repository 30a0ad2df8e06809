//! Pictures in text: bars, and lines of small columns. On terminals that show them they are made of
//! block elements, an eighth of a character fine; elsewhere of plain letters, and lines of columns
//! are left out.

use crate::text::Style;

/// Columns of a sparkline from low to high.
const COLUMNS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Parts of a bar's last character, in eighths.
const PARTS: [char; 7] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉'];

/// A bar as long as `value` is of `most`; what is there at all is seen.
pub fn bar(style: Style, value: u64, most: u64, width: usize) -> String {
    let eighths = scaled(value, most, width * 8);
    if !style.pictures {
        return "#".repeat(eighths.div_ceil(8));
    }
    let mut bar = "█".repeat(eighths / 8);
    if let Some(&part) = (eighths % 8).checked_sub(1).and_then(|part| PARTS.get(part)) {
        bar.push(part);
    }
    bar
}

/// A bar for `value`, and behind it what leads on to `outer`.
pub fn bars(style: Style, value: u64, outer: u64, most: u64, width: usize) -> String {
    let (full, light) = if style.pictures { ("█", "░") } else { ("#", "-") };
    let (inner, outer) = (scaled(value, most, width), scaled(outer, most, width));
    full.repeat(inner) + &light.repeat(outer.saturating_sub(inner))
}

/// Values as small columns, the greatest of each group of neighbours where they are more than the
/// width; none where only plain letters are shown.
pub fn sparkline(style: Style, values: &[u64], width: usize) -> Option<String> {
    let most = values.iter().copied().max().filter(|&most| most > 0)?;
    if !style.pictures {
        return None;
    }
    let columns = values.len().min(width.max(1));
    let of = |column: usize| {
        let group = &values[column * values.len() / columns..(column + 1) * values.len() / columns];
        let value = group.iter().copied().max().unwrap_or(0);
        // Nothing is a blank, the least that is something the lowest column.
        match scaled(value, most, COLUMNS.len()) {
            0 => ' ',
            level => COLUMNS[level - 1],
        }
    };
    Some((0..columns).map(of).collect())
}

/// `value` of `most` in steps; at least one when there is anything.
fn scaled(value: u64, most: u64, steps: usize) -> usize {
    let share = u128::from(value.min(most)) * steps as u128;
    share.div_ceil(u128::from(most.max(1))) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const FINE: Style = Style { pictures: true, ..Style::PLAIN };

    #[test]
    fn bars_are_as_long_as_their_share() {
        assert_eq!(bar(Style::PLAIN, 50, 100, 10), "#####");
        assert_eq!(bar(Style::PLAIN, 1, 1_000_000, 10), "#");
        assert_eq!(bar(Style::PLAIN, 0, 100, 10), "");
        assert_eq!(bar(FINE, 50, 100, 10), "█████");
        assert_eq!(bar(FINE, 1, 1_000_000, 10), "▏");
        assert_eq!(bar(FINE, u64::MAX, u64::MAX, 3), "███");
        assert_eq!(bars(Style::PLAIN, 2, 4, 8, 8), "##--");
        assert_eq!(bars(FINE, 2, 4, 8, 8), "██░░");
    }

    #[test]
    fn sparklines_keep_the_greatest() {
        assert_eq!(sparkline(FINE, &[0, 1, 4, 8, 2], 80).unwrap(), " ▁▄█▂");
        assert_eq!(sparkline(FINE, &[0, 1, 0, 8, 0, 0], 3).unwrap(), "▁█ ");
        assert_eq!(sparkline(FINE, &[0, 0], 80), None);
        assert_eq!(sparkline(Style::PLAIN, &[1, 2], 80), None);
    }
}

//! Charts in text: bars and sparklines. They are made of Unicode block elements, with a resolution
//! of an eighth of a character, if the terminal shows them. Otherwise bars are made of ASCII
//! characters, and there are no sparklines.

use crate::text::Style;

/// Columns of a sparkline, lowest first.
const COLUMNS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Last characters of a bar, one to seven eighths wide.
const FRACTIONS: [char; 7] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉'];

/// Returns a bar for `value`. A bar for `max` has `width` characters. Only the bar of 0 is empty.
pub fn bar(style: Style, value: u64, max: u64, width: usize) -> String {
    let eighths = scale(value, max, width * 8);
    if !style.block_elements {
        return "#".repeat(eighths.div_ceil(8));
    }
    let mut bar = "█".repeat(eighths / 8);
    if let Some(&fraction) = (eighths % 8).checked_sub(1).and_then(|index| FRACTIONS.get(index)) {
        bar.push(fraction);
    }
    bar
}

/// Returns the two shades of [`bars`].
const fn shades(style: Style) -> (&'static str, &'static str) {
    if style.block_elements { ("█", "░") } else { ("#", "-") }
}

/// Returns the head of a column of [`bars`], if that is not wider than the bars.
pub fn legend(style: Style, value: &str, outer: &str, width: usize) -> String {
    let (full, light) = shades(style);
    let legend = format!("{full} {value} {light} {outer}");
    if legend.chars().count() > width { String::new() } else { legend }
}

/// Returns a bar for `value`, continued in a lighter shade to `outer`.
pub fn bars(style: Style, value: u64, outer: u64, max: u64, width: usize) -> String {
    let (full, light) = shades(style);
    let (inner, outer) = (scale(value, max, width), scale(outer, max, width));
    full.repeat(inner) + &light.repeat(outer.saturating_sub(inner))
}

/// Returns a sparkline of at most `width` columns. If there are more values, each column shows the
/// largest of several neighbors. Returns `None` if the terminal has no block elements, or if all
/// values are 0.
pub fn sparkline(style: Style, values: &[u64], width: usize) -> Option<String> {
    let max = values.iter().copied().max().filter(|&max| max > 0)?;
    if !style.block_elements {
        return None;
    }
    let columns = values.len().min(width.max(1));
    let draw = |column: usize| {
        let group = &values[column * values.len() / columns..(column + 1) * values.len() / columns];
        let value = group.iter().copied().max().unwrap_or(0);
        // Zero is blank. Any other value has at least the lowest column.
        match scale(value, max, COLUMNS.len()) {
            0 => ' ',
            level => COLUMNS[level - 1],
        }
    };
    Some((0..columns).map(draw).collect())
}

/// Scales a value from 0 to `max` to a number of steps, rounded up.
fn scale(value: u64, max: u64, steps: usize) -> usize {
    let product = u128::from(value.min(max)) * steps as u128;
    product.div_ceil(u128::from(max.max(1))) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKS: Style = Style { block_elements: true, ..Style::PLAIN };

    #[test]
    fn bars_are_proportional() {
        assert_eq!(bar(Style::PLAIN, 50, 100, 10), "#####");
        assert_eq!(bar(Style::PLAIN, 1, 1_000_000, 10), "#");
        assert_eq!(bar(Style::PLAIN, 0, 100, 10), "");
        assert_eq!(bar(BLOCKS, 50, 100, 10), "█████");
        assert_eq!(bar(BLOCKS, 1, 1_000_000, 10), "▏");
        assert_eq!(bar(BLOCKS, u64::MAX, u64::MAX, 3), "███");
        assert_eq!(bars(Style::PLAIN, 2, 4, 8, 8), "##--");
        assert_eq!(bars(BLOCKS, 2, 4, 8, 8), "██░░");
    }

    #[test]
    fn sparklines_keep_the_largest_values() {
        assert_eq!(sparkline(BLOCKS, &[0, 1, 4, 8, 2], 80).unwrap(), " ▁▄█▂");
        assert_eq!(sparkline(BLOCKS, &[0, 1, 0, 8, 0, 0], 3).unwrap(), "▁█ ");
        assert_eq!(sparkline(BLOCKS, &[0, 0], 80), None);
        assert_eq!(sparkline(Style::PLAIN, &[1, 2], 80), None);
    }
}

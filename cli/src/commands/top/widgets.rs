//! Tables, wrapped text and boxes, drawn with ratatui's buffer and layout.

use ratatui_core::layout::{Constraint, Layout, Rect};
use ratatui_core::style::{Modifier, Style};
use ratatui_core::terminal::Frame;
use ratatui_core::text::Line;
use std::rc::Rc;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

pub const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
pub const SELECTED: Style = Style::new().add_modifier(Modifier::REVERSED);

/// A table with a title above each column.
pub struct Table<'a> {
    /// Titles with the widths of their columns.
    pub columns: Vec<(Line<'a>, Constraint)>,
    pub rows: Vec<Vec<Line<'a>>>,
    /// The row that is drawn reversed and is always among those that are visible.
    pub selected: usize,
}

impl Table<'_> {
    /// Draws the titles, and as many rows as fit.
    pub fn draw(self, frame: &mut Frame<'_>, area: Rect) {
        let visible = usize::from(area.height.saturating_sub(1));
        let selected = self.selected.min(self.rows.len().saturating_sub(1));
        let first = (selected + 1).saturating_sub(visible);
        let (titles, widths): (Vec<_>, Vec<_>) = self.columns.into_iter().unzip();
        let columns = Layout::horizontal(widths).spacing(1).split(area);
        draw_row(frame, area, 0, &columns, titles, BOLD);
        for (at, row) in self.rows.into_iter().enumerate().skip(first).take(visible) {
            let style = if at == selected { SELECTED } else { Style::new() };
            draw_row(frame, area, at - first + 1, &columns, row, style);
        }
    }
}

fn draw_row(frame: &mut Frame<'_>, area: Rect, at: usize, columns: &Rc<[Rect]>, cells: Vec<Line<'_>>, style: Style) {
    let row = line_of(area, at);
    for (column, cell) in columns.iter().zip(cells) {
        frame.render_widget(cell, Rect { x: column.x, width: column.width, ..row });
    }
    frame.buffer_mut().set_style(row, style);
}

/// Returns the line `at` of an area; it is empty if the area has fewer lines.
fn line_of(area: Rect, at: usize) -> Rect {
    let at = at.min(usize::from(area.height)) as u16;
    Rect { y: area.y + at, height: (area.height - at).min(1), ..area }
}

/// Draws the lines that fit, without the first `skipped` ones.
pub fn lines<'a>(frame: &mut Frame<'_>, area: Rect, lines: impl IntoIterator<Item = &'a str>, skipped: u16) {
    for (at, line) in lines.into_iter().skip(usize::from(skipped)).take(usize::from(area.height)).enumerate() {
        frame.render_widget(Line::from(line), line_of(area, at));
    }
}

/// Breaks a text between words, and words that are longer than a line. Widths are in columns of the
/// terminal.
pub fn wrapped(text: &str, width: u16) -> Vec<String> {
    let width = usize::from(width);
    let (mut lines, mut line, mut used) = (Vec::new(), String::new(), 0);
    for word in text.split_inclusive(' ') {
        if used > 0 && used + word.trim_end().width() > width {
            lines.push(std::mem::take(&mut line));
            used = 0;
        }
        for letter in word.chars() {
            let columns = letter.width().unwrap_or(0);
            if used > 0 && used + columns > width {
                // A space at the end of a line is not carried into the next one.
                if letter == ' ' {
                    continue;
                }
                lines.push(std::mem::take(&mut line));
                used = 0;
            }
            line.push(letter);
            used += columns;
        }
    }
    lines.push(line);
    lines
}

/// Draws a box with a title in its upper edge, and lines in it, above what was drawn before.
pub fn titled_box<'a>(frame: &mut Frame<'_>, area: Rect, title: &str, text: impl IntoIterator<Item = &'a str>) {
    let area = area.intersection(frame.area());
    for position in area.positions() {
        frame.buffer_mut()[position].reset();
    }
    let inner = usize::from(area.width.saturating_sub(2));
    let mut edges = vec![format!("┌{title}{}┐", "─".repeat(inner.saturating_sub(title.width())))];
    edges.resize(usize::from(area.height.saturating_sub(1)).max(1), format!("│{}│", " ".repeat(inner)));
    edges.push(format!("└{}┘", "─".repeat(inner)));
    lines(frame, area, edges.iter().map(String::as_str), 0);
    let inside = Rect {
        x: area.x + area.width.min(1),
        y: area.y + area.height.min(1),
        width: area.width.saturating_sub(2),
        height: area.height.saturating_sub(2),
    };
    lines(frame, inside, text, 0);
}

#[cfg(test)]
mod tests {
    use super::wrapped;

    #[test]
    fn text_is_broken_at_spaces_and_in_long_names() {
        assert_eq!(wrapped("", 10), [""]);
        assert_eq!(wrapped("no break", 8), ["no break"]);
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("std::map<char const*, int>", 12), ["std::map<cha", "r const*, ", "int>"]);
        assert_eq!(wrapped("日本語", 4), ["日本", "語"]);
        // No width is too small.
        assert_eq!(wrapped("日 a", 0), ["日", "a"]);
    }
}

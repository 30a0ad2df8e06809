//! Tables of `ctl` and `top`, laid out as those of the reports.

use comfy_table::{CellAlignment, Table, presets::NOTHING};
use heaptape_analyzer::text::clean;

/// The heading of a column, and on which side its cells are aligned.
#[derive(Clone, Copy)]
pub(crate) enum Column {
    /// Text, aligned to the left.
    Left(&'static str),
    /// Numbers, aligned to the right.
    Right(&'static str),
}

/// Returns the lines of a table, the header first. Control characters in cells are replaced.
pub(crate) fn lines(columns: &[Column], rows: impl Iterator<Item = Vec<String>>) -> Vec<String> {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(columns.iter().map(|(Column::Left(name) | Column::Right(name))| *name));
    for row in rows {
        table.add_row(row.iter().map(|cell| clean(cell)));
    }
    for (index, column) in columns.iter().enumerate() {
        if let (Column::Right(_), Some(found)) = (column, table.column_mut(index)) {
            found.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_cells_stay_in_their_row() {
        let hostile = "a\x1b[2J\u{202e}b\u{2066}\nc\u{200f}\u{9b}1m".to_owned();
        let lines = lines(&[Column::Left("NAME"), Column::Right("N")], [vec![hostile, "7".into()]].into_iter());
        let control = |c: char| {
            c.is_control() || matches!(c, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        };
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(!lines.iter().any(|line| line.chars().any(control)), "{lines:?}");
        assert!(lines[1].ends_with(" 7") && lines[0].ends_with('N'), "{lines:?}");
    }

    #[test]
    fn numbers_are_on_the_right() {
        let rows = [vec!["redis".into(), "7".into()], vec!["x".into(), "1,000".into()]];
        let lines = lines(&[Column::Left("NAME"), Column::Right("LIVE")], rows.into_iter());
        assert_eq!(lines, [" NAME    LIVE", " redis      7", " x      1,000"]);
    }
}

//! Tables in aligned columns or as comma-separated lists, and percentages.

/// Formats the share of `amount` in `total` in percent, with two decimals.
pub(super) fn percent(amount: u64, total: u64) -> String {
    format!("{:.2}%", share(amount, total))
}

/// Returns the share of `amount` in `total` in percent, or 0 if `total` is 0.
pub(super) fn share(amount: u64, total: u64) -> f64 {
    if total == 0 { 0.0 } else { amount as f64 * 100.0 / total as f64 }
}

/// Maximum width to which a column of names is padded.
const MAX_NAME_WIDTH: usize = 60;

/// A table. The last columns are names and left-aligned, the others are numbers and right-aligned.
#[derive(Debug, Default)]
pub(super) struct Table {
    heading: Vec<String>,
    rows: Vec<Vec<String>>,
    names: usize,
}

impl Table {
    /// Creates a table with a heading. The last `names` columns are names.
    pub(super) fn new(heading: Vec<String>, names: usize) -> Table {
        Table { heading, rows: Vec::new(), names }
    }

    /// Appends a row to the table.
    pub(super) fn row(&mut self, row: Vec<String>) {
        self.rows.push(row);
    }

    /// Writes the table in aligned columns, with or without the heading.
    pub(super) fn aligned(&self, with_heading: bool, out: &mut dyn std::io::Write) -> std::io::Result<()> {
        let columns = self.heading.len();
        let widths: Vec<usize> = (0..columns)
            .map(|column| {
                self.all().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
            })
            .collect();
        // A C++ name of 900 characters must not widen all other rows.
        let widths: Vec<usize> = (0..columns)
            .map(
                |column| {
                    if column + self.names >= columns { widths[column].min(MAX_NAME_WIDTH) } else { widths[column] }
                },
            )
            .collect();
        for row in self.all().skip(usize::from(!with_heading)) {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let gap = if column == 0 { "" } else { "  " };
                let cell =
                    if column + self.names >= columns { format!("{cell:<width$}") } else { format!("{cell:>width$}") };
                line += gap;
                line += &cell;
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }

    /// Writes the table as comma-separated lists (RFC 4180), with or without the heading.
    pub(super) fn comma_separated(&self, with_heading: bool, out: &mut dyn std::io::Write) -> std::io::Result<()> {
        for row in self.all().skip(usize::from(!with_heading)) {
            let cells: Vec<String> = row.iter().map(|cell| quoted(cell)).collect();
            writeln!(out, "{}", cells.join(","))?;
        }
        Ok(())
    }

    /// Iterates over the heading and the rows.
    fn all(&self) -> impl Iterator<Item = &Vec<String>> {
        std::iter::once(&self.heading).chain(&self.rows)
    }
}

/// Quotes a cell of a comma-separated list if necessary.
fn quoted(cell: &str) -> String {
    if cell.contains(['"', ',', '\n', '\r']) { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell.to_string() }
}

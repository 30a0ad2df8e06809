//! Columns of numbers and their headings, comma-separated lists.

/// A share in per cent, two digits behind the point; of nothing there is no share.
pub(super) fn percent(part: u64, whole: u64) -> String {
    format!("{:.2}%", share(part, whole))
}

/// A share in per cent.
pub(super) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}

/// Columns of a name that others are aligned with.
const LONGEST_NAME: usize = 60;

/// A table: columns to the right but for the last ones, which are names and stand to the left.
#[derive(Debug, Default)]
pub(super) struct Table {
    heading: Vec<String>,
    rows: Vec<Vec<String>>,
    names: usize,
}

impl Table {
    /// Begins with a heading whose last `names` columns are names.
    pub(super) fn new(heading: Vec<String>, names: usize) -> Table {
        Table { heading, rows: Vec::new(), names }
    }

    pub(super) fn row(&mut self, row: Vec<String>) {
        self.rows.push(row);
    }

    /// The table in aligned columns, the heading left out if not wanted.
    pub(super) fn aligned(&self, with_heading: bool, out: &mut dyn std::io::Write) -> std::io::Result<()> {
        let columns = self.heading.len();
        let widths: Vec<usize> = (0..columns)
            .map(|column| {
                self.all().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
            })
            .collect();
        // A C++ name of 900 characters moves no other row's columns.
        let widths: Vec<usize> = (0..columns)
            .map(
                |column| if column + self.names >= columns { widths[column].min(LONGEST_NAME) } else { widths[column] },
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

    /// The table as comma-separated lists, heading first (RFC 4180).
    pub(super) fn comma_separated(&self, with_heading: bool, out: &mut dyn std::io::Write) -> std::io::Result<()> {
        for row in self.all().skip(usize::from(!with_heading)) {
            let cells: Vec<String> = row.iter().map(|cell| quoted(cell)).collect();
            writeln!(out, "{}", cells.join(","))?;
        }
        Ok(())
    }

    fn all(&self) -> impl Iterator<Item = &Vec<String>> {
        std::iter::once(&self.heading).chain(&self.rows)
    }
}

fn quoted(cell: &str) -> String {
    if cell.contains(['"', ',', '\n', '\r']) { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell.to_string() }
}

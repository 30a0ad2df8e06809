//! `heaptape sizes`: how large blocks are, and what rounding costs.

use crate::print::{Report, print_reports};
use heaptape_analyzer::charts;
use heaptape_analyzer::model::sizes::{self, Sizes};
use heaptape_analyzer::report::{Error, Outcome, Query};
use heaptape_analyzer::text::{Screen, Style, bytes, count, counted, percent};
use serde::Serialize;
use std::io::{self, Write};

#[derive(Serialize)]
struct Row {
    from: u64,
    to: u64,
    allocs: u64,
    bytes: u64,
    live_blocks: u64,
    live_bytes: u64,
    rounding_bytes: u64,
}

#[derive(Serialize)]
struct SizesReport {
    allocs: u64,
    bytes: u64,
    rounding_bytes: u64,
    classes: Vec<Row>,
    common: Vec<Row>,
}

/// Returns the JSON row of a size class from `from` to `to` bytes.
fn row(row: &sizes::Row, (from, to): (u64, u64)) -> Row {
    let &sizes::Row { allocs, bytes, live_blocks, live_bytes, waste } = row;
    Row { from, to, allocs, bytes, live_blocks, live_bytes, rounding_bytes: waste }
}

/// Runs `heaptape sizes`: prints the report on sizes.
///
/// # Errors
/// Returns an error when a recording cannot be read, when it does not hold what the report needs,
/// or when `out` fails.
pub fn run(query: &Query, out: &mut dyn Write, style: Style) -> Result<Outcome, Error> {
    print_reports(query, out, style, true, |process, symbols, progress| {
        let mut model = Sizes::default();
        let outcome = query.scope.replay(process, process.span(&query.scope.range), symbols, progress, &mut model);
        let classes = model.classes.iter().enumerate().filter(|(_, row)| row.allocs > 0);
        let classes: Vec<Row> = classes.map(|(class, counted)| row(counted, sizes::bounds(class))).collect();
        let mut common: Vec<Row> = (0u64..)
            .zip(&model.exact)
            .filter(|(_, row)| row.allocs > 0)
            .map(|(size, counted)| row(counted, (size, size)))
            .collect();
        common.sort_by_key(|row| (std::cmp::Reverse(row.allocs), row.from));
        common.truncate(query.view.top);
        let sum = |of: fn(&Row) -> u64| classes.iter().fold(0u64, |sum, row| sum.saturating_add(of(row)));
        let (allocs, bytes, rounding_bytes) = (sum(|r| r.allocs), sum(|r| r.bytes), sum(|r| r.rounding_bytes));
        Ok((SizesReport { allocs, bytes, rounding_bytes, classes, common }, outcome.missing))
    })
}

impl Report for SizesReport {
    fn print(&self, screen: &mut Screen) -> io::Result<()> {
        let waste = bytes(self.rounding_bytes);
        screen.line(&format!(
            "{} of {}; rounding as glibc does adds {waste} ({})",
            counted(self.allocs, "allocation"),
            bytes(self.bytes),
            percent(self.rounding_bytes, self.bytes),
        ))?;
        let style = screen.style;
        let bar = |value, width| charts::bar(style, value, self.allocs, width);
        let cells = |row: &Row| {
            let size = if row.from == row.to { row.from.to_string() } else { format!("{}-{}", row.from, row.to) };
            let live = bytes(row.live_bytes);
            let cells = vec![size, count(row.allocs), percent(row.allocs, self.allocs), bytes(row.bytes), live];
            (cells, row.allocs)
        };
        let head = ["size", "allocations", "share", "bytes", "live", ""];
        screen.bar_table(&head, self.classes.iter().map(cells).collect(), bar)?;
        screen.line("most common exact sizes")?;
        screen.bar_table(&head, self.common.iter().map(cells).collect(), bar)
    }
}

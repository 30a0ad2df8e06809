//! `heaptape temporary`: blocks that are freed with few or no events between their allocation and
//! their free.

use crate::print::{Report, print_reports};
use heaptape_analyzer::model::temporary::Temporary;
use heaptape_analyzer::report::{Error, Outcome, Query, SiteDescription};
use heaptape_analyzer::text::{Screen, Style, bytes, count, counted, percent};
use serde::Serialize;
use std::io::{self, Write};

#[derive(Serialize)]
struct Row {
    temporary: u64,
    bytes: u64,
    allocs: u64,
    ended_by_resize: u64,
    #[serde(flatten)]
    site: SiteDescription,
}

#[derive(Serialize)]
struct TemporaryReport {
    between: usize,
    allocs: u64,
    temporary: u64,
    bytes: u64,
    sites: Vec<Row>,
}

/// Runs `heaptape temporary`. A block is temporary when it is freed with at most `between` events
/// of the same thread in between.
///
/// # Errors
/// Returns an error when a recording cannot be read, when it does not hold what the report needs,
/// or when `out` fails.
pub fn run(query: &Query, between: usize, out: &mut dyn Write, style: Style) -> Result<Outcome, Error> {
    print_reports(query, out, style, true, |process, symbols, progress| {
        let mut model = Temporary::within(between);
        let outcome = query.scope.replay(process, process.span(&query.scope.range), symbols, progress, &mut model);
        let rows = &model.rows;
        let sum = |of: fn(&heaptape_analyzer::model::temporary::Row) -> u64| {
            rows.iter().fold(0u64, |sum, row| sum.saturating_add(of(row)))
        };
        let (allocs, temporary, bytes) = (sum(|row| row.allocs), sum(|row| row.blocks), sum(|row| row.bytes));
        let rows = rows.iter().zip(0u32..).map(|(row, site)| (site, [row.blocks, row.bytes, row.allocs, row.resized]));
        let groups = query.grouping.group(process, symbols, rows);
        let sites = groups.iter().take(query.view.top).map(|group| {
            let [temporary, bytes, allocs, ended_by_resize, ..] = group.values;
            Row { temporary, bytes, allocs, ended_by_resize, site: group.describe(process, symbols) }
        });
        Ok((TemporaryReport { between, allocs, temporary, bytes, sites: sites.collect() }, outcome.missing))
    })
}

impl Report for TemporaryReport {
    fn print(&self, screen: &mut Screen) -> io::Result<()> {
        let between = if self.between == 0 {
            "nothing".into()
        } else {
            format!("at most {}", counted(self.between as u64, "event"))
        };
        screen.line(&format!(
            "{} of {} ({}) were freed or reallocated with {between} of their thread in between: {}",
            count(self.temporary),
            counted(self.allocs, "allocation"),
            percent(self.temporary, self.allocs),
            bytes(self.bytes),
        ))?;
        let rows: Vec<Vec<String>> = self
            .sites
            .iter()
            .map(|row| {
                let share = percent(row.temporary, row.allocs);
                vec![count(row.temporary), share, bytes(row.bytes), row.site.label.clone()]
            })
            .collect();
        screen.table(&["temporary", "share", "bytes", "site"], &rows)?;
        screen.line("how long blocks lived: heaptape lifetimes; with more events in between: --within N")
    }
}

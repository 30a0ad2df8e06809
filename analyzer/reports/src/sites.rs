//! `heaptape sites`: which call sites allocate how much, and how much of it is freed.

use crate::print::{Report, print_reports};
use heaptape_analyzer::report::functions::allocations;
use heaptape_analyzer::report::segments::{known_since, lower_bound};
use heaptape_analyzer::report::{Error, Outcome, Query, SiteDescription};
use heaptape_analyzer::text::{Screen, Style, bytes, count, counted};
use serde::Serialize;
use std::io::{self, Write};

#[derive(Serialize)]
struct Row {
    bytes: u64,
    allocs: u64,
    frees: u64,
    freed_bytes: u64,
    live_blocks: u64,
    live_bytes: u64,
    #[serde(flatten)]
    site: SiteDescription,
}

#[derive(Serialize)]
struct SitesReport {
    /// Time from which the live blocks are known, if that is not the start of the process.
    live_since_unix_ns: Option<u64>,
    stacks: u64,
    sites: Vec<Row>,
}

/// Runs `heaptape sites`. With a time range, it reports what was allocated in the range, and how
/// much of that was freed in it.
///
/// # Errors
/// Returns an error when a recording cannot be read, when it does not hold what the report needs,
/// or when `out` fails.
pub fn run(query: &Query, out: &mut dyn Write, style: Style) -> Result<Outcome, Error> {
    print_reports(query, out, style, !query.scope.is_all(), |process, symbols, progress| {
        let sums = allocations(&query.scope, process, symbols, progress)?;
        let rows = sums.sites.iter().map(|row| (row.site, [row.bytes, row.allocs, row.frees, row.freed_bytes]));
        let groups = query.grouping.group_listed(process, symbols, rows, |[_, allocs, ..]| *allocs > 0);
        let sites = groups.iter().take(query.view.top).map(|group| {
            let [bytes, allocs, frees, freed_bytes, ..] = group.values;
            Row {
                bytes,
                allocs,
                frees,
                freed_bytes,
                live_blocks: allocs.saturating_sub(frees),
                live_bytes: bytes.saturating_sub(freed_bytes),
                site: group.describe(process, symbols),
            }
        });
        let live_since_unix_ns = process.live_since_unix_ns();
        let report = SitesReport { live_since_unix_ns, sites: sites.collect(), stacks: sums.sites.len() as u64 };
        Ok((report, sums.missing))
    })
}

impl Report for SitesReport {
    fn print(&self, screen: &mut Screen) -> io::Result<()> {
        screen
            .line(&format!("{} allocated; by the innermost frames of the program:", counted(self.stacks, "stack")))?;
        let rows: Vec<Vec<String>> = self
            .sites
            .iter()
            .map(|row| {
                let live = lower_bound(self.live_since_unix_ns, bytes(row.live_bytes));
                vec![bytes(row.bytes), count(row.allocs), count(row.frees), live, row.site.label.clone()]
            })
            .collect();
        screen.table(&["allocated", "allocations", "frees", "live", "site"], &rows)?;
        known_since(self.live_since_unix_ns).iter().try_for_each(|note| screen.line(note))
    }
}

//! `heaptape fragmentation`: how live blocks are spread over pages at a point in time (`--until`,
//! or the end), and which call sites keep nearly empty pages.

use crate::print::{Report, print_reports};
use heaptape_analyzer::model::fragments::Fragments;
use heaptape_analyzer::report::{Error, Outcome, Query, SiteDescription, Unanswerable};
use heaptape_analyzer::text::{Screen, Style, bytes, count, counted, percent};
use serde::Serialize;
use std::io::{self, Write};

#[derive(Serialize)]
struct Row {
    pinned_bytes: u64,
    blocks: u64,
    live_bytes: u64,
    #[serde(flatten)]
    site: SiteDescription,
}

#[derive(Serialize)]
struct FragmentationReport {
    live_blocks: u64,
    live_bytes: u64,
    page_bytes: u64,
    pages: u64,
    nearly_empty_pages: u64,
    largest_gap: u64,
    /// Number of pages by how full they are: one class for each tenth, full pages last.
    pages_by_tenth: Vec<u64>,
    sites: Vec<Row>,
}

/// Page size in bytes for recordings that do not contain it.
const PAGE: u64 = 4096;

/// Runs `heaptape fragmentation`: prints the report on pages.
///
/// # Errors
/// Returns an error when a recording cannot be read, when it does not hold what the report needs,
/// or when `out` fails.
pub fn run(query: &Query, out: &mut dyn Write, style: Style) -> Result<Outcome, Error> {
    print_reports(query, out, style, true, |process, symbols, progress| {
        if process.tape.is_sampled() {
            return Err(Unanswerable::Sampled.into());
        }
        let span = process.span(&query.scope.range).with_history();
        let outcome = query.scope.replay(process, span, symbols, progress, &mut ());
        let page = match u64::from(process.tape.process.page_size) {
            page if page.is_power_of_two() && page >= 512 => page,
            _ => PAGE,
        };
        let found = Fragments::of(&outcome.live, page);
        let rows = found.sites.iter().zip(0u32..).map(|(row, site)| (site, [row.bytes, row.blocks, row.live]));
        let groups = query.grouping.group(process, symbols, rows);
        let sites = groups.iter().take(query.view.top).map(|group| {
            let [pinned_bytes, blocks, live_bytes, ..] = group.values;
            Row { pinned_bytes, blocks, live_bytes, site: group.describe(process, symbols) }
        });
        let report = FragmentationReport {
            live_blocks: found.blocks,
            live_bytes: found.live,
            page_bytes: page,
            pages: found.pages,
            nearly_empty_pages: found.nearly_empty,
            largest_gap: found.largest_gap,
            pages_by_tenth: found.tenths.to_vec(),
            sites: sites.collect(),
        };
        Ok((report, outcome.missing))
    })
}

impl Report for FragmentationReport {
    fn print(&self, screen: &mut Screen) -> io::Result<()> {
        let held = self.pages.saturating_mul(self.page_bytes);
        screen.line(&format!(
            "{} in {} on {} ({}), which are {} full; {} are less than a quarter full",
            bytes(self.live_bytes),
            counted(self.live_blocks, "block"),
            counted(self.pages, "page"),
            bytes(held),
            percent(self.live_bytes.min(held), held),
            counted(self.nearly_empty_pages, "page"),
        ))?;
        let most = self.pages_by_tenth.iter().copied().max().unwrap_or(0).max(1);
        let rows: Vec<Vec<String>> = self
            .pages_by_tenth
            .iter()
            .enumerate()
            .filter(|(_, pages)| **pages > 0)
            .map(|(tenth, &pages)| {
                let full = if tenth == 10 { "100%".into() } else { format!("{}-{}%", tenth * 10, tenth * 10 + 10) };
                let bar = "#".repeat((pages as f64 * 40.0 / most as f64).ceil() as usize);
                vec![full, count(pages), percent(pages, self.pages), bar]
            })
            .collect();
        screen.table(&["full", "pages", "share", ""], &rows)?;
        if self.sites.is_empty() {
            return Ok(());
        }
        screen.line("call sites that keep nearly empty pages:")?;
        let rows: Vec<Vec<String>> = self
            .sites
            .iter()
            .map(|row| vec![bytes(row.pinned_bytes), count(row.blocks), bytes(row.live_bytes), row.site.label.clone()])
            .collect();
        screen.table(&["keeps", "blocks", "live", "allocated at"], &rows)
    }
}

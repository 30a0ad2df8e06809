//! `heaptape free-sites`: where blocks are freed, and where they were allocated.

use crate::print::{Report, print_reports};
use heaptape_analyzer::model::free_sites::FreeSites;
use heaptape_analyzer::report::frames::{SourceLines, call_site, call_site_line};
use heaptape_analyzer::report::{Error, Outcome, Query, SiteDescription, Unanswerable};
use heaptape_analyzer::text::{Screen, Style, bytes, count};
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::io::{self, Write};

#[derive(Serialize)]
struct Row {
    blocks: u64,
    bytes: u64,
    blocks_of_other_threads: u64,
    /// The call site that allocated most of the blocks.
    mostly_from: String,
    /// Number of the blocks that this site allocated.
    mostly_blocks: u64,
    #[serde(flatten)]
    site: SiteDescription,
}

#[derive(Serialize)]
struct FreeSitesReport {
    unknown: u64,
    sites: Vec<Row>,
}

/// Runs `heaptape free-sites`: prints the report on frees.
///
/// # Errors
/// Returns an error when a recording cannot be read, when frees were recorded without stacks, or
/// when `out` fails.
pub fn run(query: &Query, out: &mut dyn Write, style: Style) -> Result<Outcome, Error> {
    print_reports(query, out, style, true, |process, symbols, progress| {
        if !process.tape.process.free_sites {
            return Err(Unanswerable::NoFreeStacks.into());
        }
        let mut model = FreeSites::default();
        let outcome = query.scope.replay(process, process.span(&query.scope.range), symbols, progress, &mut model);
        let mut sums: FxHashMap<u32, [u64; 3]> = FxHashMap::default();
        for (&(at, _), freed) in &model.pairs {
            let sum = sums.entry(at).or_default();
            *sum = [sum[0] + freed.blocks, sum[1].saturating_add(freed.bytes), sum[2] + freed.others];
        }
        let mut rows: Vec<(u32, [u64; 3])> = sums.into_iter().collect();
        rows.sort_unstable();
        let groups = query.grouping.group(process, symbols, rows.into_iter());
        let sites: Vec<Row> = groups
            .iter()
            .take(query.view.top)
            .map(|group| {
                let [blocks, bytes, blocks_of_other_threads, ..] = group.values;
                let from = model.pairs.iter().filter(|((at, _), _)| *at == group.site);
                let most = from.map(|((_, from), freed)| (freed.blocks, std::cmp::Reverse(*from))).max();
                let (mostly_blocks, from) = most.map_or((0, 0), |(blocks, from)| (blocks, from.0));
                let from = call_site(symbols, process.stacks(), from, 2);
                let mostly_from = call_site_line(&from, &SourceLines::default(), symbols.names());
                let site = group.describe(process, symbols);
                Row { blocks, bytes, blocks_of_other_threads, mostly_from, mostly_blocks, site }
            })
            .collect();
        Ok((FreeSitesReport { unknown: model.unknown, sites }, outcome.missing))
    })
}

impl Report for FreeSitesReport {
    fn print(&self, screen: &mut Screen) -> io::Result<()> {
        let rows: Vec<Vec<String>> = self
            .sites
            .iter()
            .map(|row| {
                let what = format!("{}, mostly from {}", row.site.label, row.mostly_from);
                vec![count(row.blocks), bytes(row.bytes), count(row.blocks_of_other_threads), what]
            })
            .collect();
        screen.table(&["freed", "bytes", "of other threads", "freed in"], &rows)?;
        match self.unknown {
            0 => Ok(()),
            unknown => screen.line(&format!("{} frees have no stack", count(unknown))),
        }
    }
}

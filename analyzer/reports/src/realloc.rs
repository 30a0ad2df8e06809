//! `heaptape realloc`: what reallocations cost, and which call sites reallocate the same block
//! again and again.

use crate::print::{Report, print_reports};
use heaptape_analyzer::model::resizes::Resizes;
use heaptape_analyzer::report::{Error, Outcome, Query, SiteDescription};
use heaptape_analyzer::text::{Screen, Style, bytes, count, counted, percent};
use serde::Serialize;
use std::io::{self, Write};

#[derive(Serialize)]
struct Row {
    resizes: u64,
    moved: u64,
    copied_bytes: u64,
    grown: u64,
    shrunk: u64,
    longest_chain: u64,
    #[serde(flatten)]
    site: SiteDescription,
}

#[derive(Serialize)]
struct Chain {
    resizes_from: u64,
    blocks: u64,
}

#[derive(Serialize)]
struct ReallocReport {
    resizes: u64,
    moved: u64,
    copied_bytes: u64,
    unknown: u64,
    chains: Vec<Chain>,
    sites: Vec<Row>,
}

/// Runs `heaptape realloc`: prints the report on reallocations.
///
/// # Errors
/// Returns an error when a recording cannot be read, when it does not hold what the report needs,
/// or when `out` fails.
pub fn run(query: &Query, out: &mut dyn Write, style: Style) -> Result<Outcome, Error> {
    print_reports(query, out, style, true, |process, symbols, progress| {
        let mut model = Resizes::default();
        let outcome = query.scope.replay(process, process.span(&query.scope.range), symbols, progress, &mut model);
        model.finish(&outcome.live);
        let rows = model.rows.iter().zip(0u32..);
        let rows =
            rows.map(|(row, site)| (site, [row.resizes, row.moved, row.copied, row.grown, row.shrunk, row.longest]));
        let groups = query.grouping.group(process, symbols, rows);
        let sites = groups.iter().take(query.view.top).map(|group| {
            let ([resizes, moved, copied_bytes, grown, shrunk, _], [.., longest_chain]) = (group.values, group.max);
            Row { resizes, moved, copied_bytes, grown, shrunk, longest_chain, site: group.describe(process, symbols) }
        });
        let sum = |of: fn(&heaptape_analyzer::model::resizes::Row) -> u64| {
            model.rows.iter().map(of).fold(0, u64::saturating_add)
        };
        let chains = model.chains.iter().enumerate().filter(|(_, blocks)| **blocks > 0);
        let report = ReallocReport {
            resizes: sum(|row| row.resizes),
            moved: sum(|row| row.moved),
            copied_bytes: sum(|row| row.copied),
            unknown: sum(|row| row.unknown),
            chains: chains.map(|(class, &blocks)| Chain { resizes_from: 1 << class, blocks }).collect(),
            sites: sites.collect(),
        };
        Ok((report, outcome.missing))
    })
}

impl Report for ReallocReport {
    fn print(&self, screen: &mut Screen) -> io::Result<()> {
        if self.resizes == 0 {
            return screen.line("0 resizes");
        }
        screen.line(&format!(
            "{}; {} moved the block ({}) and copied {}",
            counted(self.resizes, "resize"),
            count(self.moved),
            percent(self.moved, self.resizes),
            bytes(self.copied_bytes),
        ))?;
        let chains: Vec<String> = self
            .chains
            .iter()
            .map(|chain| format!("{} of {}+", counted(chain.blocks, "block"), count(chain.resizes_from)))
            .collect();
        if !chains.is_empty() {
            screen.line(&format!("chains of resizes: {}", chains.join(", ")))?;
        }
        let rows: Vec<Vec<String>> = self
            .sites
            .iter()
            .map(|row| {
                let moved = percent(row.moved, row.resizes);
                let (copied, longest) = (bytes(row.copied_bytes), count(row.longest_chain));
                vec![count(row.resizes), moved, copied, longest, row.site.label.clone()]
            })
            .collect();
        screen.table(&["resizes", "moved", "copied", "longest chain", "site"], &rows)
    }
}

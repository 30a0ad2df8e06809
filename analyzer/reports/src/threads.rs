//! `heaptape threads`: what each thread allocated and freed.

use crate::print::{Report, print_reports};
use heaptape_analyzer::Accounting;
use heaptape_analyzer::model::threads::Threads;
use heaptape_analyzer::report::{Error, Outcome, PointInTime, Query};
use heaptape_analyzer::text::{Screen, Style, bytes, count};
use heaptape_formats::tape::Totals;
use serde::Serialize;
use std::io::{self, Write};

#[derive(Serialize)]
struct Row {
    number: u32,
    tid: Option<u32>,
    name: String,
    allocs: u64,
    resizes: u64,
    frees: u64,
    frees_of_others: u64,
    unknown_frees: u64,
    bytes: u64,
    live_blocks: u64,
    live_bytes: u64,
    emitted_events: Option<u64>,
    lost_events: Option<u64>,
    first: PointInTime,
    last: PointInTime,
}

#[derive(Serialize)]
struct ThreadsReport {
    threads: Vec<Row>,
}

/// Runs `heaptape threads`: prints the report on threads.
///
/// # Errors
/// Returns an error when a recording cannot be read, when it does not hold what the report needs,
/// or when `out` fails.
pub fn run(query: &Query, out: &mut dyn Write, style: Style) -> Result<Outcome, Error> {
    print_reports(query, out, style, true, |process, symbols, progress| {
        let mut model = Threads::default();
        let outcome = query.scope.replay(process, process.span(&query.scope.range), symbols, progress, &mut model);
        let missing = [&process.missing[..], &outcome.missing[..]].concat();
        let recorded = query.scope.range.is_all().then_some(&outcome.recorded);
        let accounting = Accounting::of(process, &Totals::default(), &missing, recorded);
        let shown = if query.view.json { usize::MAX } else { query.view.top };
        let threads = model
            .largest_first()
            .into_iter()
            .take(shown)
            .map(|(number, row)| {
                let (tid, name) = process.thread(number);
                let account = accounting.thread(number);
                Row {
                    number,
                    tid,
                    name,
                    allocs: row.allocs,
                    resizes: row.resizes,
                    frees: row.frees,
                    frees_of_others: row.frees_of_others,
                    unknown_frees: row.unknown_frees,
                    bytes: row.bytes,
                    live_blocks: row.live_blocks,
                    live_bytes: row.live_bytes,
                    emitted_events: account.map(|account| account.emitted),
                    lost_events: account.map(|account| account.lost),
                    first: PointInTime::at(process, row.first_tick, None),
                    last: PointInTime::at(process, row.last_tick, None),
                }
            })
            .collect();
        Ok((ThreadsReport { threads }, outcome.missing))
    })
}

impl Report for ThreadsReport {
    fn print(&self, screen: &mut Screen) -> io::Result<()> {
        // What no thread did needs no column.
        let crossed = self.threads.iter().any(|row| row.frees_of_others > 0);
        let lost = self.threads.iter().any(|row| row.lost_events != Some(0));
        let mut head = vec!["thread", "allocated", "allocs", "resizes", "frees"];
        head.extend(crossed.then_some("cross-thread"));
        head.push("live");
        head.extend(lost.then_some("lost"));
        head.push("name");
        let row = |row: &Row| {
            let tid = row.tid.map_or_else(String::new, |tid| format!(" (tid {tid})"));
            let mut cells = vec![row.number.to_string(), bytes(row.bytes)];
            cells.extend([row.allocs, row.resizes, row.frees].map(count));
            cells.extend(crossed.then(|| count(row.frees_of_others)));
            cells.push(bytes(row.live_bytes));
            cells.extend(lost.then(|| row.lost_events.map_or_else(|| "-".into(), count)));
            cells.push(format!("{}{tid}", row.name));
            cells
        };
        let rows: Vec<Vec<String>> = self.threads.iter().map(row).collect();
        screen.table(&head, &rows)?;
        match crossed {
            true => screen.line("cross-thread: frees of blocks that another thread allocated; live: what the thread allocated and nobody freed"),
            false => Ok(()),
        }
    }
}

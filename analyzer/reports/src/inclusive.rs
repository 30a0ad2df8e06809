//! `heaptape sites --inclusive`: what each function allocates, with the functions that it calls.

use crate::print::{Report, print_reports};
use heaptape_analyzer::report::functions::{Amounts, SummedFunctions, allocations, function_sums};
use heaptape_analyzer::report::{Error, Outcome, Query};
use heaptape_analyzer::text::{Screen, Style, bytes, count, percent};
use serde::Serialize;
use std::cmp::Reverse;
use std::io::{self, Write};

#[derive(Serialize)]
struct Row {
    function: String,
    file: Option<String>,
    module: Option<String>,
    total: Amounts,
    own: Amounts,
    #[serde(skip)]
    label: String,
}

#[derive(Serialize)]
struct InclusiveReport {
    all: Amounts,
    functions: Vec<Row>,
}

/// Runs `heaptape sites --inclusive`: prints functions by what they and their callees allocate.
///
/// # Errors
/// Returns an error when a recording cannot be read, when it does not hold what the report needs,
/// or when `out` fails.
pub fn run(query: &Query, out: &mut dyn Write, style: Style) -> Result<Outcome, Error> {
    print_reports(query, out, style, !query.scope.is_all(), |process, symbols, progress| {
        let sums = allocations(&query.scope, process, symbols, progress)?;
        let SummedFunctions { functions, sums: of_functions, all } = function_sums(process, &sums, symbols);
        let mut rows: Vec<_> = functions.all.iter().zip(of_functions).filter(|(_, sums)| sums.is_program).collect();
        rows.sort_by_key(|(function, sums)| {
            (Reverse(sums.total.bytes), Reverse(sums.own.bytes), function.title.clone())
        });
        let functions = rows.into_iter().take(query.view.top).map(|(function, sums)| Row {
            function: function.title.clone(),
            file: function.frame.file.clone(),
            module: Some(function.frame.module.to_string()).filter(|module| !module.is_empty()),
            total: sums.total,
            own: sums.own,
            label: function.label(),
        });
        Ok((InclusiveReport { all, functions: functions.collect() }, sums.missing))
    })
}

impl Report for InclusiveReport {
    fn print(&self, screen: &mut Screen) -> io::Result<()> {
        screen.line("total: with the functions that it calls; own: where it is blamed for the allocation")?;
        let row = |row: &Row| {
            let Row { total, own, label, .. } = row;
            let own_share = percent(own.bytes, self.all.bytes);
            let (size, share) = (bytes(total.bytes), percent(total.bytes, self.all.bytes));
            let (live, label) = (bytes(total.live_bytes), label.clone());
            vec![size, share, bytes(own.bytes), own_share, count(total.allocs), live, label]
        };
        let header = ["total", "", "own", "", "allocations", "live", "function"];
        screen.table(&header, &self.functions.iter().map(row).collect::<Vec<_>>())
    }
}

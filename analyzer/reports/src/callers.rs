//! `heaptape callers` and `heaptape callees`: which functions call a function, and which it calls,
//! with what is allocated below each of these calls.

use crate::print::{Report, print_functions, print_reports};
use heaptape_analyzer::report::functions::{Amounts, Functions, Stack, allocations, for_each_stack};
use heaptape_analyzer::report::{Error, Outcome, Query, Unanswerable};
use heaptape_analyzer::similar::hint;
use heaptape_analyzer::text::{Screen, Style, bytes, clean, count, counted, percent};
use heaptape_formats::tape::Entry;
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::io::{self, Write};

/// Which neighbors of a function are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbors {
    /// The functions that call it.
    Callers,
    /// The functions that it calls.
    Callees,
}

/// Maximum number of functions whose names match and that are listed.
const LISTED: usize = 8;
/// Name of the outer end of a stack among the callers.
const NOBODY: &str = "(nothing: the stack begins here)";
/// Name of the inner end of a stack among the callees.
const ITSELF: &str = "(itself)";

#[derive(Serialize)]
struct Row {
    function: String,
    #[serde(flatten)]
    amounts: Amounts,
    #[serde(skip)]
    label: String,
}

#[derive(Serialize)]
struct FunctionReport {
    function: String,
    file: Option<String>,
    total: Amounts,
    #[serde(skip)]
    label: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    callers: Option<Vec<Row>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    callees: Option<Vec<Row>>,
}

#[derive(Serialize)]
struct NeighborsReport {
    all: Amounts,
    functions: Vec<FunctionReport>,
    /// Number of functions that match and are not in `functions`.
    more_functions: u64,
    #[serde(skip)]
    top: usize,
}

/// Names of functions that were searched, to say so if none of them exists.
#[derive(Default)]
pub(super) struct Search {
    names: BTreeSet<String>,
    /// Whether a function was found.
    pub is_found: bool,
}

impl Search {
    /// Returns the functions that match in a process.
    pub(super) fn find(&mut self, functions: &Functions, name: &str) -> Vec<usize> {
        let found = functions.matching(name);
        self.is_found |= !found.is_empty();
        if !self.is_found {
            self.names.extend(functions.all.iter().map(|function| function.title.clone()));
        }
        found
    }

    /// Prints what a report wrote if a function was found.
    ///
    /// # Errors
    /// Returns [`Error::Unanswerable`] with similar names if there is no such function, and the
    /// error of the output.
    pub(super) fn print(&self, name: &str, text: &[u8], out: &mut dyn Write) -> Result<(), Error> {
        if self.is_found {
            return Ok(out.write_all(text)?);
        }
        let is_allocator = (0..=u8::MAX).filter_map(Entry::from_number).any(|entry| entry.name() == name);
        let hint = match is_allocator {
            true => ": stacks end at the function that calls it (heaptape sites)".to_owned(),
            false => hint(name, self.names.iter().map(String::as_str)),
        };
        let (name, hint) = (clean(name).into_owned(), clean(&hint).into_owned());
        Err(Unanswerable::UnknownFunction { name, hint }.into())
    }
}

/// Amounts below a function, by the function next to it; `None` for the end of the stack.
type ByNeighbor = FxHashMap<Option<usize>, Amounts>;

#[derive(Default)]
struct Calls {
    total: FxHashMap<usize, Amounts>,
    neighbors: FxHashMap<usize, ByNeighbor>,
    all: Amounts,
}

impl Calls {
    /// Adds a stack. A call that a recursion repeats counts once.
    fn add(&mut self, stack: &Stack, which: Neighbors) {
        self.all.add(stack.amounts);
        let mut seen: FxHashSet<(usize, Option<usize>)> = FxHashSet::default();
        let mut passed: FxHashSet<usize> = FxHashSet::default();
        for (position, step) in stack.steps.iter().enumerate() {
            let neighbor = match which {
                Neighbors::Callers => stack.steps.get(position + 1),
                Neighbors::Callees => position.checked_sub(1).map(|inner| &stack.steps[inner]),
            };
            let neighbor = neighbor.map(|step| step.function);
            if passed.insert(step.function) {
                self.total.entry(step.function).or_default().add(stack.amounts);
            }
            if seen.insert((step.function, neighbor)) {
                let by_neighbor = self.neighbors.entry(step.function).or_default();
                by_neighbor.entry(neighbor).or_default().add(stack.amounts);
            }
        }
    }
}

/// Runs `heaptape callers` or `heaptape callees` for the functions that match `name`.
///
/// # Errors
/// Returns an error when a recording cannot be read, when no stack passes through a function of
/// this name, or when `out` fails.
pub fn run(query: &Query, name: &str, which: Neighbors, out: &mut dyn Write, style: Style) -> Result<Outcome, Error> {
    let (mut search, mut text) = (Search::default(), Vec::new());
    let outcome = print_reports(query, &mut text, style, !query.scope.is_all(), |process, symbols, progress| {
        let sums = allocations(&query.scope, process, symbols, progress)?;
        let mut calls = Calls::default();
        let functions = for_each_stack(process, &sums, symbols, &mut |stack| calls.add(stack, which));
        let mut found = search.find(&functions, name);
        let bytes = |index: &usize| calls.total.get(index).map_or(0, |total| total.bytes);
        found.sort_by_key(|index| (Reverse(bytes(index)), *index));
        let more_functions = found.len().saturating_sub(LISTED) as u64;
        let listed = found.into_iter().take(LISTED).map(|index| report(&functions, &calls, index, which));
        Ok((
            NeighborsReport { all: calls.all, functions: listed.collect(), more_functions, top: query.view.top },
            sums.missing,
        ))
    })?;
    search.print(name, &text, out)?;
    Ok(outcome)
}

fn report(functions: &Functions, calls: &Calls, index: usize, which: Neighbors) -> FunctionReport {
    let function = &functions.all[index];
    let end = if which == Neighbors::Callers { NOBODY } else { ITSELF };
    let row = |(neighbor, amounts): (&Option<usize>, &Amounts)| {
        let neighbor = neighbor.map(|index| &functions.all[index]);
        let function = neighbor.map_or_else(|| end.to_string(), |function| function.title.clone());
        Row { function, amounts: *amounts, label: neighbor.map_or_else(|| end.into(), |function| function.label()) }
    };
    let mut rows: Vec<Row> = calls.neighbors.get(&index).into_iter().flatten().map(row).collect();
    rows.sort_by(|a, b| b.amounts.bytes.cmp(&a.amounts.bytes).then_with(|| a.function.cmp(&b.function)));
    let (callers, callees) = match which {
        Neighbors::Callers => (Some(rows), None),
        Neighbors::Callees => (None, Some(rows)),
    };
    FunctionReport {
        function: function.title.clone(),
        file: function.frame.file.clone(),
        total: calls.total.get(&index).copied().unwrap_or_default(),
        label: function.label(),
        callers,
        callees,
    }
}

impl Report for NeighborsReport {
    fn print(&self, screen: &mut Screen) -> io::Result<()> {
        print_functions(screen, &self.functions, self.more_functions, |function, screen| {
            let FunctionReport { total, label, callers, callees, .. } = function;
            let share = percent(total.bytes, self.all.bytes);
            let (size, allocs) = (bytes(total.bytes), counted(total.allocs, "allocation"));
            screen
                .heading(&format!("{label}: {size} in {allocs}, {share} of all; {} live", bytes(total.live_bytes)))?;
            let (rows, header) = match (callers, callees) {
                (Some(rows), _) => (rows, "called by"),
                (_, rows) => (rows.as_ref().unwrap_or(const { &Vec::new() }), "calls"),
            };
            let row = |row: &Row| {
                let Amounts { bytes: size, allocs, live_bytes, .. } = row.amounts;
                vec![bytes(size), percent(size, total.bytes), count(allocs), bytes(live_bytes), row.label.clone()]
            };
            let shown: Vec<_> = rows.iter().take(self.top).map(row).collect();
            screen.table(&["allocated", "", "allocations", "live", header], &shown)?;
            if rows.len() > shown.len() {
                screen.line(&format!("and {} more (--top N)", count((rows.len() - shown.len()) as u64)))?;
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use heaptape_analyzer::Role;
    use heaptape_analyzer::report::functions::Step;

    #[test]
    fn recursion_counts_once() {
        let step = |function| Step { function, line: 1, role: Role::Program };
        let amounts = Amounts { bytes: 100, allocs: 1, live_bytes: 0, live_blocks: 0 };
        // 2 calls 1, which calls itself twice, which calls 0.
        let stack = Stack { steps: [0, 1, 1, 1, 2].map(step).into(), blamed: Some(0), amounts };
        for (which, neighbors) in [(Neighbors::Callers, [Some(1), Some(2)]), (Neighbors::Callees, [Some(0), Some(1)])] {
            let mut calls = Calls::default();
            calls.add(&stack, which);
            calls.add(&stack, which);
            assert_eq!(calls.total[&1].bytes, 200);
            let mut found: Vec<_> = calls.neighbors[&1].iter().map(|(neighbor, sum)| (*neighbor, sum.bytes)).collect();
            found.sort_unstable();
            assert_eq!(found, neighbors.map(|neighbor| (neighbor, 200)));
        }
    }
}

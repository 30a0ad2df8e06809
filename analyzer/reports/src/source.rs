//! `heaptape source`: the source of a function, with what each line allocates.

use crate::callers::Search;
use crate::print::{Report, print_functions, print_reports};
use heaptape_analyzer::Process;
use heaptape_analyzer::report::functions::{Amounts, Functions, Stack, allocations, for_each_stack};
use heaptape_analyzer::report::{Error, Outcome, Query, View};
use heaptape_analyzer::source_files::{SourceFile, read};
use heaptape_analyzer::text::{Screen, Style, bytes, count, counted, percent};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;

/// Options of `heaptape source`.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The function, by its name or a pattern.
    pub function: String,
    /// Folders in which source files are searched that are not at their own paths.
    pub roots: Vec<PathBuf>,
}

/// Maximum number of functions whose names match and that are listed.
const LISTED: usize = 4;
/// Number of lines around a line that allocates that are listed with it.
const CONTEXT: u32 = 4;
/// Maximum size of a source file that is read, in bytes.
const MAX_SOURCE: u64 = 64 << 20;

/// What one line of a function allocates.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct LineSums {
    line: u32,
    /// With what the functions that it calls allocate.
    total: Amounts,
    /// Where the line is blamed.
    own: Amounts,
}

#[derive(Serialize)]
struct FunctionSource {
    function: String,
    /// Path of the source file in the debug information.
    file: Option<String>,
    total: Amounts,
    lines: Vec<LineSums>,
    /// Why the text of the lines cannot be shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    unreadable: Option<String>,
    /// Whether the file was changed after the recording began.
    is_newer: bool,
    #[serde(skip)]
    text: Vec<String>,
}

#[derive(Serialize)]
struct SourceReport {
    functions: Vec<FunctionSource>,
    /// Number of functions that match and are not in `functions`.
    more_functions: u64,
}

/// What the lines of all functions allocate.
#[derive(Default)]
struct Lines {
    total: FxHashMap<usize, Amounts>,
    lines: FxHashMap<usize, BTreeMap<u32, LineSums>>,
}

impl Lines {
    /// Adds a stack. A line that a recursion repeats counts once.
    fn add(&mut self, stack: &Stack) {
        let mut seen: FxHashSet<(usize, Option<u32>)> = FxHashSet::default();
        for (position, step) in stack.steps.iter().enumerate() {
            if seen.insert((step.function, None)) {
                self.total.entry(step.function).or_default().add(stack.amounts);
            }
            let lines = self.lines.entry(step.function).or_default();
            let row = lines.entry(step.line).or_insert_with(|| LineSums { line: step.line, ..LineSums::default() });
            if seen.insert((step.function, Some(step.line))) {
                row.total.add(stack.amounts);
            }
            if stack.blamed == Some(position) {
                row.own.add(stack.amounts);
            }
        }
    }
}

/// Runs `heaptape source`: prints the lines of the functions that match, with what they allocate.
///
/// # Errors
/// Returns an error when a recording cannot be read, when no stack passes through a function of
/// this name, or when `out` fails.
pub fn run(query: &Query, options: &Options, out: &mut dyn Write, style: Style) -> Result<Outcome, Error> {
    let (mut search, mut text) = (Search::default(), Vec::new());
    let outcome = print_reports(query, &mut text, style, !query.scope.is_all(), |process, symbols, progress| {
        let sums = allocations(&query.scope, process, symbols, progress)?;
        let mut lines = Lines::default();
        let functions = for_each_stack(process, &sums, symbols, &mut |stack| lines.add(stack));
        let mut found = search.find(&functions, &options.function);
        let bytes = |index: &usize| lines.total.get(index).map_or(0, |total| total.bytes);
        found.sort_by_key(|index| (Reverse(bytes(index)), *index));
        let more_functions = found.len().saturating_sub(LISTED) as u64;
        let listed = found.into_iter().take(LISTED);
        let listed = listed.map(|index| source_of(process, &query.view, options, &functions, &lines, index)).collect();
        Ok((SourceReport { functions: listed, more_functions }, sums.missing))
    })?;
    search.print(&options.function, &text, out)?;
    Ok(outcome)
}

/// Returns the lines of a function, with their text if the file can be read.
fn source_of(
    process: &Process,
    view: &View,
    options: &Options,
    functions: &Functions,
    lines: &Lines,
    index: usize,
) -> FunctionSource {
    let function = &functions.all[index];
    let file = function.frame.file.clone();
    let sysroot = view.origin.sysroot.as_deref();
    let read = match &file {
        None => Err("the program has no debug information for it (compile with -g)".into()),
        Some(file) => read(file, sysroot, &options.roots, MAX_SOURCE),
    };
    let (text, unreadable, is_newer) = match read {
        Ok(SourceFile { text, changed_ns }) => {
            let lines = text.lines().map(|line| line.replace('\t', "    ")).collect();
            (lines, None, changed_ns > process.about.started_unix_ns.max(1))
        }
        Err(why) => (Vec::new(), Some(why), false),
    };
    FunctionSource {
        function: function.title.clone(),
        file,
        total: lines.total.get(&index).copied().unwrap_or_default(),
        lines: lines.lines.get(&index).into_iter().flat_map(|lines| lines.values().copied()).collect(),
        unreadable,
        is_newer,
        text,
    }
}

impl FunctionSource {
    /// Returns the numbers of the lines that are listed, in runs.
    fn ranges(&self) -> Vec<(u32, u32)> {
        let last = u32::try_from(self.text.len()).unwrap_or(u32::MAX);
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for LineSums { line, .. } in self.lines.iter().filter(|line| line.line > 0 && line.line <= last) {
            let (from, until) = (line.saturating_sub(CONTEXT).max(1), line.saturating_add(CONTEXT).min(last));
            match ranges.last_mut() {
                Some(range) if from <= range.1.saturating_add(1) => range.1 = until,
                _ => ranges.push((from, until)),
            }
        }
        ranges
    }

    /// Returns the amounts of a line as text, or empty cells.
    fn cells(&self, line: u32) -> [String; 4] {
        match self.lines.iter().find(|sums| sums.line == line) {
            None => Default::default(),
            Some(LineSums { total, own, .. }) => {
                let own = if own.bytes > 0 { bytes(own.bytes) } else { String::new() };
                [bytes(total.bytes), percent(total.bytes, self.total.bytes), own, count(total.allocs)]
            }
        }
    }

    fn print(&self, screen: &mut Screen) -> io::Result<()> {
        let file = self.file.as_deref().unwrap_or("no source file known");
        let (size, allocs) = (bytes(self.total.bytes), counted(self.total.allocs, "allocation"));
        screen.heading(&format!("{} ({file}): {size} in {allocs}", self.function))?;
        if self.is_newer {
            screen.warning("! the file was changed after the recording began: lines may have moved")?;
        }
        let width = screen.style.width;
        let mut row = |line: String, [total, share, own, allocs]: [String; 4], text: &str| {
            let before = format!("{total:>10} {share:>6} {own:>10} {allocs:>11} {line:>6}  ");
            let rest = width.saturating_sub(before.chars().count()).max(20);
            let is_long = text.chars().count() > rest;
            let mut text: String = text.chars().take(rest - usize::from(is_long)).collect();
            text.extend(is_long.then_some('…'));
            screen.line(&format!("{before}{text}"))
        };
        row("line".into(), ["total", "", "own", "allocations"].map(String::from), "")?;
        for sums in self.lines.iter().filter(|sums| sums.line == 0 || self.unreadable.is_some()) {
            let line = if sums.line == 0 { "?".to_string() } else { sums.line.to_string() };
            row(line, self.cells(sums.line), "")?;
        }
        for (number, (from, until)) in self.ranges().into_iter().enumerate() {
            if number > 0 {
                row("…".into(), Default::default(), "")?;
            }
            for line in from..=until {
                let text = self.text.get(line as usize - 1).map_or("", String::as_str);
                row(line.to_string(), self.cells(line), text)?;
            }
        }
        match &self.unreadable {
            Some(why) => screen.warning(&format!("! no source text: {why}")),
            None => Ok(()),
        }
    }
}

impl Report for SourceReport {
    fn print(&self, screen: &mut Screen) -> io::Result<()> {
        print_functions(screen, &self.functions, self.more_functions, |function, screen| function.print(screen))
    }
}

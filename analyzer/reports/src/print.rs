//! Prints the reports on all selected processes, as text or as JSON.

use heaptape_analyzer::processes::folded_line;
use heaptape_analyzer::report::filter::FilterError;
use heaptape_analyzer::report::mapping_filter::print_unseen;
use heaptape_analyzer::report::{
    Error, MappingFilter, Outcome, ProcessHeader, Query, json, print_missing, print_state,
};
use heaptape_analyzer::symbols::Symbolizer;
use heaptape_analyzer::text::{Screen, Style, clean, counted};
use heaptape_analyzer::{Missing, Process, Progress, Recording, missing_lines};
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::io::{self, Write};

/// A report on one process. It is also serialized.
pub(crate) trait Report {
    /// Prints the report as text.
    fn print(&self, screen: &mut Screen) -> io::Result<()>;

    /// Returns why there is no answer for the process, as the end of a sentence about several
    /// ones. These are counted in one line.
    fn lacks(&self) -> Option<&'static str> {
        None
    }
}

#[derive(Serialize)]
struct ProcessReport<'a, A> {
    #[serde(flatten)]
    header: ProcessHeader,
    #[serde(flatten)]
    report: &'a A,
}

#[derive(Serialize)]
struct Reports<'a, A> {
    processes: Vec<ProcessReport<'a, A>>,
    /// What is missing from the recordings as a whole, as sentences.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing: Vec<String>,
}

/// Computes the report on each selected process with `report` and prints all of them.
/// `needs_events` is true when a profile alone does not suffice.
///
/// # Errors
/// Returns the error of `report`, and [`Error::Unanswerable`] when no selected process has the
/// events that the report needs. Or a recording cannot be read, or `out` cannot be written.
pub(crate) fn print_reports<A: Report + Serialize>(
    query: &Query,
    out: &mut dyn Write,
    style: Style,
    needs_events: bool,
    mut report: impl FnMut(&Process, &mut Symbolizer, &Progress) -> Result<(A, Vec<Missing>), Error>,
) -> Result<Outcome, Error> {
    let recordings = query.open()?;
    let mut symbols = query.view.symbolizer();
    let selected = Selected::new(query, &recordings, &mut symbols, needs_events)?;
    let progress = Progress::new("reading events");
    let (mut reports, mut missing) = (Vec::new(), Vec::new());
    for process in &selected.processes {
        let (report, mut found) = report(process, &mut symbols, &progress)?;
        add_missing(&mut found, &process.missing);
        reports.push(report);
        missing.push(found);
    }
    drop(progress);
    let outcome = selected.outcome(&missing);
    if query.view.json {
        let headers = selected.processes.iter().zip(&missing).map(|(process, found)| ProcessHeader::of(process, found));
        let processes = headers.zip(&reports).map(|(header, report)| ProcessReport { header, report }).collect();
        let missing = recordings.iter().flat_map(|recording| missing_lines(&recording.missing)).collect();
        json::print(out, &Reports { processes, missing })?;
        return Ok(outcome);
    }
    let reports: Vec<&dyn Report> = reports.iter().map(|report| report as &dyn Report).collect();
    selected.print(query.scope.mappings, &mut query.view.screen(out, style), &reports, &missing)?;
    Ok(outcome)
}

/// Adds what is missing from a process to what its report lacks.
fn add_missing(missing: &mut Vec<Missing>, of_process: &[Missing]) {
    for found in of_process {
        if !missing.contains(found) {
            missing.push(found.clone());
        }
    }
}

/// What a report is about. Nothing here depends on the kind of report, so that it is compiled once.
struct Selected<'a> {
    recordings: &'a [Recording],
    processes: Vec<&'a Process>,
    /// Processes that are only counted, in text.
    folded: Vec<&'a Process>,
    /// Sentence about the selection.
    note: Option<String>,
}

impl<'a> Selected<'a> {
    fn new(
        query: &Query,
        recordings: &'a [Recording],
        symbols: &mut Symbolizer,
        needs_events: bool,
    ) -> Result<Self, Error> {
        let processes = query.scope.processes(recordings, symbols)?;
        if (needs_events || !query.scope.is_all()) && !processes.iter().any(|process| process.has_events()) {
            return Err(FilterError::NeedsEvents.into());
        }
        let note = query.scope.processes.note(&processes);
        let (processes, folded) = match query.view.json {
            true => (processes, Vec::new()),
            false => query.scope.processes.fold(processes),
        };
        Ok(Selected { recordings, processes, folded, note })
    }

    /// Returns how many of the processes and recordings are incomplete. `missing` is what is
    /// missing from the report on each process.
    fn outcome(&self, missing: &[Vec<Missing>]) -> Outcome {
        let reports = missing.iter().filter(|missing| !missing.is_empty()).count();
        let folded = self.folded.iter().filter(|process| !process.missing.is_empty()).count();
        Outcome::of(reports + folded + self.recordings.iter().map(|recording| recording.missing.len()).sum::<usize>())
    }

    /// Prints the reports on the processes as text.
    fn print(
        &self,
        mappings: MappingFilter,
        screen: &mut Screen,
        reports: &[&dyn Report],
        missing: &[Vec<Missing>],
    ) -> Result<(), Error> {
        let several = reports.len() > 1;
        let (mut printed, mut empty) = (0, Vec::new());
        for ((process, report), missing) in self.processes.iter().zip(reports).zip(missing) {
            if let Some(why) = report.lacks().filter(|_| several) {
                empty.push((process.name(), why));
                print_missing(screen, &format!("{}: ", process.about.folder), missing)?;
                continue;
            }
            if several {
                if printed > 0 {
                    screen.blank()?;
                }
                printed += 1;
                screen.heading(&format!("{} (pid {})", process.name(), process.about.pid))?;
            }
            report.print(screen)?;
            if !mappings.has_blocks() {
                print_unseen(screen, &[process])?;
            }
            print_state(screen, "", process)?;
            print_missing(screen, "", missing)?;
        }
        if let Some((_, why)) = empty.first() {
            screen.blank()?;
            let plural = if empty.len() == 1 { "" } else { "es" };
            let names = counted_names(empty.iter().map(|(name, _)| name.clone()));
            screen.line(&format!("{} process{plural} {why}: {names}", empty.len()))?;
        }
        if !self.folded.is_empty() {
            screen.blank()?;
            screen.line(&folded_line(&self.folded))?;
            for process in &self.folded {
                print_missing(screen, &format!("{}: ", process.about.folder), &process.missing)?;
            }
        }
        if let Some(note) = &self.note {
            screen.line(note)?;
        }
        for recording in self.recordings {
            print_missing(screen, "", &recording.missing)?;
        }
        Ok(())
    }
}

/// Prints the functions that match a name, and how many more there are.
pub(crate) fn print_functions<F>(
    screen: &mut Screen,
    functions: &[F],
    more: u64,
    print: impl Fn(&F, &mut Screen) -> io::Result<()>,
) -> io::Result<()> {
    if functions.is_empty() {
        return screen.line("no stack passes through such a function");
    }
    for (number, function) in functions.iter().enumerate() {
        if number > 0 {
            screen.blank()?;
        }
        print(function, screen)?;
    }
    if more > 0 {
        let more = counted(more, "more function");
        screen.line(&format!("{more} match; a name in full selects one"))?;
    }
    Ok(())
}

/// Returns names with the number of each, most frequent first.
fn counted_names(names: impl Iterator<Item = String>) -> String {
    /// Maximum number of names that are printed.
    const MAX_NAMES: usize = 8;
    let mut counts: FxHashMap<String, usize> = FxHashMap::default();
    names.for_each(|name| *counts.entry(name).or_default() += 1);
    let mut counts: Vec<(String, usize)> = counts.into_iter().collect();
    counts.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let rest = counts.len().saturating_sub(MAX_NAMES);
    let shown = counts.into_iter().take(MAX_NAMES).map(|(name, count)| match count {
        1 => clean(&name).to_string(),
        count => format!("{count} {}", clean(&name)),
    });
    let mut names: Vec<String> = shown.collect();
    if rest > 0 {
        names.push(format!("{rest} other names"));
    }
    names.join(", ")
}

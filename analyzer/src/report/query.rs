//! What the reports on one subject have in common: the query, the processes that it selects, and
//! how call sites are grouped and shown.

use super::filter::{Filter, FilterError};
use super::frames::{CallSite, FrameJson, SourceLines, call_site, call_site_line, stack_json};
use super::grouping::{GroupBy, group_key};
use super::mapping_filter::{MappingFilter, print_unseen};
use super::{Error, Outcome, json, print_missing, print_state};
use crate::event::{Range, Span};
use crate::load::{self, Process, Recording, StartPoint};
use crate::missing::Missing;
use crate::model::Model;
use crate::model::block_filter::Filtered;
use crate::processes::{ProcessFilter, folded_line};
use crate::progress::Progress;
use crate::replay::{self, replay, replay_from};
use crate::report::Unanswerable;
use crate::sort::SortRows;
use crate::sums::{Models, Sums, sums_of_replay};
use crate::symbols::{Detail, Origin, Symbolizer};
use crate::text::{Screen, Style, clean, duration};
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::io::{self, Write};
use std::path::PathBuf;

/// Number of innermost program frames by which call sites are grouped by default.
const FRAMES: usize = 3;
/// A query: which recordings, processes, blocks and times a report is about, and how it is printed.
#[derive(Clone, Debug, Default)]
pub struct Query {
    /// Recordings and files to read.
    pub paths: Vec<PathBuf>,
    /// Whether to print JSON instead of text.
    pub json: bool,
    /// Time range of the run.
    pub range: Range,
    /// Maximum number of rows of a table.
    pub top: usize,
    /// Which processes are selected.
    pub processes: ProcessFilter,
    /// Which blocks are selected.
    pub filter: Filter,
    /// How stacks are grouped; `None` for the default of the report.
    pub by: Option<GroupBy>,
    /// Where the files are found that name frames.
    pub origin: Origin,
    /// Whether mappings, or blocks, are left out.
    pub mappings: MappingFilter,
}

impl Query {
    /// Opens the recordings and files of the query.
    ///
    /// # Errors
    /// Returns an error when one of the paths cannot be read.
    pub fn open(&self) -> Result<Vec<Recording>, Error> {
        Ok(load::open_all(&self.paths)?)
    }

    /// Returns a symbolizer that names frames in full.
    pub fn symbolizer(&self) -> Symbolizer {
        Symbolizer::from(Detail::Full, self.origin.clone())
    }

    /// Returns the selected processes.
    ///
    /// # Errors
    /// Returns [`Error::Unanswerable`] when the report would be about nothing: when nothing was
    /// recorded, when no process, thread, module or function has a given name, or when the time
    /// range is empty.
    pub fn processes<'a>(
        &self,
        recordings: &'a [Recording],
        symbols: &mut Symbolizer,
    ) -> Result<Vec<&'a Process>, Error> {
        let chosen = self.processes.select(recordings)?;
        self.range.check(&chosen)?;
        self.filter.check(&chosen, symbols)?;
        Ok(chosen)
    }

    /// Replays the selected blocks of the query. The live set at the end holds only these.
    pub(super) fn replay(
        &self,
        process: &Process,
        span: Span,
        symbols: &mut Symbolizer,
        progress: &Progress,
        model: &mut impl Model,
    ) -> replay::Outcome {
        self.replay_from(process, None, span, symbols, progress, model)
    }

    /// Returns the sums of the blocks and the time range of the query.
    pub(super) fn sums(&self, process: &Process, symbols: &mut Symbolizer, progress: &Progress) -> Sums {
        let span = process.span(&self.range);
        sums_of_replay(process, &mut |Models { totals, sites, peak }| {
            self.replay(process, span, symbols, progress, &mut (totals, sites, peak))
        })
    }

    /// Returns where a pass may begin that needs what was live at the start of the span. With a
    /// filter there is none, because summaries do not divide live blocks by it.
    pub(super) fn replay_start(&self, process: &Process, span: Span, by_site: bool) -> Option<StartPoint> {
        if self.filter.is_all() { process.start_before(span, by_site) } else { None }
    }

    /// Replays the selected blocks of the query from a start on.
    pub(super) fn replay_from(
        &self,
        process: &Process,
        start: Option<&StartPoint>,
        span: Span,
        symbols: &mut Symbolizer,
        progress: &Progress,
        model: &mut impl Model,
    ) -> replay::Outcome {
        if self.filter.is_all() {
            return replay_from(process, start, span, progress, model);
        }
        self.replay_filtered(process, span, symbols, progress, model)
    }

    /// Replays the selected blocks of a query with a filter.
    fn replay_filtered(
        &self,
        process: &Process,
        span: Span,
        symbols: &mut Symbolizer,
        progress: &Progress,
        model: &mut dyn Model,
    ) -> replay::Outcome {
        let chosen = self.filter.resolve(process, symbols, progress);
        let mut outcome = replay(process, span, progress, &mut Filtered { filter: &chosen, model });
        outcome.live.retain(|index, block| chosen.matches(index, block));
        outcome
    }

    /// Returns whether the query is about the whole run and all blocks, so that ready sums answer
    /// it.
    pub(super) const fn is_all(&self) -> bool {
        self.range.is_all() && self.filter.is_all()
    }
}

/// Checks that sums count frees.
///
/// # Errors
/// Returns [`Error::Unanswerable`] when the sums hold only the live bytes at the peak and at other
/// points in time, as Massif's do.
pub(super) fn needs_frees(sums: &Sums, process: &Process) -> Result<(), Error> {
    if sums.totals.allocs > 0 || sums.sites.iter().all(|row| row.peak_bytes == 0) {
        return Ok(());
    }
    Err(Unanswerable::NoAllocations(process.path.clone()).into())
}

/// The fields with which the JSON of each process begins.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessHeader {
    /// Id of the process.
    pub pid: u32,
    /// Path of the executable.
    pub exe: String,
    /// Folder of the process in the recording.
    pub folder: String,
    /// Mean number of bytes between samples; 0 when every event was recorded. In a sampled
    /// recording, bytes are estimates, and blocks are those of the sample.
    pub sample_bytes: u64,
    /// Whether nothing is missing from the recording of the process.
    pub complete: bool,
    /// What is missing, as sentences.
    pub missing: Vec<String>,
    /// Why calls that map memory are not recorded; absent if they are.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub unseen_mappings: String,
}

impl ProcessHeader {
    /// Returns the header of the report on a process.
    pub fn of(process: &Process, missing: &[Missing]) -> Self {
        ProcessHeader {
            pid: process.about.pid,
            exe: process.about.exe.clone(),
            folder: process.about.folder.clone(),
            sample_bytes: process.tape.process.sample_bytes,
            complete: missing.is_empty(),
            missing: missing.iter().map(ToString::to_string).collect(),
            unseen_mappings: process.about.unseen_mappings.clone(),
        }
    }
}

/// A report on one process. It is also serialized.
pub(super) trait Report {
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
}

/// Computes the report on each selected process with `report` and prints all of them.
/// `needs_events` is true when a profile alone does not suffice.
///
/// # Errors
/// Returns the error of `report`, and [`Error::Unanswerable`] when no selected process has the
/// events that the report needs. Other errors are those of opening the recordings and of writing to
/// `out`.
pub(super) fn print_reports<A: Report + Serialize>(
    query: &Query,
    out: &mut dyn Write,
    style: Style,
    needs_events: bool,
    mut report: impl FnMut(&Process, &mut Symbolizer, &Progress) -> Result<(A, Vec<Missing>), Error>,
) -> Result<Outcome, Error> {
    let recordings = query.open()?;
    let mut symbols = query.symbolizer();
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
    if query.json {
        let headers = selected.processes.iter().zip(&missing).map(|(process, found)| ProcessHeader::of(process, found));
        let processes = headers.zip(&reports).map(|(header, report)| ProcessReport { header, report }).collect();
        json::print(out, &Reports { processes })?;
        return Ok(outcome);
    }
    let reports: Vec<&dyn Report> = reports.iter().map(|report| report as &dyn Report).collect();
    selected.print(query, &mut Screen::new(out, style), &reports, &missing)?;
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
    /// Processes with a report each.
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
        let processes = query.processes(recordings, symbols)?;
        if (needs_events || !query.is_all()) && !processes.iter().any(|process| process.has_events()) {
            return Err(FilterError::NeedsEvents.into());
        }
        let note = query.processes.note(&processes);
        let (processes, folded) = match query.json {
            true => (processes, Vec::new()),
            false => query.processes.fold(processes),
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
        query: &Query,
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
            if !query.mappings.has_blocks() {
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

/// Returns names with the number of each, most frequent first.
fn counted_names(names: impl Iterator<Item = String>) -> String {
    /// Maximum number of names that are printed.
    const MAX_NAMES: usize = 8;
    let mut counts: FxHashMap<String, usize> = FxHashMap::default();
    names.for_each(|name| *counts.entry(name).or_default() += 1);
    let mut counts: Vec<(String, usize)> = counts.into_iter().collect();
    counts.sort_rows_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
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

/// Call sites that have the same group key.
#[derive(Clone, Debug)]
pub(super) struct SiteGroup<const N: usize> {
    call_site: CallSite,
    key: Vec<String>,
    by: Option<GroupBy>,
    /// The site with the largest first value.
    pub site: u32,
    /// Number of call sites in the group.
    pub sites: u64,
    /// Sums of the values that the report counts.
    pub values: [u64; N],
    /// For each value, its maximum over the sites.
    pub max: [u64; N],
    largest: u64,
    /// Source lines of the blamed frames.
    lines: SourceLines,
}

fn key_of(query: &Query, process: &Process, symbols: &mut Symbolizer, site: u32, call_site: &CallSite) -> Vec<String> {
    match query.by {
        None | Some(GroupBy::Frames(FRAMES)) => call_site.names.clone(),
        Some(by) => group_key(symbols, process.stacks(), site, by),
    }
}

/// Returns the key of the group of [`group_sites`] that a site belongs to.
pub(super) fn site_key(query: &Query, process: &Process, symbols: &mut Symbolizer, site: u32) -> Vec<String> {
    let call_site = call_site(symbols, process.stacks(), site, FRAMES);
    key_of(query, process, symbols, site, &call_site)
}

/// Groups rows of sites, by default by their innermost program frames. The group with the largest
/// first value comes first; groups whose first value is 0 are left out.
pub(super) fn group_sites<const N: usize>(
    query: &Query,
    process: &Process,
    symbols: &mut Symbolizer,
    rows: impl Iterator<Item = (u32, [u64; N])>,
) -> Vec<SiteGroup<N>> {
    group_sites_by(query, process, symbols, rows, |values| values[0] > 0)
}

/// Groups rows as [`group_sites`] does, and keeps the groups of which `is_listed` holds. Their sums
/// have the values of all their sites: blocks of 0 bytes are blocks, too.
pub(super) fn group_sites_by<const N: usize>(
    query: &Query,
    process: &Process,
    symbols: &mut Symbolizer,
    rows: impl Iterator<Item = (u32, [u64; N])>,
    is_listed: impl Fn(&[u64; N]) -> bool,
) -> Vec<SiteGroup<N>> {
    let mut groups: Vec<SiteGroup<N>> = Vec::new();
    let mut known: FxHashMap<Vec<String>, usize> = FxHashMap::default();
    for (site, values) in rows.filter(|(_, values)| values.iter().any(|value| *value > 0)) {
        let call_site = call_site(symbols, process.stacks(), site, FRAMES);
        let key = key_of(query, process, symbols, site, &call_site);
        let index = *known.entry(key.clone()).or_insert_with(|| {
            let (call_site, lines) = (call_site.clone(), SourceLines::default());
            groups.push(SiteGroup {
                call_site,
                key,
                by: query.by,
                site,
                sites: 0,
                values: [0; N],
                max: [0; N],
                largest: 0,
                lines,
            });
            groups.len() - 1
        });
        let group = &mut groups[index];
        if is_listed(&values) {
            group.lines.add(&call_site.frame);
            group.sites += 1;
        }
        if values[0] > group.largest {
            (group.largest, group.site, group.call_site) = (values[0], site, call_site);
        }
        for ((sum, max), value) in group.values.iter_mut().zip(&mut group.max).zip(values) {
            *sum = sum.saturating_add(value);
            *max = value.max(*max);
        }
    }
    groups.retain(|group| is_listed(&group.values));
    groups.sort_rows_by(|a, b| b.values[0].cmp(&a.values[0]).then_with(|| a.site.cmp(&b.site)));
    groups
}

/// How a group is shown: its call site on one line, and the whole stack of its largest site.
#[derive(Clone, Debug, Serialize)]
pub(super) struct SiteDescription {
    /// The innermost program frame and its callers, on one line.
    #[serde(rename = "place")]
    pub label: String,
    /// Number of call sites in the group.
    pub sites: u64,
    /// Number of source lines of the innermost frame; 0 when none is known.
    pub lines: u64,
    /// Call stack of the site with the largest first value, innermost frame first.
    pub stack: Vec<FrameJson>,
}

impl<const N: usize> SiteGroup<N> {
    /// Returns whether the sites with this key are in the group.
    pub(super) fn has_key(&self, key: &[String]) -> bool {
        self.key == key
    }

    /// Returns the description of the group, with named frames.
    pub(super) fn describe(&self, process: &Process, symbols: &mut Symbolizer) -> SiteDescription {
        SiteDescription {
            label: match self.by {
                Some(GroupBy::Function | GroupBy::File | GroupBy::Line | GroupBy::Module) => self.key.join(" < "),
                Some(GroupBy::Frames(count)) => {
                    let call_site = call_site(symbols, process.stacks(), self.site, count.max(1));
                    call_site_line(&call_site, &self.lines)
                }
                None | Some(GroupBy::Stack) => call_site_line(&self.call_site, &self.lines),
            },
            sites: self.sites,
            lines: self.lines.count() as u64,
            stack: stack_json(symbols, process.stacks(), self.site),
        }
    }
}

/// A point in time of a run: nanoseconds after the start if the recording has times, and the number
/// of events before it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PointInTime {
    /// Nanoseconds after the start; `None` without times.
    pub time_ns: Option<u64>,
    /// Number of events before it; `None` if unknown.
    pub event: Option<u64>,
}

impl PointInTime {
    /// Returns the point in time of a tick and, where it is known, of an event number.
    pub fn at(process: &Process, tick: u64, event: Option<u64>) -> Self {
        PointInTime { time_ns: process.has_times().then(|| process.clock.nanos(tick)), event }
    }

    /// Returns the point in time as text for people.
    pub fn text(&self) -> String {
        match (self.time_ns, self.event) {
            (Some(nanos), _) => format!("{} after the start", duration(nanos)),
            (None, Some(event)) => format!("event {event}"),
            (None, None) => "an unknown point in time".into(),
        }
    }
}

//! `heaptape leaks`: blocks that were never freed, by call stack, with a verdict and its evidence.
//!
//! There are two phases. [`candidates`] collects numbers by call site, and knows no names.
//! [`judged`] names the stacks, leaves out what is suppressed, and judges. The page of the HTML
//! export uses the same two.

mod axis;
mod candidates;
mod crossings;
mod entries;
mod evidence;
mod headline;
mod judged;
mod source;
mod suppressed;
mod text;
mod totals;

use crate::sort::SortRows;
pub(crate) use axis::axis;
pub(crate) use candidates::Candidates;
pub(crate) use headline::Headline;
use judged::sum_by_function;
pub(crate) use judged::{JudgedLeak, judge_leaks};

pub use crossings::CrossedBlocks;
pub use evidence::{Evidence, FreedAt, LifetimeClass};
pub use suppressed::Rules;

use super::frames::{FrameJson, SourceLines, call_site, stack_json};
use super::grouping::{GroupBy, group_key};
use super::mapped::{self, MappedRow, OfProcess};
use super::mapping_filter;
use super::query::{ProcessHeader, Query, needs_frees};
use super::{Error, Outcome, json, print_missing};
use crate::event::Span;
use crate::load::{Process, Recording};
use crate::missing::{self, Missing};
use crate::model::climb::{is_freed_at_exit, is_kept_to_exit};
use crate::model::leaks::{History, Leaks};
use crate::model::verdict::{Run, Verdict};
use crate::progress::Progress;
use crate::sums::sums;
use crate::suppress::{Dialect, generate};
use crate::symbols::Symbolizer;
use crate::text::{Screen, Style, clean};
use candidates::Basis;
use heaptape_formats::recording::Exit;
use rustc_hash::FxHashMap;
use serde::Serialize;
use serde::ser::{SerializeSeq, Serializer};
use std::cell::RefCell;
use std::io::Write;
use std::path::PathBuf;

/// The blocks of one stack, or of a group of stacks, that were never freed.
pub struct Leak<'a> {
    /// The process that allocated the blocks.
    pub process: &'a Process,
    /// What the leak is judged to be.
    pub verdict: Verdict,
    /// The site that represents the group: the one with the most bytes.
    pub site: u32,
    /// Number of sites in the group.
    pub sites: u64,
    /// Number of blocks that were never freed.
    pub blocks: u64,
    /// Number of bytes in these blocks.
    pub bytes: u64,
    /// Peak of the live bytes of a site that grew through the run and was freed only at its end; 0
    /// for other leaks.
    pub grown: u64,
    /// The evidence of the verdict, where events or snapshots of the sums are known.
    pub evidence: Option<Evidence>,
    /// Name of what the C or C++ runtime keeps here on purpose, if this is such a block.
    pub kept: Option<&'static str>,
    /// Whether it probably grows: only the run is too short to call it growth.
    pub is_probable: bool,
    /// The lines of the blamed function, where stacks with several are summed up.
    lines: SourceLines,
}

pub(crate) const PROBABLY_GROWING: &str = "probably growing (the run was short)";
/// Weight of a byte of what probably grows.
pub(crate) const PROBABLE_WEIGHT: u64 = Verdict::Growing.weight();

/// A line of a source file in JSON.
#[derive(Serialize)]
struct LineJson<'a> {
    file: &'a str,
    line: u32,
}

#[derive(Serialize)]
struct LeakJson<'a> {
    bytes: u64,
    blocks: u64,
    verdict: Verdict,
    process: u32,
    #[serde(rename = "image")]
    folder: &'a str,
    stacks: u64,
    kept_on_purpose: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    grown_bytes: Option<u64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    released_by_exec: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    probably_growing: bool,
    /// The lines of the blamed function, where there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    lines: Vec<LineJson<'a>>,
    /// The function of a library by which the blamed frame allocates.
    #[serde(skip_serializing_if = "Option::is_none")]
    library: Option<FrameJson>,
    stack: Vec<FrameJson>,
    evidence: &'a Option<Evidence>,
}

#[derive(Serialize)]
struct LeaksJson<'a> {
    leaks: LeakList<'a>,
    freed_at_exit: LeakList<'a>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    crossed_allocators: Vec<crossings::CrossedJson<'a>>,
    total: Total,
    /// Memory that the program mapped itself and never unmapped, which is in no other sum.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    mappings: Vec<OfProcess<MappedRow>>,
    suppressions: Vec<suppressed::RuleEffect>,
    processes: Vec<ProcessJson>,
    /// What is missing from the recordings as a whole, as sentences.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing: Vec<String>,
}

/// Returns what is mapped at the end of the range of the query, those with most bytes first.
fn mapped_leaks(query: &Query, processes: &[&Process], symbols: &mut Symbolizer) -> Vec<OfProcess<MappedRow>> {
    let mut found = Vec::new();
    for process in processes.iter().filter(|_| query.mappings.has_mappings() && query.filter.is_all()) {
        let span = process.span(&query.range);
        let ranges = mapped::ranges_at(process, span.end_tick.saturating_sub(1));
        let own = mapped::own(&ranges).filter(|(range, _)| range.by.tick >= span.first_tick);
        let rows = mapped::rows(query, process, symbols, own);
        found.extend(rows.into_iter().map(|row| OfProcess { process: process.about.pid, row }));
    }
    found.sort_rows_by_key(|leak| std::cmp::Reverse((leak.row.bytes, leak.row.reserved_bytes)));
    found
}

#[derive(Serialize)]
struct ProcessJson {
    #[serde(flatten)]
    header: ProcessHeader,
    inherited_blocks: u64,
    inherited_bytes: u64,
}

/// Sums of all leaks.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Total {
    /// Number of bytes never freed.
    pub bytes: u64,
    /// Number of blocks never freed.
    pub blocks: u64,
    /// Number of call stacks that allocated them.
    pub stacks: u64,
    /// Peak live bytes of the sites that grew through the run and were freed only at its end,
    /// summed over processes.
    pub grown_bytes: u64,
}

impl Leak<'_> {
    /// Returns whether exec released the blocks. They were in use when the process replaced its
    /// program by another one. What grew until then is a leak all the same.
    pub fn is_released_by_exec(&self) -> bool {
        let grew = matches!(self.verdict, Verdict::Growing | Verdict::Slow);
        self.process.about.exit == Some(Exit::Exec) && self.blocks > 0 && !grew
    }

    /// Returns the key that sorts leaks, worst first.
    fn order(&self) -> (std::cmp::Reverse<u64>, u32) {
        (std::cmp::Reverse(self.bytes.max(self.grown).saturating_mul(self.weight())), self.site)
    }

    /// Returns the weight of a byte for the order of leaks.
    const fn weight(&self) -> u64 {
        if self.is_probable { PROBABLE_WEIGHT } else { self.verdict.weight() }
    }

    /// Returns the name of the verdict in text.
    const fn verdict_name(&self) -> &'static str {
        if self.is_probable { PROBABLY_GROWING } else { self.verdict.name() }
    }
}

/// The leaks of the selected processes.
pub struct LeakReport<'a> {
    /// Leaks that are not suppressed, worst first.
    pub leaks: Vec<Leak<'a>>,
    /// Call sites that grew and were freed only at the end of the run, worst first.
    pub freed_at_exit: Vec<Leak<'a>>,
    /// Blocks that another allocator freed than allocated them, most bytes first.
    pub crossed: Vec<CrossedBlocks<'a>>,
    /// Sums of `leaks` without what the runtime keeps on purpose, and of `at_exit`.
    pub total: Total,
    /// Peak live bytes, summed over processes.
    pub peak_bytes: u64,
    /// The processes, each with what is missing of its recording.
    pub missing: Vec<(&'a Process, Vec<Missing>)>,
    /// The suppressions, with what each of them suppressed.
    pub rules: Rules,
}

impl LeakReport<'_> {
    /// Sorts everything worst first, and sums up the leaks.
    fn sort(&mut self) {
        self.leaks.sort_rows_by_key(Leak::order);
        self.freed_at_exit.sort_rows_by_key(Leak::order);
        self.crossed.sort_rows_by_key(CrossedBlocks::order);
        for leak in self.leaks.iter().filter(|leak| leak.kept.is_none()) {
            self.total.bytes = self.total.bytes.saturating_add(leak.bytes);
            self.total.blocks += leak.blocks;
            self.total.stacks += leak.sites;
        }
    }
}

/// Serializes leaks one by one. Their stacks are named as they are written, so that there is never
/// more than one in memory.
struct LeakList<'a>(&'a [Leak<'a>], &'a RefCell<Symbolizer>);

impl Serialize for LeakList<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.0.len()))?;
        for leak in self.0 {
            let symbols = &mut *self.1.borrow_mut();
            let library = call_site(symbols, leak.process.stacks(), leak.site, 1).library;
            let stack = stack_json(symbols, leak.process.stacks(), leak.site);
            let lines = leak.lines.iter().filter(|_| leak.lines.count() > 1);
            list.serialize_element(&LeakJson {
                bytes: leak.bytes,
                blocks: leak.blocks,
                verdict: leak.verdict,
                process: leak.process.about.pid,
                folder: &leak.process.about.folder,
                stacks: leak.sites,
                kept_on_purpose: leak.kept,
                grown_bytes: (leak.verdict == Verdict::FreedAtExit).then_some(leak.grown),
                released_by_exec: leak.is_released_by_exec(),
                probably_growing: leak.is_probable,
                lines: lines.map(|(file, line)| LineJson { file, line }).collect(),
                library: library.as_ref().map(FrameJson::from),
                stack,
                evidence: &leak.evidence,
            })?;
        }
        list.end()
    }
}

/// Options of `heaptape leaks`.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of innermost program frames that must be equal for stacks to be merged; 0 for the
    /// whole stack.
    pub depth: usize,
    /// Number of frames of each stack in text, `usize::MAX` for all; `None` for a few, or for
    /// `depth` if it is set.
    pub frames: Option<usize>,
    /// Maximum number of leaks in the report; `None` for a few in text, and for all in JSON.
    pub top: Option<usize>,
    pub suppressions: Vec<PathBuf>,
    /// Whether text also lists rows that are not leaks by their verdict, such as bounded caches.
    pub all: bool,
    /// Whether stacks of one function with the same verdict are summed up. [`run`] sets it for
    /// text, unless the query or `depth` says how stacks are grouped.
    pub by_function: bool,
    /// Whether to separate what the runtime keeps on purpose, and to apply the program's own
    /// suppressions.
    pub built_in: bool,
    /// Prints suppressions for the leaks in this dialect instead of a report.
    pub generate: Option<Dialect>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            depth: 0,
            frames: None,
            top: None,
            suppressions: Vec::new(),
            all: false,
            by_function: false,
            built_in: true,
            generate: None,
        }
    }
}

/// Finds the leaks of recordings.
///
/// # Errors
/// Returns an error when a file of suppressions cannot be read, when the query selects nothing, or
/// when the sums of a profile do not count frees.
pub fn find<'a>(
    recordings: &'a [Recording],
    query: &Query,
    options: &Options,
    symbols: &mut Symbolizer,
) -> Result<LeakReport<'a>, Error> {
    find_in(query.processes(recordings, symbols)?, query, options, symbols)
}

/// Finds the leaks of processes.
pub fn find_in<'a>(
    processes: Vec<&'a Process>,
    query: &Query,
    options: &Options,
    symbols: &mut Symbolizer,
) -> Result<LeakReport<'a>, Error> {
    let progress = Progress::new("reading events");
    let rules = Rules::read(&options.suppressions, options.built_in)?;
    let (leaks, freed_at_exit, missing) = (Vec::new(), Vec::new(), Vec::new());
    let (total, peak_bytes, crossed) = (Total::default(), 0, Vec::new());
    let mut found = LeakReport { leaks, freed_at_exit, crossed, total, peak_bytes, missing, rules };
    for process in processes {
        if options.built_in {
            found.rules.add_own(process, symbols);
        }
        let (candidates, missing) = match process.has_events() {
            true => collect_from_events(process, query, symbols, &progress, &mut found.crossed),
            false => collect_from_sums(process, query, symbols, &progress)?,
        };
        describe(&candidates, query, options, symbols, &mut found);
        found.missing.push((process, missing));
    }
    found.sort();
    Ok(found)
}

/// Runs `heaptape leaks`: prints the report on leaks.
///
/// # Examples
///
/// ```
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/tape/v1/trace");
/// use heaptape_analyzer::report::{Query, leaks};
/// use heaptape_analyzer::text::Style;
///
/// let query = Query { paths: vec![path.into()], top: 5, ..Query::default() };
/// let mut text = Vec::new();
/// leaks::run(&query, &leaks::Options::default(), &mut text, Style::PLAIN)?;
/// assert!(String::from_utf8(text)?.contains("keep_two"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Returns an error when a recording or a file of suppressions cannot be read, when it does not
/// hold what the report needs, or when `out` fails.
pub fn run(query: &Query, options: &Options, out: &mut dyn Write, style: Style) -> Result<Outcome, Error> {
    let recordings = query.open()?;
    let mut symbols = query.symbolizer();
    let is_summed_up = !query.json && options.generate.is_none() && query.by.is_none() && options.depth == 0;
    let options = &Options { by_function: is_summed_up, ..options.clone() };
    let mut found = find(&recordings, query, options, &mut symbols)?;
    if !query.mappings.has_blocks() {
        (found.leaks, found.freed_at_exit, found.crossed) = Default::default();
        found.total = Total::default();
    }
    let missing_count =
        found.missing.iter().map(|(_, missing)| missing.len()).chain(recordings.iter().map(|r| r.missing.len())).sum();
    if let Some(dialect) = options.generate {
        suppressions(&found, dialect, options, &mut symbols, out)?;
    } else if query.json {
        let top = |leaks: &[Leak]| options.top.unwrap_or(leaks.len()).min(leaks.len());
        let processes = found.missing.iter().map(|(process, missing)| ProcessJson {
            header: ProcessHeader::of(process, missing),
            inherited_blocks: process.tape.inherited.as_ref().map_or(0, |inherited| inherited.blocks),
            inherited_bytes: process.tape.inherited.as_ref().map_or(0, |inherited| inherited.bytes),
        });
        let processes = processes.collect();
        let crossed_allocators = found.crossed.iter().map(|one| one.json(&mut symbols)).collect();
        let mut mapped = mapped_leaks(query, &selected(&found), &mut symbols);
        mapped.truncate(options.top.unwrap_or(usize::MAX));
        let symbols = RefCell::new(symbols);
        let report = LeaksJson {
            leaks: LeakList(&found.leaks[..top(&found.leaks)], &symbols),
            freed_at_exit: LeakList(&found.freed_at_exit[..top(&found.freed_at_exit)], &symbols),
            crossed_allocators,
            total: found.total,
            mappings: mapped,
            suppressions: found.rules.suppressed(),
            processes,
            missing: recordings.iter().flat_map(|recording| missing::lines(&recording.missing)).collect(),
        };
        json::print(out, &report)?;
    } else {
        found.leaks.retain(|leak| leak.kept.is_none());
        let mut screen = Screen::new(out, style).with_names(query.origin.full_names);
        if query.mappings.has_blocks() {
            text::print(&found, options, &mut symbols, &mut screen)?;
        }
        let mapped = mapped_leaks(query, &selected(&found), &mut symbols);
        let rows: Vec<MappedRow> = mapped.into_iter().map(|leak| leak.row).collect();
        if rows.is_empty() && !query.mappings.has_blocks() {
            mapped::print_nothing(&mut screen, &selected(&found))?;
        }
        if !query.mappings.has_blocks() {
            mapping_filter::print_unseen(&mut screen, &selected(&found))?;
        }
        let sum = mapped::sum_text(rows.iter());
        let heading = format!("mapped by the program itself and never unmapped: {sum}");
        mapped::print(&mut screen, &heading, &rows, options.top.unwrap_or(mapped::DEFAULT_ROWS))?;
        for recording in &recordings {
            print_missing(&mut screen, "", &recording.missing)?;
        }
        let processes = selected(&found);
        query.processes.note(&processes).iter().try_for_each(|note| screen.line(note))?;
        if query.mappings.has_blocks() {
            text::print_hints(&found, &mut symbols, &mut screen)?;
        }
    }
    Ok(Outcome::of(missing_count))
}

/// Returns the processes of the report.
fn selected<'a>(found: &LeakReport<'a>) -> Vec<&'a Process> {
    found.missing.iter().map(|(process, _)| *process).collect()
}

/// Writes suppressions for the leaks, ready for a file.
fn suppressions(
    found: &LeakReport,
    dialect: Dialect,
    options: &Options,
    symbols: &mut Symbolizer,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let mut written = Vec::new();
    let own = found.leaks.iter().filter(|leak| leak.kept.is_none());
    for leak in own.take(options.top.unwrap_or(usize::MAX)) {
        let stack = suppressed::named_stack(leak.process, symbols, leak.site);
        let rule = generate(dialect, &stack, suppressed::blamed_frame(&stack), written.len() + 1);
        let rule: Vec<_> = rule.lines().map(|line| clean(line).into_owned()).collect();
        let rule = rule.join("\n");
        if !rule.is_empty() && !written.contains(&rule) {
            writeln!(out, "{rule}")?;
            written.push(rule);
        }
    }
    Ok(())
}

/// Collects the candidates of a process by a replay of its events. Returns them with what is
/// missing of its recording. Adds the blocks that another allocator freed to `crossed`.
fn collect_from_events<'a>(
    process: &'a Process,
    query: &Query,
    symbols: &mut Symbolizer,
    progress: &Progress,
    crossed: &mut Vec<CrossedBlocks<'a>>,
) -> (Candidates<'a>, Vec<Missing>) {
    let span = process.span(&query.range);
    let mut model = Leaks::new(axis(process, span), process.tape.process.free_sites);
    let outcome = match crossings::model(process, span) {
        None => query.replay(process, span.with_history(), symbols, progress, &mut model),
        Some(mut crossings) => {
            let models = &mut (&mut model, &mut crossings);
            let outcome = query.replay(process, span.with_history(), symbols, progress, models);
            crossed.extend(CrossedBlocks::all(process, crossings));
            outcome
        }
    };
    let mut missing = process.missing.clone();
    missing.extend(outcome.missing);
    let allocated = Span { end: u64::MAX, end_tick: u64::MAX, ..span };
    (Candidates::from_events(process, span, allocated, model, &outcome.live, &missing), missing)
}

/// Collects the candidates of a process from its sums. Returns them with what is missing of its
/// recording.
///
/// # Errors
/// Returns [`Error::Unanswerable`] when the sums do not count frees.
fn collect_from_sums<'a>(
    process: &'a Process,
    query: &Query,
    symbols: &mut Symbolizer,
    progress: &Progress,
) -> Result<(Candidates<'a>, Vec<Missing>), Error> {
    let mut sums = sums(process, progress);
    if !query.filter.is_all() {
        let chosen = query.filter.matching_sites(process.stacks(), symbols);
        sums.sites.retain(|row| chosen.get(row.site as usize).copied().unwrap_or(false));
    }
    needs_frees(&sums, process)?;
    Ok((Candidates::from_sums(process, &sums), sums.missing))
}

/// Judges the candidates of a process, and adds them to the report with names.
fn describe<'a>(
    candidates: &Candidates<'a>,
    query: &Query,
    options: &Options,
    symbols: &mut Symbolizer,
    found: &mut LeakReport<'a>,
) {
    let depth = options.depth;
    let by = query.by.unwrap_or(if depth == 0 { GroupBy::Stack } else { GroupBy::Frames(depth) });
    let mut leaks = judge_leaks(candidates, Some(by), &mut found.rules, symbols);
    if options.by_function {
        leaks = sum_by_function(leaks, candidates, symbols);
    }
    for leak in leaks {
        let JudgedLeak { site, sites, blocks, bytes, verdict, trend, is_probable, lines, basis, kept, .. } = leak;
        let evidence = basis.and_then(|basis| candidates.evidence(site, &basis, symbols));
        let evidence = evidence.map(|evidence| Evidence { trend, ..evidence });
        let process = candidates.process;
        let grown = 0;
        found.leaks.push(Leak {
            process,
            verdict,
            site,
            sites,
            blocks,
            bytes,
            grown,
            evidence,
            kept,
            is_probable,
            lines,
        });
    }
    if let (Some(run), Some(model)) = (&candidates.run, &candidates.model) {
        found.peak_bytes = found.peak_bytes.saturating_add(run.peak_bytes);
        // A live block has a call stack to show. Nothing of these is live, so that the function
        // suffices.
        let by = if by == GroupBy::Stack && query.by.is_none() { GroupBy::Function } else { by };
        find_freed_at_exit(candidates, run, model, by, symbols, found);
    }
}

/// Sites that were emptied at the end of the run, and whose stacks are merged.
#[derive(Default)]
struct ExitGroup {
    /// The site with the most bytes.
    site: u32,
    /// Number of bytes of `site`.
    greatest: u64,
    sites: u64,
    history: History,
    lines: SourceLines,
}

/// Returns the functions whose sites were emptied only at the end of the run, and the bytes to
/// which all grew together.
pub(crate) fn freed_at_exit<'a>(candidates: &Candidates<'a>, symbols: &mut Symbolizer) -> (Vec<Leak<'a>>, u64) {
    let (leaks, freed_at_exit, missing) = (Vec::new(), Vec::new(), Vec::new());
    let (total, peak_bytes, crossed, rules) = (Total::default(), 0, Vec::new(), Rules::built_in());
    let mut found = LeakReport { leaks, freed_at_exit, crossed, total, peak_bytes, missing, rules };
    if let (Some(run), Some(model)) = (&candidates.run, &candidates.model) {
        find_freed_at_exit(candidates, run, model, GroupBy::Function, symbols, &mut found);
    }
    (found.freed_at_exit, found.total.grown_bytes)
}

/// Finds the functions whose sites were emptied only at the end of the run. While events are
/// missing, it finds none: a site that seems empty may not be.
fn find_freed_at_exit<'a>(
    candidates: &Candidates<'a>,
    run: &Run,
    model: &Leaks,
    by: GroupBy,
    symbols: &mut Symbolizer,
    found: &mut LeakReport<'a>,
) {
    let process = candidates.process;
    let mut groups: FxHashMap<Vec<String>, ExitGroup> = FxHashMap::default();
    for (site, history) in model.histories().filter(|(_, history)| run.hidden == 0 && is_kept_to_exit(history)) {
        let names = group_key(symbols, process.stacks(), site, by);
        let group = groups.entry(names).or_default();
        if history.peak_bytes > group.greatest {
            (group.site, group.greatest) = (site, history.peak_bytes);
        }
        group.sites += 1;
        group.lines.add(&call_site(symbols, process.stacks(), site, 1).frame);
        group.history.merge(&history);
    }
    let (mut all, mut largest) = (History::default(), 0);
    // The sum at one point in time: several sites may have had their peaks at different times.
    let together = |history: &History| history.series.iter().copied().max().unwrap_or(0);
    for ExitGroup { site, greatest, sites, history, lines } in groups.into_values() {
        if !is_freed_at_exit(run, &history) {
            continue;
        }
        all.merge(&history);
        // A peak may be between two points of the series.
        let grown = together(&history).max(greatest);
        largest = largest.max(grown);
        let history = History { peak_bytes: grown, ..history };
        let evidence = candidates.evidence(site, &Basis { history, ..Basis::default() }, symbols);
        let verdict = Verdict::FreedAtExit;
        found.freed_at_exit.push(Leak {
            process,
            verdict,
            site,
            sites,
            blocks: 0,
            bytes: 0,
            grown,
            evidence,
            kept: None,
            is_probable: false,
            lines,
        });
    }
    found.total.grown_bytes = found.total.grown_bytes.saturating_add(together(&all).max(largest));
}

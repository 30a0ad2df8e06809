//! `heaptape leaks`: what was never freed, by stack, with a verdict and its evidence.

pub(crate) mod evidence;
mod suppressed;
mod text;

pub use evidence::{Evidence, FreedAt, Lives};
pub use suppressed::Rules;

use super::frames::{FrameJson, stack_json};
use super::grouping::{By, key};
use super::questions::{Head, Query};
use super::sums::sums;
use super::{Error, Outcome, json, say_missing};
use crate::event::Span;
use crate::load::{Image, Recording};
use crate::missing::Missing;
use crate::model::leaks::{History, Leaks, Survivors};
use crate::model::snapshots;
use crate::model::verdict::{Growth, Run, Verdict, is_freed_at_exit, is_kept_to_exit, judge, judge_snapshots};
use crate::progress::Progress;
use crate::suppress::{Dialect, generate};
use crate::symbols::Symbolizer;
use crate::text::{Screen, Style, clean};
use evidence::{axis, freed_at, run_of};
use heaptape_formats::tape::SiteHistory;
use rustc_hash::FxHashMap;
use serde::Serialize;
use serde::ser::{SerializeSeq, Serializer};
use std::cell::RefCell;
use std::io::Write;
use std::path::PathBuf;

/// The leaks of one stack; where they were merged, of several.
pub struct Leak<'a> {
    pub(super) image: &'a Image,
    /// What it is.
    pub verdict: Verdict,
    pub(super) site: u32,
    sites: u64,
    /// Blocks never freed.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The most bytes that lived at once of what grew through the run and was freed only at its
    /// end; else 0.
    pub grown: u64,
    evidence: Option<Evidence>,
    /// What the run-time keeps here on purpose.
    pub kept: Option<&'static str>,
}

#[derive(Serialize)]
struct LeakJson<'a> {
    bytes: u64,
    blocks: u64,
    verdict: Verdict,
    process: u32,
    image: &'a str,
    stacks: u64,
    kept_on_purpose: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    grown_bytes: Option<u64>,
    stack: Vec<FrameJson>,
    evidence: &'a Option<Evidence>,
}

#[derive(Serialize)]
struct Answer<'a> {
    leaks: Each<'a>,
    freed_at_exit: Each<'a>,
    total: Total,
    suppressions: Vec<suppressed::Eaten>,
    processes: Vec<Process>,
}

#[derive(Serialize)]
struct Process {
    #[serde(flatten)]
    head: Head,
    inherited_blocks: u64,
    inherited_bytes: u64,
}

/// Sums of all leaks.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Total {
    /// Bytes never freed.
    pub bytes: u64,
    /// Blocks.
    pub blocks: u64,
    /// Stacks that they come from.
    pub stacks: u64,
    /// The most bytes that lived at once of what grew through the run and was freed only at its
    /// end, summed over processes.
    pub grown_bytes: u64,
}

impl Leak<'_> {
    /// What leaks are sorted by, worst first.
    fn order(&self) -> (std::cmp::Reverse<u64>, u32) {
        (std::cmp::Reverse(self.bytes.max(self.grown).saturating_mul(self.verdict.weight())), self.site)
    }
}

/// What was found.
pub struct Found<'a> {
    /// What was never freed and is not suppressed, worst first.
    pub leaks: Vec<Leak<'a>>,
    /// What grew and was freed only at the end.
    pub at_exit: Vec<Leak<'a>>,
    /// Sums of `leaks`, without what the run-time keeps on purpose; and of `at_exit`.
    pub total: Total,
    /// The most live bytes, summed over processes.
    pub peak_bytes: u64,
    /// Images, and what is missing of each.
    pub missing: Vec<(&'a Image, Vec<Missing>)>,
    /// Suppressions, with what they ate.
    pub rules: Rules,
}

/// Leaks one by one: stacks are named as they are written, so that there is never more than one in
/// memory.
struct Each<'a>(&'a [Leak<'a>], &'a RefCell<Symbolizer>);

impl Serialize for Each<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.0.len()))?;
        for leak in self.0 {
            let stack = stack_json(&mut self.1.borrow_mut(), leak.image.stacks(), leak.site);
            list.serialize_element(&LeakJson {
                bytes: leak.bytes,
                blocks: leak.blocks,
                verdict: leak.verdict,
                process: leak.image.about.pid,
                image: &leak.image.about.folder,
                stacks: leak.sites,
                kept_on_purpose: leak.kept,
                grown_bytes: (leak.verdict == Verdict::FreedAtExit).then_some(leak.grown),
                stack,
                evidence: &leak.evidence,
            })?;
        }
        list.end()
    }
}

/// How leaks are shown.
#[derive(Clone, Debug)]
pub struct Options {
    /// Stacks are merged when this number of innermost program frames is the same; 0: only when
    /// they are the same throughout.
    pub depth: usize,
    /// Frames of each stack in text, `usize::MAX`: all; none: a few, or as many as stacks are
    /// merged by.
    pub frames: Option<usize>,
    /// How many are listed; JSON lists all unless this was asked for.
    pub top: Option<usize>,
    /// Files of suppressions.
    pub suppressions: Vec<PathBuf>,
    /// Whether what the run-time keeps on purpose is separated, and the program's own suppressions
    /// hold.
    pub built_in: bool,
    /// Print suppressions of what is found, instead.
    pub generate: Option<Dialect>,
}

impl Default for Options {
    fn default() -> Self {
        Options { depth: 0, frames: None, top: None, suppressions: Vec::new(), built_in: true, generate: None }
    }
}

/// Finds the leaks of recordings.
///
/// # Errors
/// When a file of suppressions cannot be read, or a process was named that is not there.
pub fn find<'a>(
    recordings: &'a [Recording],
    query: &Query,
    options: &Options,
    symbols: &mut Symbolizer,
) -> Result<Found<'a>, Error> {
    let progress = Progress::new("reading events");
    let rules = Rules::read(&options.suppressions, options.built_in)?;
    let (leaks, at_exit, missing) = (Vec::new(), Vec::new(), Vec::new());
    let mut found = Found { leaks, at_exit, total: Total::default(), peak_bytes: 0, missing, rules };
    for image in query.images(recordings, symbols)? {
        if options.built_in {
            found.rules.add_own(image, symbols);
        }
        let lacking = if image.has_events() {
            of_events(image, query, options.depth, symbols, &progress, &mut found)
        } else {
            of_sums(image, query, &progress, symbols, &mut found)?
        };
        found.missing.push((image, lacking));
    }
    found.leaks.sort_by_key(Leak::order);
    found.at_exit.sort_by_key(Leak::order);
    for leak in found.leaks.iter().filter(|leak| leak.kept.is_none()) {
        found.total.bytes = found.total.bytes.saturating_add(leak.bytes);
        found.total.blocks += leak.blocks;
        found.total.stacks += leak.sites;
    }
    Ok(found)
}

/// `heaptape leaks`.
///
/// # Errors
/// When nothing can be read, or `out` fails.
pub fn run(query: &Query, options: &Options, out: &mut dyn Write, style: Style) -> Result<Outcome, Error> {
    let recordings = query.open()?;
    let mut symbols = query.symbolizer();
    let mut found = find(&recordings, query, options, &mut symbols)?;
    let lacking =
        found.missing.iter().map(|(_, missing)| missing.len()).chain(recordings.iter().map(|r| r.missing.len())).sum();
    if let Some(dialect) = options.generate {
        suppressions(&found, dialect, options, &mut symbols, out)?;
    } else if query.json {
        let top = |leaks: &[Leak]| options.top.unwrap_or(leaks.len()).min(leaks.len());
        let processes = found.missing.iter().map(|(image, missing)| Process {
            head: Head::of(image, missing),
            inherited_blocks: image.tape.inherited.as_ref().map_or(0, |inherited| inherited.blocks),
            inherited_bytes: image.tape.inherited.as_ref().map_or(0, |inherited| inherited.bytes),
        });
        let processes = processes.collect();
        let symbols = RefCell::new(symbols);
        let answer = Answer {
            leaks: Each(&found.leaks[..top(&found.leaks)], &symbols),
            freed_at_exit: Each(&found.at_exit[..top(&found.at_exit)], &symbols),
            total: found.total,
            suppressions: found.rules.eaten(),
            processes,
        };
        json::print(out, &answer)?;
    } else {
        found.leaks.retain(|leak| leak.kept.is_none());
        let mut screen = Screen::new(out, style);
        text::print(&found, options, &mut symbols, &mut screen)?;
        for recording in &recordings {
            say_missing(&mut screen, "", &recording.missing)?;
        }
        let images: Vec<&Image> = found.missing.iter().map(|(image, _)| *image).collect();
        query.processes.note(&images).iter().try_for_each(|note| screen.line(note))?;
    }
    Ok(Outcome::of(lacking))
}

/// Suppressions of what was found, ready for a file.
fn suppressions(
    found: &Found,
    dialect: Dialect,
    options: &Options,
    symbols: &mut Symbolizer,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let mut told = Vec::new();
    let own = found.leaks.iter().filter(|leak| leak.kept.is_none());
    for leak in own.take(options.top.unwrap_or(usize::MAX)) {
        let stack = suppressed::seen(leak.image, symbols, leak.site);
        let rule = generate(dialect, &stack, suppressed::blamed_frame(&stack), told.len() + 1);
        let rule: Vec<_> = rule.lines().map(|line| clean(line).into_owned()).collect();
        let rule = rule.join("\n");
        if !rule.is_empty() && !told.contains(&rule) {
            writeln!(out, "{rule}")?;
            told.push(rule);
        }
    }
    Ok(())
}

/// Sites that are told together.
#[derive(Default)]
struct Group {
    /// The site with the most bytes, and how many these are.
    site: u32,
    greatest: u64,
    sites: u64,
    survivors: Survivors,
    history: History,
    kept: Option<&'static str>,
}

/// Leaks of an image with events.
fn of_events<'a>(
    image: &'a Image,
    query: &Query,
    depth: usize,
    symbols: &mut Symbolizer,
    progress: &Progress,
    found: &mut Found<'a>,
) -> Vec<Missing> {
    let span = image.span(&query.range);
    let axis = axis(image, span);
    let mut model = Leaks::new(axis, image.tape.process.free_sites);
    let outcome = query.replay(image, span.with_history(), symbols, progress, &mut model);
    let mut missing = image.missing.clone();
    missing.extend(outcome.missing);
    let born = Span { end: u64::MAX, end_tick: u64::MAX, ..span };
    let by = query.by.unwrap_or(if depth == 0 { By::Stack } else { By::Frames(depth) });
    let mut survivors: Vec<((u32, bool), Survivors)> = model.survivors(&outcome.live, born).into_iter().collect();
    let run = run_of(image, axis, span, &model, &missing);
    survivors.sort_by_key(|(key, _)| *key);
    let mut groups: FxHashMap<(Vec<String>, bool, Option<&'static str>), Group> = FxHashMap::default();
    for ((site, inherited), survivors) in survivors {
        let (blocks, bytes) = (survivors.blocks, survivors.bytes);
        if found.rules.eat(image, symbols, site, blocks, bytes) {
            continue;
        }
        let kept = found.rules.keep(image, symbols, site, blocks, bytes);
        let names = key(symbols, image.stacks(), site, by);
        let group = groups.entry((names, inherited, kept)).or_insert_with(|| Group { site, kept, ..Group::default() });
        if survivors.bytes > group.greatest {
            (group.site, group.greatest) = (site, survivors.bytes);
        }
        group.sites += 1;
        group.survivors.merge(&survivors);
        group.history.merge(&model.history(site));
    }
    let mut leaks = Vec::new();
    for Group { site, sites, survivors, history, kept, .. } in groups.into_values() {
        let verdict = judge(&run, &history, &survivors);
        let freed = freed_at(image, &model, site, symbols);
        let evidence = Some(evidence::evidence(image, &run, &history, &survivors, freed));
        let (blocks, bytes) = (survivors.blocks, survivors.bytes);
        leaks.push(Leak { image, verdict, site, sites, blocks, bytes, grown: 0, evidence, kept });
    }
    settle(&run, &mut leaks, symbols);
    found.leaks.extend(leaks);
    found.peak_bytes = found.peak_bytes.saturating_add(run.peak_bytes);
    // What lives on has a stack of its own; of this nothing does: a function says enough.
    let by = if by == By::Stack && query.by.is_none() { By::Function } else { by };
    at_exit(image, &run, &model, by, symbols, found);
    missing
}

/// Calls growth what it is only where there is enough of it to tell.
fn settle(run: &Run, leaks: &mut [Leak], symbols: &mut Symbolizer) {
    let mut growth = Growth::default();
    let mut functions: Vec<Option<Vec<String>>> = Vec::new();
    for leak in leaks.iter() {
        let rises = matches!(leak.verdict, Verdict::Growing | Verdict::Slow);
        let function = rises.then(|| key(symbols, leak.image.stacks(), leak.site, By::Function));
        if let Some(function) = &function {
            growth.add(function.clone(), leak.verdict, leak.bytes);
        }
        functions.push(function);
    }
    for (leak, function) in leaks.iter_mut().zip(functions) {
        let Some(function) = function else { continue };
        let settled = growth.settle(run, &function, leak.verdict);
        if settled != leak.verdict
            && let Some(evidence) = &mut leak.evidence
        {
            evidence.trend = Some(leak.verdict);
        }
        leak.verdict = settled;
    }
}

/// Functions whose sites were emptied only at the end. While events are missing nothing is said:
/// what looks empty may not be.
fn at_exit<'a>(image: &'a Image, run: &Run, model: &Leaks, by: By, symbols: &mut Symbolizer, found: &mut Found<'a>) {
    let mut groups: FxHashMap<Vec<String>, Group> = FxHashMap::default();
    for (site, history) in model.histories().filter(|(_, history)| run.hidden == 0 && is_kept_to_exit(history)) {
        let names = key(symbols, image.stacks(), site, by);
        let group = groups.entry(names).or_default();
        if history.peak_bytes > group.greatest {
            (group.site, group.greatest) = (site, history.peak_bytes);
        }
        group.sites += 1;
        group.history.merge(&history);
    }
    let mut all = History::default();
    // Sums at one moment: what several sites had at most they may have had at different ones.
    let together = |history: &History| history.series.iter().copied().max().unwrap_or(0);
    for Group { site, greatest, sites, mut history, .. } in groups.into_values() {
        if !is_freed_at_exit(&history) {
            continue;
        }
        all.merge(&history);
        let grown = if sites == 1 { greatest } else { together(&history) };
        history.peak_bytes = grown;
        let freed_at = freed_at(image, model, site, symbols);
        let evidence = Some(evidence::evidence(image, run, &history, &Survivors::default(), freed_at));
        let verdict = Verdict::FreedAtExit;
        found.at_exit.push(Leak { image, verdict, site, sites, blocks: 0, bytes: 0, grown, evidence, kept: None });
    }
    found.total.grown_bytes = found.total.grown_bytes.saturating_add(together(&all));
}

/// Leaks of sums: what was allocated and not freed, with evidence where the sums were looked at
/// through the run.
fn of_sums<'a>(
    image: &'a Image,
    query: &Query,
    progress: &Progress,
    symbols: &mut Symbolizer,
    found: &mut Found<'a>,
) -> Result<Vec<Missing>, Error> {
    let mut sums = sums(image, progress);
    if !query.filter.is_all() {
        let chosen = query.filter.sites(image.stacks(), symbols);
        sums.sites.retain(|row| chosen.get(row.site as usize).copied().unwrap_or(false));
    }
    sums.needs_frees(image)?;
    let course = &image.tape.history;
    let lost = sums.accounting.all().lost;
    let (end, rate) = (image.tape.last_tick, image.clock.ticks_per_second);
    let run = snapshots::run_of(course, &sums.totals, end, rate, lost);
    let courses: FxHashMap<u32, &SiteHistory> = course.sites.iter().map(|site| (site.site, site)).collect();
    let mut leaks = Vec::new();
    for row in &sums.sites {
        let (blocks, bytes) = (row.allocs.saturating_sub(row.frees), row.bytes.saturating_sub(row.freed_bytes));
        if (blocks > 0 || bytes > 0) && !found.rules.eat(image, symbols, row.site, blocks, bytes) {
            let judged = run.as_ref().zip(courses.get(&row.site)).map(|(run, site)| {
                let (history, survivors) = snapshots::evidence_of(run, course, site, row);
                let verdict = judge_snapshots(run, &history, &survivors);
                (verdict, Some(evidence::of_course(image, run, &history, &survivors)))
            });
            let (verdict, evidence) = judged.unwrap_or((Verdict::Uncertain, None));
            leaks.push(Leak {
                image,
                verdict,
                site: row.site,
                sites: 1,
                blocks,
                bytes,
                grown: 0,
                evidence,
                kept: None,
            });
        }
    }
    if let Some(run) = &run {
        settle(run, &mut leaks, symbols);
    }
    found.leaks.extend(leaks);
    Ok(sums.missing)
}

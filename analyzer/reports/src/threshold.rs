//! Thresholds for CI: `--fail-if 'leaked > 0'`. Measures the metrics, evaluates the conditions, and
//! reports the call sites that made them hold in at most 20 lines.

mod expression;
mod files;

pub use expression::{Expression, METRICS};
pub use files::{junit, sarif};

use expression::{CROSSED, FREED_AT_EXIT, Unit};
use heaptape_analyzer::model::verdict::Verdict;
use heaptape_analyzer::report::diff::{self, DiffInput};
use heaptape_analyzer::report::frames::{SourceLines, call_site, call_site_line};
use heaptape_analyzer::report::leaks::{self, CrossedBlocks, LeakReport};
use heaptape_analyzer::report::stack_text::text_stack;
use heaptape_analyzer::report::{Error, Query, Scope, Unanswerable};
use heaptape_analyzer::sums;
use heaptape_analyzer::symbols::Symbolizer;
use heaptape_analyzer::text::{self, Screen, Style, counted};
use heaptape_analyzer::{Missing, Progress, missing_lines};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;

/// The comparison that conditions on `diff.…` are about.
#[derive(Clone, Debug)]
pub struct DiffRequest {
    /// Runs of the old side.
    pub a: Vec<DiffInput>,
    /// Runs of the new side.
    pub b: Vec<DiffInput>,
    pub options: diff::Options,
}

/// A call site that made a condition hold.
#[derive(Clone, Debug, Serialize)]
pub struct Culprit {
    /// Sentence that says what the call site did.
    pub text: String,
    /// Verdict on a leak, or the kind of change.
    pub kind: String,
    /// Source file, if debug information names it.
    pub file: Option<String>,
    /// Line in the source file.
    pub line: Option<u32>,
    /// Call stack, the innermost program frame first.
    pub stack: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct ThresholdResult {
    /// The condition as it was written.
    #[serde(rename = "gate")]
    pub threshold: String,
    #[serde(skip)]
    pub metric: &'static str,
    /// Operator and value of the condition, such as `> 0`.
    #[serde(skip)]
    pub limit: String,
    /// Whether the condition holds, which makes the command fail.
    pub failed: bool,
    /// Measured value of the metric.
    pub value: f64,
    /// Measured value with its unit, for people.
    pub shown: String,
    /// Call sites that made the condition hold, worst first.
    pub culprits: Vec<Culprit>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct ThresholdResults {
    /// Result of each condition, in the order of the command line.
    #[serde(rename = "gates")]
    pub thresholds: Vec<ThresholdResult>,
    /// What is missing from the recordings, as sentences: a condition may hold for what is missing.
    pub missing: Vec<String>,
    /// Notes on the processes: several have one name.
    pub notes: Vec<String>,
    /// Whether a program of the recordings, or an allocator of it, was not seen. Then a condition
    /// that does not hold is no answer: it may hold for what was not seen.
    pub unseen: bool,
}

impl ThresholdResults {
    /// Returns whether any condition holds.
    pub fn failed(&self) -> bool {
        self.thresholds.iter().any(|threshold| threshold.failed)
    }

    /// Returns whether it is not known if a condition holds.
    pub(crate) const fn is_unanswered(&self, threshold: &ThresholdResult) -> bool {
        !threshold.failed && self.unseen
    }
}

/// Maximum number of call sites that are reported for each condition.
const MAX_CULPRITS: usize = 5;
/// Maximum number of lines of text.
const MAX_LINES: usize = 20;

/// Evaluates conditions on the recordings of a query.
///
/// # Errors
/// Returns an error when a recording cannot be read, when the query selects nothing, when a
/// recording does not hold a metric, and when a condition on `diff.…` has no comparison.
pub fn evaluate(
    thresholds: &[Expression],
    query: &Query,
    options: &leaks::Options,
    against: Option<&DiffRequest>,
) -> Result<ThresholdResults, Error> {
    let mut results = ThresholdResults::default();
    let mut values: BTreeMap<&'static str, f64> = BTreeMap::new();
    let mut symbols = query.view.symbolizer();
    let recordings = query.open()?;
    let needs = |of: fn(&Expression) -> bool| thresholds.iter().any(of);
    // A recording of nothing passes no threshold, of any metric. A comparison checks both sides by
    // itself.
    if needs(|threshold| !threshold.is_of_diff()) {
        let processes = query.scope.processes(&recordings, &mut symbols)?;
        results.notes.extend(query.scope.processes.note(&processes));
    }
    for recording in &recordings {
        results.missing.extend(missing_lines(&recording.missing));
        let processes = recording.processes.iter().filter(|process| query.scope.processes.matches(process));
        let of_processes = processes.flat_map(|process| &process.missing);
        results.unseen |= recording.missing.iter().chain(of_processes).any(Missing::is_unseen);
    }
    if needs(Expression::is_of_sums) {
        measure_totals(&recordings, &query.scope, &mut symbols, &mut values, &mut results)?;
    }
    let found = match needs(Expression::is_of_leaks) {
        true => Some(leaks::find(&recordings, query, options, &mut symbols)?),
        false => None,
    };
    if let Some(found) = &found {
        measure_leaks(found, &mut values);
        let lacking = found.missing.iter().flat_map(|(_, missing)| missing.iter().map(ToString::to_string));
        let lacking: Vec<String> = lacking.filter(|missing| !results.missing.contains(missing)).collect();
        results.missing.extend(lacking);
    }
    let compared = match (needs(Expression::is_of_diff), against) {
        (false, _) => None,
        (true, Some(against)) => Some(diff::compare(&against.a, &against.b, &against.options)?),
        (true, None) => return Err(Unanswerable::NoSecondSide.into()),
    };
    for threshold in thresholds {
        let missing = || Unanswerable::NotMeasurable {
            condition: threshold.text.to_string(),
            metric: threshold.metric.to_string(),
        };
        let value = match (&compared, threshold.is_of_diff()) {
            (Some(compared), true) => measure_change(compared, threshold).ok_or_else(missing)?,
            _ => *values.get(threshold.metric).ok_or_else(missing)?,
        };
        let failed = threshold.holds(value);
        let culprits = match (failed, &found, &compared) {
            (false, ..) => Vec::new(),
            (true, _, Some(compared)) if threshold.is_of_diff() => changed_sites(compared, threshold, value),
            (true, Some(found), _) if threshold.is_of_leaks() => leaking_sites(found, threshold, &mut symbols),
            _ => Vec::new(),
        };
        let (metric, limit) = (threshold.metric, threshold.limit());
        let (threshold, shown) = (threshold.text.clone(), shown(threshold, value));
        results.thresholds.push(ThresholdResult { threshold, metric, limit, failed, value, shown, culprits });
    }
    if let Some(compared) = compared {
        results.missing.extend(compared.missing);
    }
    Ok(results)
}

/// Formats a measured value with its unit.
fn shown(threshold: &Expression, value: f64) -> String {
    let number = value.abs().min(u64::MAX as f64) as u64;
    let sign = if value < 0.0 { "-" } else { "" };
    match threshold.unit {
        Unit::Percent if value.is_infinite() => "new, from 0".into(),
        Unit::Percent => format!("{value:+.2}%"),
        // In a comparison, the sign is the direction of the change.
        _ if threshold.is_of_diff() && value > 0.0 && threshold.metric != "diff.sites" => match threshold.unit {
            Unit::Bytes => format!("+{}", text::bytes(number)),
            _ => format!("+{}", text::count(number)),
        },
        Unit::Bytes => format!("{sign}{}", text::bytes(number)),
        Unit::Count => format!("{sign}{}", text::count(number)),
    }
}

/// Measures the metrics of totals.
fn measure_totals(
    recordings: &[heaptape_analyzer::Recording],
    scope: &Scope,
    symbols: &mut Symbolizer,
    values: &mut BTreeMap<&'static str, f64>,
    results: &mut ThresholdResults,
) -> Result<(), Error> {
    let progress = Progress::new("reading events");
    for process in scope.processes(recordings, symbols)? {
        let sums = match scope.is_all() {
            true => sums(process, &progress),
            false => scope.sums(process, symbols, &progress),
        };
        results.missing.extend(sums.missing.iter().map(ToString::to_string));
        let totals = &sums.totals;
        let added = [
            ("live", totals.live_bytes),
            ("live.blocks", totals.live_blocks),
            ("allocated", totals.bytes_allocated),
            ("allocs", totals.allocs),
            ("resizes", totals.resizes),
            ("frees", totals.frees),
            ("unknown-frees", totals.unknown_frees),
            ("lost", sums.accounting.all().lost),
        ];
        for (name, value) in added {
            *values.entry(name).or_default() += value as f64;
        }
        // The peaks of several processes are at different times, so the largest one counts.
        for (name, value) in [("peak", totals.peak_bytes), ("peak.blocks", totals.peak_blocks)] {
            if sums.has_peak {
                let most = values.entry(name).or_default();
                *most = most.max(value as f64);
            }
        }
    }
    Ok(())
}

/// Returns the verdict of the leaks that a metric counts; `None` if it counts all.
fn verdict_of(metric: &str) -> Option<Verdict> {
    match metric {
        "leaked.growing" => Some(Verdict::Growing),
        "leaked.slow" => Some(Verdict::Slow),
        "leaked.container-growth" => Some(Verdict::ContainerGrowth),
        "leaked.one-time" => Some(Verdict::OneTime),
        "leaked.too-little" => Some(Verdict::TooLittle),
        "leaked.uncertain" => Some(Verdict::Uncertain),
        _ => None,
    }
}

/// Measures the metrics of leaks.
fn measure_leaks(found: &LeakReport, values: &mut BTreeMap<&'static str, f64>) {
    let own = || found.leaks.iter().filter(|leak| leak.kept.is_none() && leak.verdict != Verdict::Inherited);
    for metric in METRICS.iter().map(|metric| metric.name).filter(|name| name.starts_with("leaked")) {
        let bytes = match (metric, verdict_of(metric)) {
            ("leaked.blocks", _) => own().map(|leak| leak.blocks as f64).sum(),
            ("leaked.stacks", _) => own().count() as f64,
            (_, Some(class)) => own().filter(|leak| leak.verdict == class).map(|leak| leak.bytes as f64).sum(),
            (_, None) => own().map(|leak| leak.bytes as f64).sum(),
        };
        values.insert(metric, bytes);
    }
    values.insert(FREED_AT_EXIT, found.total.grown_bytes as f64);
    // Sums do not have it.
    if found.missing.iter().all(|(process, _)| process.has_events()) {
        values.insert(CROSSED, found.crossed.iter().map(|crossed| crossed.blocks() as f64).sum());
    }
}

/// Returns the change of the metric of a condition, or its percentage of the old value.
fn measure_change(found: &diff::Comparison, threshold: &Expression) -> Option<f64> {
    let (a, b) = match threshold.metric {
        "diff.live" => (found.a.live_bytes, found.b.live_bytes),
        "diff.live.blocks" => (found.a.live_blocks, found.b.live_blocks),
        "diff.allocated" => (found.a.bytes, found.b.bytes),
        "diff.allocs" => (found.a.allocs, found.b.allocs),
        "diff.sites" => return Some(found.changes.len() as f64),
        _ => found.peak_bytes?,
    };
    Some(match threshold.unit {
        Unit::Percent if a == b => 0.0,
        Unit::Percent if a == 0.0 => f64::INFINITY,
        Unit::Percent => (b - a) * 100.0 / a,
        _ => b - a,
    })
}

/// Returns the call sites whose changes made a condition hold.
fn changed_sites(found: &diff::Comparison, threshold: &Expression, value: f64) -> Vec<Culprit> {
    let delta = |change: &diff::Change| match threshold.metric {
        "diff.live" | "diff.peak" => change.delta.live_bytes,
        "diff.live.blocks" => change.delta.live_blocks,
        "diff.allocs" => change.delta.allocs,
        _ => change.delta.bytes,
    };
    // Where the total decreased, the sites that decreased are reported.
    let sign = if threshold.metric != "diff.sites" && value < 0.0 { -1.0 } else { 1.0 };
    let grew = |change: &&diff::Change| threshold.metric == "diff.sites" || delta(change) * sign > 0.0;
    let mut worst: Vec<&diff::Change> = found.changes.iter().filter(grew).collect();
    worst.sort_by(|x, y| (delta(y) * sign).total_cmp(&(delta(x) * sign)));
    let culprits = worst.into_iter().take(MAX_CULPRITS).map(|change| Culprit {
        text: diff::change_line(change),
        kind: change.status.into(),
        file: change.file.clone(),
        line: change.line,
        stack: change.stack.iter().filter(|frame| frame.program).map(|frame| frame.function.clone()).collect(),
    });
    culprits.collect()
}

/// Returns the call sites whose leaks made a condition hold.
fn leaking_sites(found: &LeakReport, threshold: &Expression, symbols: &mut Symbolizer) -> Vec<Culprit> {
    if threshold.metric == CROSSED {
        let culprit = |crossed: &CrossedBlocks| {
            let site = call_site(symbols, crossed.process().stacks(), crossed.site(), 3);
            let (stack, _) = text_stack(symbols, crossed.process().stacks(), crossed.site(), 8);
            let text = crossed.line(symbols);
            Culprit { text, kind: CROSSED.into(), file: site.frame.file.clone(), line: site.frame.line, stack }
        };
        return found.crossed.iter().take(MAX_CULPRITS).map(culprit).collect();
    }
    let wanted = verdict_of(threshold.metric);
    let list = if threshold.metric == FREED_AT_EXIT { &found.freed_at_exit } else { &found.leaks };
    let own = list.iter().filter(|leak| leak.kept.is_none());
    let culprits = own.filter(|leak| wanted.is_none_or(|class| leak.verdict == class)).take(MAX_CULPRITS).map(|leak| {
        let stacks = leak.process.stacks();
        let call_site = call_site(symbols, stacks, leak.site, 3);
        let (stack, _) = text_stack(symbols, stacks, leak.site, 8);
        let blamed = call_site_line(&call_site, &SourceLines::default(), symbols.names());
        let (size, blocks) = (text::bytes(leak.bytes.max(leak.grown)), counted(leak.blocks, "block"));
        Culprit {
            text: match leak.verdict {
                Verdict::FreedAtExit => format!("grew to {size}, {}: {blamed}", leak.verdict.name()),
                verdict => format!("{size} in {blocks}, {}: {blamed}", verdict.name()),
            },
            kind: leak.verdict.name().into(),
            file: call_site.frame.file.clone(),
            line: call_site.frame.line,
            stack,
        }
    });
    culprits.collect()
}

/// Prints the results as text or JSON.
///
/// # Errors
/// Returns an error when `out` fails.
pub fn print(results: &ThresholdResults, as_json: bool, out: &mut dyn Write, style: Style) -> Result<(), Error> {
    if as_json {
        heaptape_analyzer::report::json::print(out, results)?;
        return Ok(());
    }
    let mut lines = Vec::new();
    for threshold in &results.thresholds {
        let status = match (threshold.failed, results.is_unanswered(threshold)) {
            (true, _) => "FAILED",
            (false, true) => "no answer",
            (false, false) => "ok",
        };
        lines.push((
            threshold.failed,
            format!("{status}: {} = {} (limit: {})", threshold.metric, threshold.shown, threshold.limit),
        ));
        lines.extend(
            threshold.culprits.iter().enumerate().map(|(at, one)| (true, format!("  {}. {}", at + 1, one.text))),
        );
    }
    for line in results.missing.iter().chain(&results.notes) {
        lines.push((false, format!("! {line}")));
    }
    // Failed conditions come before those that passed and before what is missing.
    if lines.len() > MAX_LINES {
        lines.sort_by_key(|(failed, _)| !failed);
        let more = lines.len() - (MAX_LINES - 1);
        lines.truncate(MAX_LINES - 1);
        lines.push((false, format!("… {} more", counted(more as u64, "line"))));
    }
    let mut screen = Screen::new(out, style);
    for (_, line) in lines {
        screen.line(&text::shorten(&line, style.width))?;
    }
    Ok(())
}

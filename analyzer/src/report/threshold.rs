//! Thresholds for CI: `--fail-if 'leaked > 0'`. What is measured, whether it passes, and why not in
//! at most 20 lines.

mod expression;
mod files;

pub use expression::{Expression, METRICS, bytes};
pub use files::{junit, sarif};

use super::diff::{self, Side};
use super::frames::{Lines, place, place_line};
use super::leaks::{self, Found};
use super::stack_text::text_stack;
use super::sums::sums;
use super::{Error, Query};
use crate::model::verdict::Verdict;
use crate::progress::Progress;
use crate::symbols::Symbolizer;
use crate::text::{self, Screen, Style, counted};
use expression::{FREED_AT_EXIT, Unit};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;

/// A comparison that thresholds may be about.
#[derive(Clone, Debug)]
pub struct Against {
    /// The old side's runs.
    pub a: Vec<Side>,
    /// The new side's runs.
    pub b: Vec<Side>,
    /// How they are compared.
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

/// Result of one condition.
#[derive(Clone, Debug, Serialize)]
pub struct Judged {
    /// The condition as it was written.
    #[serde(rename = "gate")]
    pub threshold: String,
    /// Name of the metric.
    #[serde(skip)]
    pub metric: &'static str,
    /// Operator and value of the condition, such as `> 0`.
    #[serde(skip)]
    pub limit: String,
    /// Whether the condition holds, which makes the command fail.
    pub failed: bool,
    /// Measured value.
    pub value: f64,
    /// Measured value with its unit, for people.
    pub shown: String,
    /// Call sites that made the condition hold, worst first.
    pub culprits: Vec<Culprit>,
}

/// Results of all conditions.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Verdicts {
    /// Result of each condition, in the order of the command line.
    #[serde(rename = "gates")]
    pub thresholds: Vec<Judged>,
    /// What is missing from the recordings, as sentences: a condition may hold for what is missing.
    pub missing: Vec<String>,
    /// Notes on the processes: some were not recorded, or several have one name.
    pub notes: Vec<String>,
}

impl Verdicts {
    /// Returns whether any condition holds.
    pub fn failed(&self) -> bool {
        self.thresholds.iter().any(|threshold| threshold.failed)
    }
}

/// Culprits told of.
const CULPRITS: usize = 5;
/// Lines of text on failure.
const LINES: usize = 20;

/// Judges thresholds.
///
/// # Errors
/// When nothing can be read, or a threshold asks for what is not there.
pub fn judge(
    thresholds: &[Expression],
    query: &Query,
    options: &leaks::Options,
    against: Option<&Against>,
) -> Result<Verdicts, Error> {
    let mut verdicts = Verdicts::default();
    let mut values: BTreeMap<&'static str, f64> = BTreeMap::new();
    let mut symbols = query.symbolizer();
    let recordings = query.open()?;
    let needs = |of: fn(&Expression) -> bool| thresholds.iter().any(of);
    // Whatever is measured, a recording of nothing passes no threshold. A comparison looks at both
    // sides by itself.
    if needs(|threshold| !threshold.is_of_diff()) {
        let images = query.images(&recordings, &mut symbols)?;
        verdicts.notes.extend(query.processes.note(&images));
    }
    for recording in &recordings {
        verdicts.missing.extend(recording.missing.iter().map(ToString::to_string));
        for process in recording.about.iter().flat_map(|about| &about.not_traced) {
            let name = process.exe.rsplit('/').next().unwrap_or_default();
            verdicts.notes.push(format!("{name} (pid {}) was not recorded: {}", process.pid, process.why));
        }
    }
    if needs(Expression::is_of_sums) {
        of_sums(&recordings, query, &mut values, &mut verdicts)?;
    }
    let found = match needs(Expression::is_of_leaks) {
        true => Some(leaks::find(&recordings, query, options, &mut symbols)?),
        false => None,
    };
    if let Some(found) = &found {
        of_leaks(found, &mut values);
        let lacking = found.missing.iter().flat_map(|(_, missing)| missing.iter().map(ToString::to_string));
        let lacking: Vec<String> = lacking.filter(|missing| !verdicts.missing.contains(missing)).collect();
        verdicts.missing.extend(lacking);
    }
    let compared = match (needs(Expression::is_of_diff), against) {
        (false, _) => None,
        (true, Some(against)) => Some(diff::find(&against.a, &against.b, &against.options)?),
        (true, None) => {
            return Err(Error::Unanswerable(
                "a condition on diff.… needs two sides: heaptape diff A B --fail-if …".into(),
            ));
        }
    };
    for threshold in thresholds {
        let missing = || {
            let why = "the recording holds only sums, which do not say it";
            Error::Unanswerable(format!("{}: {} cannot be measured: {why}", threshold.text, threshold.metric))
        };
        let value = match (&compared, threshold.is_of_diff()) {
            (Some(compared), true) => of_diff(compared, threshold).ok_or_else(missing)?,
            _ => *values.get(threshold.metric).ok_or_else(missing)?,
        };
        let failed = threshold.holds(value);
        let culprits = match (failed, &found, &compared) {
            (false, ..) => Vec::new(),
            (true, _, Some(compared)) if threshold.is_of_diff() => changed(compared, threshold, value),
            (true, Some(found), _) if threshold.is_of_leaks() => leaking(found, threshold, &mut symbols),
            _ => Vec::new(),
        };
        let (metric, limit) = (threshold.metric, threshold.limit());
        let (threshold, shown) = (threshold.text.clone(), shown(threshold, value));
        verdicts.thresholds.push(Judged { threshold, metric, limit, failed, value, shown, culprits });
    }
    if let Some(compared) = compared {
        verdicts.missing.extend(compared.missing);
    }
    Ok(verdicts)
}

fn shown(threshold: &Expression, value: f64) -> String {
    let number = value.abs().min(u64::MAX as f64) as u64;
    let sign = if value < 0.0 { "-" } else { "" };
    match threshold.unit {
        Unit::Percent if value.is_infinite() => "new, from 0".into(),
        Unit::Percent => format!("{value:+.2}%"),
        // Of a comparison the sign says in which direction.
        _ if threshold.is_of_diff() && value > 0.0 && threshold.metric != "diff.sites" => match threshold.unit {
            Unit::Bytes => format!("+{}", text::bytes(number)),
            _ => format!("+{}", text::count(number)),
        },
        Unit::Bytes => format!("{sign}{}", text::bytes(number)),
        Unit::Count => format!("{sign}{}", text::count(number)),
    }
}

fn of_sums(
    recordings: &[crate::load::Recording],
    query: &Query,
    values: &mut BTreeMap<&'static str, f64>,
    verdicts: &mut Verdicts,
) -> Result<(), Error> {
    let progress = Progress::new("reading events");
    let mut symbols = query.symbolizer();
    for image in query.images(recordings, &mut symbols)? {
        let sums = match query.is_all() {
            true => sums(image, &progress),
            false => super::sums::of_asked(image, query, &mut symbols, &progress),
        };
        verdicts.missing.extend(sums.missing.iter().map(ToString::to_string));
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
        // Peaks of several processes are at different times: the greatest counts.
        for (name, value) in [("peak", totals.peak_bytes), ("peak.blocks", totals.peak_blocks)] {
            if sums.has_peak {
                let most = values.entry(name).or_default();
                *most = most.max(value as f64);
            }
        }
    }
    Ok(())
}

/// The class of leaks that a metric is about; none: all.
fn class(metric: &str) -> Option<Verdict> {
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

fn of_leaks(found: &Found, values: &mut BTreeMap<&'static str, f64>) {
    let own = || found.leaks.iter().filter(|leak| leak.kept.is_none() && leak.verdict != Verdict::Inherited);
    for metric in METRICS.iter().map(|(name, ..)| *name).filter(|name| name.starts_with("leaked")) {
        let bytes = match (metric, class(metric)) {
            ("leaked.blocks", _) => own().map(|leak| leak.blocks as f64).sum(),
            ("leaked.stacks", _) => own().count() as f64,
            (_, Some(class)) => own().filter(|leak| leak.verdict == class).map(|leak| leak.bytes as f64).sum(),
            (_, None) => own().map(|leak| leak.bytes as f64).sum(),
        };
        values.insert(metric, bytes);
    }
    values.insert(FREED_AT_EXIT, found.total.grown_bytes as f64);
}

/// The change that a threshold is about, or its share of the old value.
fn of_diff(found: &diff::Found, threshold: &Expression) -> Option<f64> {
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

fn changed(found: &diff::Found, threshold: &Expression, value: f64) -> Vec<Culprit> {
    let delta = |change: &diff::Change| match threshold.metric {
        "diff.live" | "diff.peak" => change.delta.live_bytes,
        "diff.live.blocks" => change.delta.live_blocks,
        "diff.allocs" => change.delta.allocs,
        _ => change.delta.bytes,
    };
    // Where the whole became less, those that became less are named.
    let sign = if threshold.metric != "diff.sites" && value < 0.0 { -1.0 } else { 1.0 };
    let grew = |change: &&diff::Change| threshold.metric == "diff.sites" || delta(change) * sign > 0.0;
    let mut worst: Vec<&diff::Change> = found.changes.iter().filter(grew).collect();
    worst.sort_by(|x, y| (delta(y) * sign).total_cmp(&(delta(x) * sign)));
    let told = worst.into_iter().take(CULPRITS).map(|change| Culprit {
        text: diff::change_line(change),
        kind: change.status.into(),
        file: change.file.clone(),
        line: change.line,
        stack: change.stack.iter().filter(|frame| frame.program).map(|frame| frame.function.clone()).collect(),
    });
    told.collect()
}

fn leaking(found: &Found, threshold: &Expression, symbols: &mut Symbolizer) -> Vec<Culprit> {
    let wanted = class(threshold.metric);
    let list = if threshold.metric == FREED_AT_EXIT { &found.at_exit } else { &found.leaks };
    let own = list.iter().filter(|leak| leak.kept.is_none());
    let told = own.filter(|leak| wanted.is_none_or(|class| leak.verdict == class)).take(CULPRITS).map(|leak| {
        let stacks = leak.image.stacks();
        let place = place(symbols, stacks, leak.site, 3);
        let (stack, _) = text_stack(symbols, stacks, leak.site, 8);
        let blamed = place_line(&place, &Lines::default());
        let (size, blocks) = (text::bytes(leak.bytes.max(leak.grown)), counted(leak.blocks, "block"));
        Culprit {
            text: match leak.verdict {
                Verdict::FreedAtExit => format!("grew to {size}, {}: {blamed}", leak.verdict.name()),
                verdict => format!("{size} in {blocks}, {}: {blamed}", verdict.name()),
            },
            kind: leak.verdict.name().into(),
            file: place.frame.file.clone(),
            line: place.frame.line,
            stack,
        }
    });
    told.collect()
}

/// Prints the verdicts.
///
/// # Errors
/// When `out` fails.
pub fn print(verdicts: &Verdicts, as_json: bool, out: &mut dyn Write, style: Style) -> Result<(), Error> {
    if as_json {
        super::json::print(out, verdicts)?;
        return Ok(());
    }
    let mut lines = Vec::new();
    for threshold in &verdicts.thresholds {
        let word = if threshold.failed { "FAILED" } else { "ok" };
        lines.push((
            threshold.failed,
            format!("{word}: {} = {} (limit: {})", threshold.metric, threshold.shown, threshold.limit),
        ));
        lines.extend(
            threshold.culprits.iter().enumerate().map(|(at, one)| (true, format!("  {}. {}", at + 1, one.text))),
        );
    }
    for line in verdicts.missing.iter().chain(&verdicts.notes) {
        lines.push((false, format!("! {line}")));
    }
    // What failed is told before what passed or is missing.
    if lines.len() > LINES {
        lines.sort_by_key(|(failed, _)| !failed);
        let more = lines.len() - (LINES - 1);
        lines.truncate(LINES - 1);
        lines.push((false, format!("… {} more", counted(more as u64, "line"))));
    }
    let mut screen = Screen::new(out, style);
    for (_, line) in lines {
        screen.line(&text::shorten(&line, style.width))?;
    }
    Ok(())
}

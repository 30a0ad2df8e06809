//! `heaptape leaks`: blocks that were never freed, by call stack, with a verdict and its evidence.
//!
//! There are three steps, with a type between each two of them:
//!
//! ```text
//! process ── collect ──> Collected ── judge, name ──> LeakReport ── render ──> text, JSON, rules
//! ```
//!
//! [`collect`] has numbers by call site, and knows no names. [`judged`] and [`at_exit`] name the
//! stacks, leave out what is suppressed, and judge; what they find is in [`findings`]. [`text`],
//! [`json`] and [`suppressed`] print it. The page of the HTML export shares the first two steps,
//! conditions too.

mod at_exit;
mod axis;
mod candidates;
mod collect;
mod crossings;
mod entries;
mod evidence;
mod findings;
mod headline;
mod held;
mod json;
mod judged;
mod leak;
mod source;
mod suppressed;
mod text;
mod totals;

pub(crate) use at_exit::find as freed_at_exit;
pub(crate) use axis::axis;
pub(crate) use candidates::Candidates;
pub(crate) use headline::Headline;
pub(crate) use held::BySite;
pub(crate) use judged::{JudgedLeak, judge_leaks};
pub(crate) use leak::{PROBABLE_WEIGHT, PROBABLY_GROWING};

pub use crossings::CrossedBlocks;
pub use evidence::Evidence;
pub use findings::{LeakReport, Total};
pub use held::{Held, Holder};
pub use leak::Leak;
pub use suppressed::Rules;

use super::mapped::{self, MappedRow, OfProcess};
use super::{Error, Grouping, Outcome, Query, Scope};
use crate::load::{Process, Recording};
use crate::progress::Progress;
use crate::suppress::Dialect;
use crate::symbols::Symbolizer;
use crate::text::Style;
use std::io::Write;
use std::path::PathBuf;

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
    find_in(query.scope.processes(recordings, symbols)?, &query.scope, query.grouping, options, symbols)
}

/// Finds the leaks of processes.
pub fn find_in<'a>(
    processes: Vec<&'a Process>,
    scope: &Scope,
    grouping: Grouping,
    options: &Options,
    symbols: &mut Symbolizer,
) -> Result<LeakReport<'a>, Error> {
    let progress = Progress::new("reading events");
    let rules = Rules::read(&options.suppressions, options.built_in)?;
    let mut found = LeakReport::new(rules);
    for process in processes {
        if options.built_in {
            found.rules.add_own(process, symbols);
        }
        let collected = collect::collect(process, scope, symbols, &progress)?;
        found.add(collected, grouping.0, options, symbols);
    }
    // The references are those of the end, and of all blocks.
    if scope.is_all() || scope.is_until_core() {
        found.add_holders(symbols);
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
/// use heaptape_analyzer::report::{Query, View, leaks};
/// use heaptape_analyzer::text::Style;
///
/// let query = Query::of(path, View::text(5));
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
    let mut symbols = query.view.symbolizer();
    let is_summed_up =
        !query.view.json && options.generate.is_none() && query.grouping.0.is_none() && options.depth == 0;
    let options = &Options { by_function: is_summed_up, ..options.clone() };
    let mut found = find(&recordings, query, options, &mut symbols)?;
    if !query.scope.mappings.has_blocks() {
        found.without_blocks();
    }
    let of_processes = found.missing.iter().map(|(_, missing)| missing.len());
    let missing_count = of_processes.chain(recordings.iter().map(|recording| recording.missing.len())).sum();
    if let Some(dialect) = options.generate {
        suppressed::write(&found, dialect, options, &mut symbols, out)?;
    } else if query.view.json {
        json::print(&found, &recordings, query, options, symbols, out)?;
    } else {
        let mut screen = query.view.screen(out, style);
        text::print(found, &recordings, query, options, &mut symbols, &mut screen)?;
    }
    Ok(Outcome::of(missing_count))
}

/// Returns what is mapped at the end of the range of the query, those with most bytes first.
fn mapped_leaks(query: &Query, processes: &[&Process], symbols: &mut Symbolizer) -> Vec<OfProcess<MappedRow>> {
    let mut found = Vec::new();
    for process in processes.iter().filter(|_| query.scope.mappings.has_mappings() && query.scope.filter.is_all()) {
        let span = process.span(&query.scope.range);
        let ranges = mapped::ranges_at(process, span.end_tick.saturating_sub(1));
        let own = mapped::own(&ranges).filter(|(range, _)| range.by.tick >= span.first_tick);
        let rows = mapped::rows(query.grouping, process, symbols, own);
        found.extend(rows.into_iter().map(|row| OfProcess { process: process.about.pid, row }));
    }
    found.sort_by_key(|leak| std::cmp::Reverse((leak.row.bytes, leak.row.reserved_bytes)));
    found
}

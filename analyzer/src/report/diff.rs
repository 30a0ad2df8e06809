//! `heaptape diff`: what changed between two runs, builds, processes or points in time, in any
//! supported files.
//!
//! Sites are matched by the names of their innermost program frames, and among those by line, so
//! that neither moved addresses nor lines that were added above them make two of one. Changes
//! within the noise are summed up and not listed.

mod mapped;
mod matching;
mod side;
mod text;

pub(crate) use mapped::MappedChange;
pub use side::{DiffInput, Sums};
pub use text::change_line;

use super::frames::FrameJson;
use super::{Error, Outcome, json, print_lines};
use crate::symbols::{Detail, Origin, Symbolizer};
use crate::text::{Screen, Style};
use matching::SitePair;
use serde::Serialize;
use side::Measurement;
use std::io::Write;

/// How both sides are made comparable.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Normalization {
    /// The sides are compared as they are.
    #[default]
    None,
    /// B is scaled to the length of A's run.
    Time,
    /// B is scaled to the number of A's allocations.
    Events,
    /// Each side is divided by its number of units of work.
    Per(f64, f64),
}

/// The order in which changes are listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Largest change of live bytes first.
    #[default]
    Live,
    /// Largest change of allocated bytes first.
    Allocated,
    /// Largest change of the number of allocations first.
    Allocs,
    /// Largest change relative to both sides first: |b - a| / (a + b).
    Relative,
}

/// Options of `heaptape diff`.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of innermost program frames that must have the same names.
    pub depth: usize,
    /// How both sides are made comparable.
    pub normalization: Normalization,
    /// The order in which changes are listed.
    pub order: Order,
    /// Whether the sides are two points in time of one run, the first one earlier.
    pub within_one: bool,
    /// A change smaller than this fraction of the value of the site is noise.
    pub noise: f64,
    /// A change smaller than this fraction of the whole side is noise.
    pub min_share: f64,
    /// Maximum number of rows; `None` for a few in text, and for all in JSON.
    pub top: Option<usize>,
    /// Whether to print JSON instead of text.
    pub json: bool,
    /// Where the files are found that name frames.
    pub origin: Origin,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            depth: 1,
            normalization: Normalization::None,
            order: Order::Live,
            within_one: false,
            noise: 0.01,
            min_share: 0.001,
            top: None,
            json: false,
            origin: Origin::default(),
        }
    }
}

/// Normalized sums of one site, or of a whole side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Values {
    /// Live bytes at the end, or at the selected point in time.
    pub live_bytes: f64,
    /// Live blocks at the same time.
    pub live_blocks: f64,
    /// Bytes allocated until then.
    pub bytes: f64,
    /// Allocations and reallocations until then.
    pub allocs: f64,
}

impl Values {
    /// Returns the values in the order of the fields.
    pub const fn all(&self) -> [f64; 4] {
        [self.live_bytes, self.live_blocks, self.bytes, self.allocs]
    }

    const fn of([live_bytes, live_blocks, bytes, allocs]: [f64; 4]) -> Values {
        Values { live_bytes, live_blocks, bytes, allocs }
    }

    fn zip(&self, other: &Values, with: impl Fn(f64, f64) -> f64) -> Values {
        let (a, b) = (self.all(), other.all());
        Values::of(std::array::from_fn(|index| with(a[index], b[index])))
    }

    fn add(&mut self, other: &Values) {
        *self = self.zip(other, |a, b| a + b);
    }
}

/// A site that changed.
#[derive(Clone, Debug, Serialize)]
pub struct Change {
    /// `new`, `gone` or `changed`.
    pub status: &'static str,
    /// Names of the functions that the site is matched by, innermost first.
    pub functions: Vec<String>,
    /// Source file of the site, in B if the site is there.
    pub file: Option<String>,
    /// Line in the file; of several lines, the one that allocates most.
    pub line: Option<u32>,
    /// Number of source lines that this change sums up, of the side that has more; 0 if none is
    /// known.
    pub lines: usize,
    /// Values of the site on side A.
    pub a: Values,
    /// Values of the site on side B.
    pub b: Values,
    /// Difference between B and A.
    pub delta: Values,
    /// |b - a| / (a + b) of allocated bytes, or of live bytes if these changed more.
    pub range: f64,
    /// A call stack of the site, innermost frame first.
    pub stack: Vec<FrameJson>,
}

/// The comparison of two sides.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Sums of the whole side A.
    pub a: Values,
    /// Sums of the whole side B.
    pub b: Values,
    /// Peaks of A and B, if both are known.
    pub peak_bytes: Option<(f64, f64)>,
    /// Factor by which B was multiplied.
    pub scale: f64,
    /// Sites that changed, in the selected order.
    pub changes: Vec<Change>,
    /// Number of sites that are equal or differ by noise alone.
    pub quiet_sites: u64,
    /// Sum of the changes of these sites.
    pub quiet: Values,
    /// Call sites whose mapped memory changed, largest change first. It is in no other value.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mapped: Vec<MappedChange>,
    /// Whether a side is sampled: its bytes are estimates, and its blocks those of the sample.
    pub is_sampled: bool,
    /// What is missing from the sides, as sentences.
    pub missing: Vec<String>,
}

/// Compares two sides, each of one run or of several.
///
/// # Errors
/// Returns an error when a recording cannot be read, when a selection or a time range is empty, or
/// when a file does not hold what the comparison needs.
pub fn compare(a: &[DiffInput], b: &[DiffInput], options: &Options) -> Result<Comparison, Error> {
    let mut symbols = Symbolizer::from(Detail::Full, options.origin.clone());
    let known = side::NameMatcher::of(a, b, options.within_one, &mut symbols)?;
    let measure = |sides: &[DiffInput], symbols: &mut Symbolizer| -> Result<Vec<Measurement>, Error> {
        sides.iter().map(|side| side::measure(side, &known, options.depth, symbols)).collect()
    };
    let (runs_a, runs_b) = (measure(a, &mut symbols)?, measure(b, &mut symbols)?);
    let mean =
        |runs: &[Measurement], of: fn(&Measurement) -> f64| runs.iter().map(of).sum::<f64>() / runs.len().max(1) as f64;
    let ratio = |of: fn(&Measurement) -> f64| match (mean(&runs_a, of), mean(&runs_b, of)) {
        (a, b) if a > 0.0 && b > 0.0 => a / b,
        _ => 1.0,
    };
    let (scale_a, scale_b) = match options.normalization {
        Normalization::None => (1.0, 1.0),
        Normalization::Time => (1.0, ratio(|run| run.seconds)),
        Normalization::Events => (1.0, ratio(|run| run.total.allocs as f64)),
        Normalization::Per(a, b) => (1.0 / a, 1.0 / b),
    };
    let pairs = matching::pairs(&runs_a, &runs_b, scale_a, scale_b);
    let mut found = Comparison {
        a: Values::default(),
        b: Values::default(),
        peak_bytes: peaks(&runs_a, &runs_b).map(|(a, b)| (a * scale_a, b * scale_b)),
        scale: scale_b / scale_a,
        changes: Vec::new(),
        quiet_sites: 0,
        quiet: Values::default(),
        mapped: mapped::changes(&runs_a, &runs_b, [scale_a, scale_b], options),
        is_sampled: runs_a.iter().chain(&runs_b).any(|run| run.is_sampled),
        missing: runs_a.iter().chain(&runs_b).flat_map(|run| run.missing.clone()).collect(),
    };
    for pair in &pairs {
        found.a.add(&pair.a);
        found.b.add(&pair.b);
    }
    let whole = found.a.zip(&found.b, f64::max);
    for pair in pairs {
        if is_noise(&pair, &whole, options) {
            found.quiet_sites += 1;
            found.quiet.add(&pair.b.zip(&pair.a, |b, a| b - a));
        } else {
            found.changes.push(change(pair));
        }
    }
    found.changes.sort_by(|x, y| {
        let key = |change: &Change| {
            let Values { live_bytes, bytes, allocs, .. } = change.delta;
            let (live, allocated, allocs) = (live_bytes.abs(), bytes.abs(), allocs.abs());
            match options.order {
                Order::Live => (live, allocated, allocs),
                Order::Allocated => (allocated, live, allocs),
                Order::Allocs => (allocs, live, allocated),
                Order::Relative => (change.range, live, allocated),
            }
        };
        key(y).partial_cmp(&key(x)).unwrap_or(std::cmp::Ordering::Equal).then_with(|| x.functions.cmp(&y.functions))
    });
    Ok(found)
}

/// Returns the mean peaks of both sides if every run has one.
fn peaks(a: &[Measurement], b: &[Measurement]) -> Option<(f64, f64)> {
    let mean = |runs: &[Measurement]| {
        let peaks: Option<Vec<u64>> = runs.iter().map(|run| run.peak_bytes).collect();
        peaks.map(|peaks| peaks.iter().map(|&peak| peak as f64).sum::<f64>() / peaks.len().max(1) as f64)
    };
    Some((mean(a)?, mean(b)?))
}

/// Returns whether a change is noise: small relative to the site or to the whole side, or within
/// the differences among the runs of one side. All four values must be noise.
fn is_noise(pair: &SitePair, whole: &Values, options: &Options) -> bool {
    let (a, b, spread, whole) = (pair.a.all(), pair.b.all(), pair.spread.all(), whole.all());
    (0..4).all(|field| {
        let change = (b[field] - a[field]).abs();
        change <= options.noise * a[field].max(b[field])
            || change <= options.min_share * whole[field]
            || change <= spread[field]
    })
}

/// Returns the change of a matched site.
fn change(pair: SitePair) -> Change {
    let range = |a: f64, b: f64| if a + b > 0.0 { (b - a).abs() / (a + b) } else { 0.0 };
    let nothing = |values: &Values| values.all().iter().all(|&value| value == 0.0);
    Change {
        status: match (nothing(&pair.a), nothing(&pair.b)) {
            (true, _) => "new",
            (_, true) => "gone",
            _ => "changed",
        },
        range: range(pair.a.bytes, pair.b.bytes).max(range(pair.a.live_bytes, pair.b.live_bytes)),
        delta: pair.b.zip(&pair.a, |b, a| b - a),
        functions: pair.functions,
        file: pair.file,
        line: pair.line,
        lines: pair.lines,
        a: pair.a,
        b: pair.b,
        stack: pair.stack,
    }
}

/// Runs `heaptape diff`: prints the comparison of two sides.
///
/// # Examples
///
/// ```
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/tape/v1/trace");
/// # let other = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/tape/v1/large");
/// use heaptape_analyzer::report::diff::{self, DiffInput, Options};
/// use heaptape_analyzer::text::Style;
///
/// let input = |path: &str| [DiffInput { path: path.into(), ..DiffInput::default() }];
/// let mut text = Vec::new();
/// diff::run(&input(path), &input(other), &Options::default(), &mut text, Style::PLAIN)?;
/// assert!(!text.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Returns an error when the comparison fails as that of [`compare`] does, or when `out` fails.
pub fn run(
    a: &[DiffInput],
    b: &[DiffInput],
    options: &Options,
    out: &mut dyn Write,
    style: Style,
) -> Result<Outcome, Error> {
    let mut found = compare(a, b, options)?;
    let lacking = found.missing.len();
    if options.json {
        found.changes.truncate(options.top.unwrap_or(usize::MAX));
        found.mapped.truncate(options.top.unwrap_or(usize::MAX));
        json::print(out, &found)?;
        return Ok(Outcome::of(lacking));
    }
    let mut screen = Screen::new(out, style).with_names(options.origin.full_names);
    text::print(&found, options, &mut screen)?;
    mapped::print(&found.mapped, options, &mut screen)?;
    if found.is_sampled {
        screen.line("sampled: bytes are estimates, blocks are those of the sample")?;
    }
    print_lines(&mut screen, "", &found.missing)?;
    Ok(Outcome::of(lacking))
}

//! `heaptape diff`: what changed between two runs, builds, processes or moments, whatever files
//! hold them.
//!
//! Sites are matched by the names of their innermost frames of the program, and among those by
//! line, so that neither moved addresses nor lines that were added above them make two of one. What
//! stays within the noise is summed up and not listed.

mod matching;
mod side;
mod text;

pub use side::{Side, Sums};
pub use text::change_line;

use super::frames::FrameJson;
use super::{Error, Outcome, json, say_lines};
use crate::symbols::{Detail, Origin, Symbolizer};
use crate::text::{Screen, Style};
use matching::Pair;
use serde::Serialize;
use side::Measured;
use std::io::Write;

/// How both sides are made comparable.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Normal {
    /// As they are.
    #[default]
    None,
    /// B is scaled to the length of A's run.
    Time,
    /// B is scaled to the number of A's allocations.
    Events,
    /// Each is divided by its number of units of work.
    Per(f64, f64),
}

/// In which order changes are listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// The greatest change in live bytes first.
    #[default]
    Live,
    /// The greatest change in allocated bytes first.
    Allocated,
    /// The greatest change in the number of allocations first.
    Allocs,
    /// The greatest change relative to both sides first: |b - a| / (a + b).
    Relative,
}

/// How sides are compared.
#[derive(Clone, Debug)]
pub struct Options {
    /// Frames of the program that must have the same names.
    pub depth: usize,
    /// How both sides are made comparable.
    pub normal: Normal,
    /// In which order changes are listed.
    pub order: Order,
    /// Whether the sides are two points in time of one run, the first one earlier.
    pub within_one: bool,
    /// Changes of a site below this share of its own are noise.
    pub noise: f64,
    /// So are changes below this share of the whole side.
    pub least: f64,
    /// Rows; JSON lists all unless this was asked for.
    pub top: Option<usize>,
    /// JSON instead of text.
    pub json: bool,
    /// Where the files are looked for that name frames.
    pub origin: Origin,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            depth: 1,
            normal: Normal::None,
            order: Order::Live,
            within_one: false,
            noise: 0.01,
            least: 0.001,
            top: None,
            json: false,
            origin: Origin::default(),
        }
    }
}

/// Numbers of one site, or of a whole side, after normalisation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Values {
    /// Live bytes at the end, or at the moment asked for.
    pub live_bytes: f64,
    /// Live blocks.
    pub live_blocks: f64,
    /// Bytes allocated until then.
    pub bytes: f64,
    /// Allocations and resizes until then.
    pub allocs: f64,
}

impl Values {
    /// Numbers in turn, in the order of the fields.
    pub const fn all(&self) -> [f64; 4] {
        [self.live_bytes, self.live_blocks, self.bytes, self.allocs]
    }

    const fn of([live_bytes, live_blocks, bytes, allocs]: [f64; 4]) -> Values {
        Values { live_bytes, live_blocks, bytes, allocs }
    }

    fn zip(&self, other: &Values, with: impl Fn(f64, f64) -> f64) -> Values {
        let (a, b) = (self.all(), other.all());
        Values::of(std::array::from_fn(|at| with(a[at], b[at])))
    }

    fn add(&mut self, other: &Values) {
        *self = self.zip(other, |a, b| a + b);
    }
}

/// One site that changed.
#[derive(Clone, Debug, Serialize)]
pub struct Change {
    /// `new`, `gone` or `changed`.
    pub status: &'static str,
    /// The functions that it is matched by, innermost first.
    pub functions: Vec<String>,
    /// Where it is, in B if it is there.
    pub file: Option<String>,
    /// The line there; of several the one that allocates most.
    pub line: Option<u32>,
    /// Number of source lines that this sums up, of the side that has more; 0 where none is known.
    pub lines: usize,
    /// Before.
    pub a: Values,
    /// After.
    pub b: Values,
    /// What changed.
    pub delta: Values,
    /// |b - a| / (a + b) of allocated bytes, or of live bytes where these changed more.
    pub range: f64,
    /// A stack of it, innermost first.
    pub stack: Vec<FrameJson>,
}

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub struct Found {
    /// The whole of A.
    pub a: Values,
    /// The whole of B.
    pub b: Values,
    /// The peaks, where both are known.
    pub peak_bytes: Option<(f64, f64)>,
    /// By what B was multiplied.
    pub scale: f64,
    /// What changed, in order.
    pub changes: Vec<Change>,
    /// Sites that are the same, or differ by noise alone.
    pub quiet_sites: u64,
    /// What these changed in sum.
    pub quiet: Values,
    /// Whether a side is of samples: its bytes are estimates, its blocks those of the sample.
    pub is_sampled: bool,
    /// What is missing of the sides, in words.
    pub missing: Vec<String>,
}

/// Compares two sides, each of one run or of several.
///
/// # Errors
/// When nothing can be read.
pub fn find(a: &[Side], b: &[Side], options: &Options) -> Result<Found, Error> {
    let mut symbols = Symbolizer::from(Detail::Full, options.origin.clone());
    let known = side::Known::of(a, b, options.within_one, &mut symbols)?;
    let measure = |sides: &[Side], symbols: &mut Symbolizer| -> Result<Vec<Measured>, Error> {
        sides.iter().map(|side| side::measure(side, &known, options.depth, symbols)).collect()
    };
    let (runs_a, runs_b) = (measure(a, &mut symbols)?, measure(b, &mut symbols)?);
    let mean =
        |runs: &[Measured], of: fn(&Measured) -> f64| runs.iter().map(of).sum::<f64>() / runs.len().max(1) as f64;
    let ratio = |of: fn(&Measured) -> f64| match (mean(&runs_a, of), mean(&runs_b, of)) {
        (a, b) if a > 0.0 && b > 0.0 => a / b,
        _ => 1.0,
    };
    let (scale_a, scale_b) = match options.normal {
        Normal::None => (1.0, 1.0),
        Normal::Time => (1.0, ratio(|run| run.seconds)),
        Normal::Events => (1.0, ratio(|run| run.total.allocs as f64)),
        Normal::Per(a, b) => (1.0 / a, 1.0 / b),
    };
    let pairs = matching::pairs(&runs_a, &runs_b, scale_a, scale_b);
    let mut found = Found {
        a: Values::default(),
        b: Values::default(),
        peak_bytes: peaks(&runs_a, &runs_b).map(|(a, b)| (a * scale_a, b * scale_b)),
        scale: scale_b / scale_a,
        changes: Vec::new(),
        quiet_sites: 0,
        quiet: Values::default(),
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

/// Mean peaks, when every run knows its own.
fn peaks(a: &[Measured], b: &[Measured]) -> Option<(f64, f64)> {
    let mean = |runs: &[Measured]| {
        let peaks: Option<Vec<u64>> = runs.iter().map(|run| run.peak_bytes).collect();
        peaks.map(|peaks| peaks.iter().map(|&peak| peak as f64).sum::<f64>() / peaks.len().max(1) as f64)
    };
    Some((mean(a)?, mean(b)?))
}

/// A change is noise when it is small beside the site itself or beside the whole side, or lies
/// within what runs of one side differ by among themselves. Blocks count as well as bytes: each in
/// its own measure.
fn is_noise(pair: &Pair, whole: &Values, options: &Options) -> bool {
    let (a, b, spread, whole) = (pair.a.all(), pair.b.all(), pair.spread.all(), whole.all());
    (0..4).all(|at| {
        let change = (b[at] - a[at]).abs();
        change <= options.noise * a[at].max(b[at]) || change <= options.least * whole[at] || change <= spread[at]
    })
}

fn change(pair: Pair) -> Change {
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

/// `heaptape diff`.
///
/// # Errors
/// When nothing can be read, or `out` fails.
pub fn run(a: &[Side], b: &[Side], options: &Options, out: &mut dyn Write, style: Style) -> Result<Outcome, Error> {
    let mut found = find(a, b, options)?;
    let lacking = found.missing.len();
    if options.json {
        found.changes.truncate(options.top.unwrap_or(usize::MAX));
        json::print(out, &found)?;
        return Ok(Outcome::of(lacking));
    }
    let mut screen = Screen::new(out, style);
    text::print(&found, options, &mut screen)?;
    if found.is_sampled {
        screen.line("sampled: bytes are estimates, blocks are those of the sample")?;
    }
    say_lines(&mut screen, "", &found.missing)?;
    Ok(Outcome::of(lacking))
}

//! What a site's survivors are, judged from their evidence. The rules stand in [`judge`], in the order in which they apply;
//! a share is a share of the run.

use super::leaks::{History, SLICES, Survivors};
use serde::Serialize;

/// The classes. The names stand in `--json` and never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Live bytes rise through the run.
    Growing,
    /// They rise, by few blocks only, or by a small part of many.
    Slow,
    /// A container grew, and lives.
    ContainerGrowth,
    /// Allocated in one short part of the run and kept.
    OneTime,
    /// As much is freed as allocated: a cache or pool that is full.
    BoundedCache,
    /// Freed, but only when the process ended.
    FreedAtExit,
    /// So young at the end that its siblings had not been freed either at that age.
    YoungAtEnd,
    /// Got from the parent by fork.
    Inherited,
    /// So many events are missing from the recording that their frees may be among those.
    Uncertain,
}

impl Verdict {
    /// For people.
    pub const fn name(self) -> &'static str {
        match self {
            Verdict::Growing => "growing",
            Verdict::Slow => "slow growth",
            Verdict::ContainerGrowth => "container growth",
            Verdict::OneTime => "one-time",
            Verdict::BoundedCache => "bounded cache",
            Verdict::FreedAtExit => "freed at exit",
            Verdict::YoungAtEnd => "young at the end",
            Verdict::Inherited => "inherited",
            Verdict::Uncertain => "uncertain",
        }
    }
}

impl Verdict {
    /// How much a byte of it weighs when leaks are put in order: what grows comes before what is merely large.
    pub const fn weight(self) -> u64 {
        match self {
            Verdict::Growing => 128,
            Verdict::Slow => 32,
            Verdict::ContainerGrowth => 4,
            Verdict::OneTime | Verdict::Uncertain => 2,
            Verdict::BoundedCache | Verdict::FreedAtExit | Verdict::YoungAtEnd | Verdict::Inherited => 1,
        }
    }
}

/// What the run as a whole says to every site.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Its start, in ticks or events.
    pub start: u64,
    /// Its end.
    pub end: u64,
    /// Whether these are ticks.
    pub by_tick: bool,
    /// Events that are known to be missing; `u64::MAX` when some are and nobody knows how many.
    pub hidden: u64,
    /// Where the last of them may lie.
    pub hidden_until: u64,
}

/// Fewer survivors than this are slow growth, not growth.
const FEW: u64 = 8;
/// Growth by less than this share of a site's allocations is slow.
const SMALL_SHARE: f64 = 0.02;

/// Judges the survivors of a site.
pub fn judge(run: &Run, history: &History, survivors: &Survivors) -> Verdict {
    if survivors.inherited {
        return Verdict::Inherited;
    }
    let (first, last) = match run.by_tick {
        true => (survivors.first.0, survivors.last.0),
        false => (survivors.first.1, survivors.last.1),
    };
    if run.hidden >= survivors.blocks && run.hidden > 0 && run.hidden_until >= first {
        return Verdict::Uncertain;
    }
    let length = run.end.saturating_sub(run.start).max(1) as f64;
    let share = |at: u64| at.saturating_sub(run.start) as f64 / length;
    let oldest_age = run.end.saturating_sub(first);
    if is_plateau(history, survivors) {
        return Verdict::BoundedCache;
    }
    if history.died > 0 && history.longest_life >= oldest_age && share(first) > 0.5 {
        return Verdict::YoungAtEnd;
    }
    if is_container(history, survivors) {
        return Verdict::ContainerGrowth;
    }
    let slices = survivors.births.iter().filter(|&&births| births > 0).count();
    let spread = share(last) - share(first);
    let rising = history.series[SLICES - 1] > history.series[SLICES / 2] && survivors.blocks > 2;
    if rising && slices > 2 && spread > 0.2 && share(last) > 0.7 {
        let small = (survivors.blocks as f64) < SMALL_SHARE * history.allocs as f64;
        return if small || survivors.blocks < FEW { Verdict::Slow } else { Verdict::Growing };
    }
    Verdict::OneTime
}

/// Live bytes stay within a tenth of their most through the second half of the run, while blocks come and go: at least as
/// many were freed as live.
fn is_plateau(history: &History, survivors: &Survivors) -> bool {
    let half = &history.series[SLICES / 2 - 1..];
    let (least, most) = (half.iter().min().copied().unwrap_or(0), half.iter().max().copied().unwrap_or(0));
    let flat = least > 0 && least >= most - most / 10;
    flat && history.died >= survivors.blocks
        && history.died > 4
        && survivors.births[SLICES / 2..].iter().any(|&births| births > 0)
}

/// Few blocks that were resized, or replaced by larger ones, again and again, and the last is the largest.
fn is_container(history: &History, survivors: &Survivors) -> bool {
    let resized = survivors.resized * 2 > survivors.blocks && history.resized >= survivors.blocks;
    let replaced =
        survivors.blocks == 1 && history.most_blocks <= 2 && history.died >= 3 && history.allocs == history.died + 1;
    (resized || replaced) && survivors.largest == history.largest
}

/// Bytes a unit of the run (a tick or an event) by which the site grows: least squares over the ends of the slices.
pub fn slope(run: &Run, history: &History) -> f64 {
    let width = run.end.saturating_sub(run.start) as f64 / SLICES as f64;
    if width <= 0.0 {
        return 0.0;
    }
    let mean_x = (SLICES as f64 + 1.0) / 2.0;
    let mean_y = history.series.iter().map(|&bytes| bytes as f64).sum::<f64>() / SLICES as f64;
    let (mut over, mut under) = (0.0, 0.0);
    for (slice, &bytes) in history.series.iter().enumerate() {
        let x = slice as f64 + 1.0 - mean_x;
        over += x * (bytes as f64 - mean_y);
        under += x * x;
    }
    over / under / width
}

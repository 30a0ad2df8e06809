//! What a site's survivors are, judged from their evidence. The rules stand in [`shape`], in the
//! order in which they apply; a share is a share of the run. Where events are missing, a verdict is
//! given only when it would be the same without as many survivors as events are missing: a free of
//! any of them may be among those.

use super::leaks::{Axis, History, SLICES, Survivors};
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::hash::Hash;

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
    /// Kept through the run, and freed only when it ended.
    FreedAtExit,
    /// So young at the end that its siblings had not been freed either at that age.
    YoungAtEnd,
    /// Got from the parent by fork.
    Inherited,
    /// So many events are missing from the recording that their frees may be among those.
    Uncertain,
    /// Live bytes rise, but the run is too short, or they are too few, to call it growth.
    TooLittle,
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
            Verdict::TooLittle => "kept, too little to tell",
        }
    }

    /// How much a byte of it weighs when leaks are put in order: what grows comes before what is
    /// merely large.
    pub const fn weight(self) -> u64 {
        match self {
            Verdict::Growing => 128,
            Verdict::Slow => 32,
            Verdict::ContainerGrowth => 4,
            Verdict::OneTime | Verdict::Uncertain | Verdict::TooLittle => 2,
            Verdict::BoundedCache | Verdict::FreedAtExit | Verdict::YoungAtEnd | Verdict::Inherited => 1,
        }
    }
}

/// What the run as a whole says to every site.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// How it is measured.
    pub axis: Axis,
    /// Its last moment, in the axis' unit.
    pub end: u64,
    /// Its length in seconds; 0 when not known.
    pub seconds: f64,
    /// Seconds from its start to its last allocation; 0 when not known. An end that is seen late,
    /// or a wait before it, shows no growth.
    pub active_seconds: f64,
    /// Allocations and resizes of all sites.
    pub allocs: u64,
    /// The most live bytes of all sites together.
    pub peak_bytes: u64,
    /// Events that are known to be missing; `u64::MAX` when some are and nobody knows how many.
    pub hidden: u64,
    /// Where the last of them may lie.
    pub hidden_until: u64,
}

/// Fewer survivors than this are slow growth, not growth.
const FEW: u64 = 8;
/// Growth by less than this share of a site's allocations is slow, if it is [`LIGHT`].
const SMALL_SHARE: f64 = 0.02;
/// So is growth by less than this share of the run's allocations.
const RARE: f64 = 0.001;
/// Light is what holds less than this share of the run's most live bytes.
const LIGHT: f64 = 0.05;
/// A cache or pool has so many blocks; fewer are what just happened to be in use.
const POOL: u64 = 4;
/// Slices of a quarter.
const QUARTER: usize = SLICES / 4;

/// Growth in a run shorter than this many seconds is too little to tell: every program allocates
/// what it keeps while it starts.
pub const FLOOR_SECONDS: f64 = 1.0;
/// So is growth by fewer bytes than this, if it is also less than [`FLOOR_SHARE`].
pub const FLOOR_BYTES: u64 = 64 << 10;
/// Growth by at least this share of the run's most live bytes counts, however few bytes it is.
pub const FLOOR_SHARE: f64 = 0.01;

/// The growth of a run, summed by what people would call one leak (the function that allocates): a
/// leak that comes from many stacks is judged by all of them together.
#[derive(Clone, Debug)]
pub struct Growth<K> {
    bytes: FxHashMap<K, u64>,
}

impl<K: Hash + Eq> Default for Growth<K> {
    fn default() -> Self {
        Growth { bytes: FxHashMap::default() }
    }
}

impl<K: Hash + Eq> Growth<K> {
    /// Counts survivors that were judged.
    pub fn add(&mut self, of: K, verdict: Verdict, bytes: u64) {
        if verdict == Verdict::Growing {
            let sum = self.bytes.entry(of).or_default();
            *sum = sum.saturating_add(bytes);
        }
    }

    /// The verdict once all are counted: growth that is too little to tell is called so.
    pub fn settle(&self, run: &Run, of: &K, verdict: Verdict) -> Verdict {
        let is_short = run.active_seconds > 0.0 && run.active_seconds < FLOOR_SECONDS;
        let bytes = self.bytes.get(of).copied().unwrap_or(0);
        let is_small = bytes < FLOOR_BYTES && (bytes as f64) < FLOOR_SHARE * run.peak_bytes as f64;
        match verdict {
            Verdict::Growing if is_short || is_small => Verdict::TooLittle,
            // Slow growth is little by its nature: only a run that shows no growth at all says
            // nothing of it.
            Verdict::Slow if is_short => Verdict::TooLittle,
            verdict => verdict,
        }
    }
}

/// Judges the survivors of a site.
pub fn judge(run: &Run, history: &History, survivors: &Survivors) -> Verdict {
    if survivors.inherited {
        return Verdict::Inherited;
    }
    judge_by(shape, run, history, survivors)
}

/// Judges a site of which only sums are known, at some moments: growth is reported where nothing
/// else could look so, and what stays.
pub fn judge_snapshots(run: &Run, history: &History, survivors: &Survivors) -> Verdict {
    judge_by(course_shape, run, history, survivors)
}

fn judge_by(
    shape: fn(&Run, &History, &Survivors) -> Verdict,
    run: &Run,
    history: &History,
    survivors: &Survivors,
) -> Verdict {
    let verdict = shape(run, history, survivors);
    let first = if run.axis.by_tick { survivors.first.0 } else { survivors.first.1 };
    if run.hidden == 0 || run.hidden_until < first {
        return verdict;
    }
    let stands = survivors.blocks > run.hidden
        && [false, true].into_iter().all(|youngest| {
            let (history, survivors) = without(run, history, survivors, youngest);
            shape(run, &history, &survivors) == verdict
        });
    if stands { verdict } else { Verdict::Uncertain }
}

/// The evidence without as many of the youngest or oldest survivors as events are missing. What was
/// born behind the last gap cannot have been freed in it.
fn without(run: &Run, history: &History, survivors: &Survivors, youngest: bool) -> (History, Survivors) {
    let (mut history, mut left) = (history.clone(), survivors.clone());
    let size = survivors.bytes / survivors.blocks.max(1);
    let mut hidden = run.hidden.min(survivors.blocks);
    let width = run.axis.end.saturating_sub(run.axis.start) / SLICES as u64;
    let start_of = |slice: usize| run.axis.start + width * slice as u64;
    for at in 0..SLICES {
        let slice = if youngest { SLICES - 1 - at } else { at };
        if start_of(slice) > run.hidden_until {
            continue;
        }
        let taken = hidden.min(left.allocs_by_slice[slice]);
        hidden -= taken;
        left.allocs_by_slice[slice] -= taken;
        left.blocks -= taken;
        left.bytes = left.bytes.saturating_sub(taken * size);
        for live in &mut history.series[slice..] {
            *live = live.saturating_sub(taken * size);
        }
        if slice < SLICES / 2 {
            history.half_blocks = history.half_blocks.saturating_sub(taken);
        }
    }
    history.live_blocks = history.live_blocks.saturating_sub(run.hidden);
    history.live_bytes = history.series[SLICES - 1];
    let held = |allocs_by_slice: &[u64; SLICES]| {
        (allocs_by_slice.iter().position(|&n| n > 0), allocs_by_slice.iter().rposition(|&n| n > 0))
    };
    if let (Some(first), Some(last)) = held(&left.allocs_by_slice) {
        let moment = |at: u64| (at, at);
        left.first = left.first.max(moment(start_of(first)));
        left.last = left.last.min(moment(start_of(last + 1)));
    }
    (history, left)
}

/// What the evidence looks like when nothing is missing.
fn shape(run: &Run, history: &History, survivors: &Survivors) -> Verdict {
    if is_container(history, survivors) {
        return Verdict::ContainerGrowth;
    }
    let (first, last) = match run.axis.by_tick {
        true => (survivors.first.0, survivors.last.0),
        false => (survivors.first.1, survivors.last.1),
    };
    let length = run.axis.end.saturating_sub(run.axis.start).max(1) as f64;
    let share = |at: u64| at.saturating_sub(run.axis.start) as f64 / length;
    let growth = |blocks: u64| if is_slow(run, history, survivors, blocks) { Verdict::Slow } else { Verdict::Growing };
    if history.freed > POOL && history.freed >= survivors.blocks {
        let (strays, spread) = strays(run, history, survivors);
        if strays > 2 && spread {
            return growth(strays);
        }
        if is_plateau(history, survivors) {
            return Verdict::BoundedCache;
        }
        if rises(history) && survivors.blocks >= FEW {
            return growth(survivors.blocks);
        }
    }
    // Twice: the end of a run is often slower than the rest.
    let young = history.longest_lifetime.saturating_mul(2) >= run.end.saturating_sub(first);
    if history.freed > 0 && young && share(first) > 0.5 {
        let backlog = rises(history) && survivors.blocks >= FEW;
        return if backlog { growth(survivors.blocks) } else { Verdict::YoungAtEnd };
    }
    let slices = survivors.allocs_by_slice.iter().filter(|&&allocs_by_slice| allocs_by_slice > 0).count();
    let rising = history.series[SLICES - 1] > history.series[SLICES / 2] && survivors.blocks > 2;
    if rising && slices > 2 && share(last) - share(first) > 0.2 && share(last) > 0.7 {
        return growth(survivors.blocks);
    }
    Verdict::OneTime
}

/// The same without ages: what frees anything must rise from quarter to quarter and be born in
/// three slices of four.
fn course_shape(run: &Run, history: &History, survivors: &Survivors) -> Verdict {
    if history.freed == 0 {
        return shape(run, history, survivors);
    }
    let steady =
        survivors.allocs_by_slice.iter().filter(|&&allocs_by_slice| allocs_by_slice > 0).count() * 4 >= SLICES * 3;
    let more_blocks = survivors.blocks > history.half_blocks + history.half_blocks / 4 + 1;
    if !(steady && more_blocks && rises(history)) {
        return Verdict::Uncertain;
    }
    if is_slow(run, history, survivors, survivors.blocks) { Verdict::Slow } else { Verdict::Growing }
}

/// Whether growth by a number of blocks is slow: in number, as a part of what was allocated, or in
/// time.
fn is_slow(run: &Run, history: &History, survivors: &Survivors, blocks: u64) -> bool {
    let grown = blocks as f64;
    let light = (survivors.bytes as f64) < LIGHT * run.peak_bytes as f64;
    let rare = grown < SMALL_SHARE * history.allocs as f64
        || grown < RARE * run.allocs as f64
        // Fewer than one block a second.
        || grown < run.seconds;
    blocks < FEW || (rare && light)
}

/// Survivors that are older than any freed sibling ever got, a slice's width apart; and whether
/// they come from all over the run, and not from its start alone, as the entries of a cache do that
/// are too popular to be replaced.
fn strays(run: &Run, history: &History, survivors: &Survivors) -> (u64, bool) {
    let width = (run.axis.end.saturating_sub(run.axis.start) / SLICES as u64).saturating_add(1);
    let old_enough = run.axis.end.saturating_sub(run.axis.start).saturating_sub(history.longest_lifetime) / width;
    let eligible = usize::try_from(old_enough).map_or(SLICES, |slices| slices.saturating_sub(1).min(SLICES));
    let allocs_by_slice = &survivors.allocs_by_slice[..eligible];
    let held = allocs_by_slice.iter().filter(|&&allocs_by_slice| allocs_by_slice > 0).count();
    let late = allocs_by_slice[eligible / 2..].iter().any(|&allocs_by_slice| allocs_by_slice > 0);
    (allocs_by_slice.iter().sum(), held > 2 && held * 3 >= eligible && late)
}

/// Live bytes stay within a tenth of their most through the second half of the run, while blocks
/// come and go: at least as many were freed as live.
fn is_plateau(history: &History, survivors: &Survivors) -> bool {
    let half = &history.series[SLICES / 2 - 1..];
    let (least, most) = (half.iter().min().copied().unwrap_or(0), half.iter().max().copied().unwrap_or(0));
    let flat = least > 0 && least >= most - most / 10;
    flat && survivors.blocks >= POOL
        && survivors.allocs_by_slice[SLICES / 2..].iter().any(|&allocs_by_slice| allocs_by_slice > 0)
}

/// Live bytes rise by more than a tenth from each quarter of the run to the next, from the second
/// on.
fn rises(history: &History) -> bool {
    let quarter = |number: usize| history.series[number * QUARTER..][..QUARTER].iter().map(|&b| b as f64).sum::<f64>();
    quarter(2) > 1.1 * quarter(1) && quarter(3) > 1.1 * quarter(2)
}

/// Blocks that were resized, or replaced by larger ones, again and again, while their number stayed
/// the same; and the largest of all lives.
fn is_container(history: &History, survivors: &Survivors) -> bool {
    let resized = survivors.resized * 2 > survivors.blocks && history.resized >= survivors.blocks;
    let replaced = history.freed >= 3 && history.replaced * 10 >= history.freed * 9;
    let same_number = survivors.blocks <= history.half_blocks + history.half_blocks / 4 + 1;
    (resized || replaced) && same_number && survivors.largest == history.largest
}

/// Whether a site without survivors was emptied only at the run's end: all that was ever allocated
/// lived together, in the last quarter.
pub fn is_kept_to_exit(history: &History) -> bool {
    let kept = history.bytes - history.bytes / 10;
    history.live_blocks == 0
        && history.freed > 0
        && history.peak_bytes >= kept
        && fullest(history).1 >= SLICES - QUARTER
}

/// Whether sites that were kept to the exit grew through the run: more lived at the end than in the
/// middle.
pub fn is_freed_at_exit(history: &History) -> bool {
    let (most, at) = fullest(history);
    history.freed >= FEW && at >= SLICES - QUARTER && history.series[at / 2] <= most - most / 4
}

/// The most live bytes at the end of a slice, and the last slice that has them.
fn fullest(history: &History) -> (u64, usize) {
    history.series.iter().zip(0..).fold((0, 0), |most, (&live, at)| most.max((live, at)))
}

/// Bytes a unit of the run (a tick or an event) by which the site grows: least squares over the
/// ends of the slices.
pub fn slope(run: &Run, history: &History) -> f64 {
    let width = run.axis.end.saturating_sub(run.axis.start) as f64 / SLICES as f64;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the verdict on growth by `bytes` over a number of stacks of one function, in a run
    /// of a number of seconds.
    fn settled(verdict: Verdict, bytes: u64, stacks: u64, active_seconds: f64) -> Verdict {
        let axis = Axis { by_tick: true, start: 0, end: 100 };
        let run = Run {
            axis,
            end: 100,
            // An end that was seen late.
            seconds: active_seconds * 3.0,
            active_seconds,
            allocs: 1000,
            peak_bytes: 64 << 20,
            hidden: 0,
            hidden_until: 0,
        };
        let mut growth = Growth::default();
        (0..stacks).for_each(|_| growth.add("leak", verdict, bytes / stacks));
        growth.add("other", Verdict::Growing, 1 << 30);
        growth.settle(&run, &"leak", verdict)
    }

    #[test]
    fn growth_has_a_floor() {
        let (growing, slow, little) = (Verdict::Growing, Verdict::Slow, Verdict::TooLittle);
        assert_eq!(settled(growing, 64 << 10, 1, 1.0), growing);
        assert_eq!(settled(growing, 64 << 10, 1, 0.9), little, "too short");
        assert_eq!(settled(growing, 1 << 30, 1, 0.9), little, "too short, however much");
        assert_eq!(settled(growing, 60 << 10, 1, 100.0), little, "too few bytes");
        assert_eq!(settled(growing, 64 << 10, 16, 1.0), growing, "one leak from many stacks");
        assert_eq!(settled(growing, 300, 1, 0.0), little, "no times: bytes alone decide");
        assert_eq!(settled(growing, 64 << 10, 1, 0.0), growing);
        assert_eq!(settled(slow, 300, 1, 1.0), slow, "slow growth is little by its nature");
        assert_eq!(settled(slow, 300, 1, 0.9), little);
        assert_eq!(settled(Verdict::OneTime, 300, 1, 0.1), Verdict::OneTime);
    }
}

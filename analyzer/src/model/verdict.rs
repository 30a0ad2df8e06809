//! The verdict on the survivors of a site. The rules are in [`shape`], in the order in which they
//! apply. If events are missing, a survivor may be a block whose free is missing. Then a verdict
//! holds only if it would be the same without as many survivors as events are missing.

use super::axis::SLICES;
use super::climb::climb;
use super::leaks::{History, Survivors};
use super::run::{MIN_GROWTH_BLOCKS, QUARTER_SLICES, Run};
use crate::event::Position;
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::hash::Hash;

/// A verdict. The names are part of the JSON output and never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Live bytes grow through the run.
    Growing,
    /// Live bytes grow by few blocks, or by a small share of many.
    Slow,
    /// A live container grew.
    ContainerGrowth,
    /// The blocks were allocated in one short period of the run and kept.
    OneTime,
    /// As many bytes are freed as allocated, as by a full cache or pool.
    BoundedCache,
    /// The blocks were kept through the run and freed when it ended.
    FreedAtExit,
    /// The blocks are younger than the age at which other blocks of the site were freed.
    YoungAtEnd,
    /// The blocks were inherited from the parent process by fork.
    Inherited,
    /// Enough events are missing that the frees of the blocks may be among them.
    Uncertain,
    /// Live bytes grow, but the run is too short or the bytes are too few to call it growth.
    TooLittle,
}

impl Verdict {
    pub(crate) const WORST_FIRST: [Verdict; 10] = [
        Verdict::Growing,
        Verdict::Slow,
        Verdict::ContainerGrowth,
        Verdict::FreedAtExit,
        Verdict::TooLittle,
        Verdict::Uncertain,
        Verdict::OneTime,
        Verdict::BoundedCache,
        Verdict::YoungAtEnd,
        Verdict::Inherited,
    ];

    /// Returns the name for text reports.
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

    /// Returns whether the blocks are no leak by the verdict, as those of a cache. They are listed
    /// on demand.
    pub const fn is_harmless(self) -> bool {
        matches!(self, Verdict::OneTime | Verdict::BoundedCache | Verdict::YoungAtEnd | Verdict::Inherited)
    }

    /// Returns the weight of a byte for the order of leaks. Growing leaks come before those that
    /// are only large.
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

/// Growth by less than this share of a site's allocations is slow, if the survivors have less than
/// [`LIGHT_SHARE`] of the peak.
const SMALL_SHARE: f64 = 0.02;
/// Growth by less than this share of the run's allocations is slow, under the same condition.
const RARE_SHARE: f64 = 0.001;
/// Growth of at least this share of the run's peak is never slow because it is rare.
const LIGHT_SHARE: f64 = 0.05;
/// Minimum number of blocks of a cache or pool. Fewer may just be in use at the end.
const MIN_POOL_BLOCKS: u64 = 4;
/// Number of standard errors by which the live bytes of a sampled site must rise for growth.
const MIN_STANDARD_ERRORS: u64 = 3;
/// Number of slices at the end of the run through which a full cache is full.
const FULL_SLICES: usize = SLICES * 3 / 8;

/// Minimum length of a run for growth, in seconds. In a shorter run growth is too little to tell,
/// because every program allocates at its start what it keeps.
pub(crate) const FLOOR_SECONDS: f64 = 1.0;
/// Minimum number of bytes for growth. Growth by fewer bytes is too little to tell, if it is also
/// less than [`FLOOR_SHARE`].
pub(crate) const FLOOR_BYTES: u64 = 64 << 10;
/// Minimum share of the run's peak for growth, if it has fewer than [`FLOOR_BYTES`].
pub(crate) const FLOOR_SHARE: f64 = 0.01;

/// The growth of a run, summed by a key such as the function that allocates. A leak from many
/// stacks is judged by the sum of all of them.
#[derive(Clone, Debug)]
pub struct Growth<K> {
    /// The growing bytes, and the seconds from the start to the last of them.
    of: FxHashMap<K, (u64, f64)>,
}

impl<K: Hash + Eq> Default for Growth<K> {
    fn default() -> Self {
        Growth { of: FxHashMap::default() }
    }
}

impl<K: Hash + Eq> Growth<K> {
    /// Adds survivors with a verdict. `last_seconds` is from the start to the last of them, or 0 if
    /// it is unknown.
    pub fn add(&mut self, of: K, verdict: Verdict, bytes: u64, last_seconds: f64) {
        let (sum, last) = self.of.entry(of).or_default();
        *last = last.max(last_seconds);
        if verdict == Verdict::Growing {
            *sum = sum.saturating_add(bytes);
        }
    }

    /// Returns the final verdict, after all survivors were added, and whether only the length of
    /// the run is below the floor: then growth is probable. Growth below the floor becomes
    /// [`Verdict::TooLittle`].
    pub fn settle(&self, run: &Run, of: &K, verdict: Verdict) -> (Verdict, bool) {
        let (bytes, last_seconds) = self.of.get(of).copied().unwrap_or_default();
        // Growth that ended after half a second was short, however long the program waited then.
        let grew_seconds = if last_seconds > 0.0 { last_seconds } else { run.active_seconds };
        let is_short = run.active_seconds > 0.0 && grew_seconds < FLOOR_SECONDS;
        let is_small = bytes < FLOOR_BYTES && (bytes as f64) < FLOOR_SHARE * run.peak_bytes as f64;
        match verdict {
            // What a short run keeps is mostly its start: 1 % of its peak is not much.
            Verdict::Growing if is_short || is_small => (Verdict::TooLittle, is_short && bytes >= FLOOR_BYTES),
            // Slow growth is small by definition, so only the length of the run counts.
            Verdict::Slow if is_short => (Verdict::TooLittle, false),
            verdict => (verdict, false),
        }
    }
}

/// Returns the verdict on the survivors of a site.
pub fn judge(run: &Run, history: &History, survivors: &Survivors) -> Verdict {
    if survivors.inherited {
        return Verdict::Inherited;
    }
    judge_with(shape, run, history, survivors)
}

/// Returns the verdict on a site of which only periodic snapshots are known. Reports growth only if
/// the snapshots have no other explanation, and blocks that are kept.
pub(crate) fn judge_snapshots(run: &Run, history: &History, survivors: &Survivors) -> Verdict {
    judge_with(snapshot_shape, run, history, survivors)
}

/// Returns the verdict of the rules `shape`, if it holds for all possible missing events.
fn judge_with(
    shape: fn(&Run, &History, &Survivors) -> Verdict,
    run: &Run,
    history: &History,
    survivors: &Survivors,
) -> Verdict {
    let verdict = shape(run, history, survivors);
    let first = run.axis.unit(survivors.first);
    if run.hidden == 0 || run.hidden_until < first {
        return verdict;
    }
    let holds = survivors.blocks > run.hidden
        && [false, true].into_iter().all(|youngest| {
            let (history, survivors) = without_missing(run, history, survivors, youngest);
            shape(run, &history, &survivors) == verdict
        });
    if holds { verdict } else { Verdict::Uncertain }
}

/// Returns the evidence without as many of the youngest or oldest survivors as events are missing.
/// Survivors that were allocated after the last gap stay, because they cannot have been freed in
/// it.
fn without_missing(run: &Run, history: &History, survivors: &Survivors, youngest: bool) -> (History, Survivors) {
    let (mut history, mut rest) = (history.clone(), survivors.clone());
    let size = survivors.bytes / survivors.blocks.max(1);
    let mut hidden = run.hidden.min(survivors.blocks);
    let start_of = |slice: usize| run.slicing.start(slice);
    for at in 0..SLICES {
        let slice = if youngest { SLICES - 1 - at } else { at };
        if start_of(slice) > run.hidden_until {
            continue;
        }
        let removed = hidden.min(rest.allocs_by_slice[slice]);
        hidden -= removed;
        rest.allocs_by_slice[slice] -= removed;
        rest.old_by_slice[slice] = rest.old_by_slice[slice].saturating_sub(removed);
        rest.blocks -= removed;
        rest.bytes = rest.bytes.saturating_sub(removed * size);
        for live in history.series[slice..].iter_mut().chain(&mut history.least[slice..]) {
            *live = live.saturating_sub(removed * size);
        }
        if slice < SLICES / 2 {
            history.half_blocks = history.half_blocks.saturating_sub(removed);
        }
    }
    history.live_blocks = history.live_blocks.saturating_sub(run.hidden);
    history.live_bytes = history.series[SLICES - 1];
    let held = |allocs_by_slice: &[u64; SLICES]| {
        (allocs_by_slice.iter().position(|&n| n > 0), allocs_by_slice.iter().rposition(|&n| n > 0))
    };
    if let (Some(first), Some(last)) = held(&rest.allocs_by_slice) {
        let point = |at: u64| Position { tick: at, number: at };
        rest.first = rest.first.max(point(start_of(first)));
        rest.last = rest.last.min(point(start_of(last + 1)));
    }
    (history, rest)
}

/// Returns the verdict on evidence, assuming that no event is missing.
fn shape(run: &Run, history: &History, survivors: &Survivors) -> Verdict {
    if is_container(history, survivors) {
        return Verdict::ContainerGrowth;
    }
    let growth = |blocks: u64| if is_slow(run, history, survivors, blocks) { Verdict::Slow } else { Verdict::Growing };
    let is_young = is_young(run, history, survivors);
    // A queue that is never emptied has young blocks only, and still grows. One that is emptied now
    // and then does not.
    let climb = climb(&history.least, run).filter(|climb| survivors.blocks > 2 && !(is_young && climb.came_down));
    if let Some(climb) = climb {
        if history.freed == 0 {
            return growth(survivors.blocks);
        }
        if survivors.blocks >= MIN_GROWTH_BLOCKS && survivors.blocks > history.half_blocks {
            return growth(climb.of_blocks(survivors.blocks));
        }
    }
    if history.freed > MIN_POOL_BLOCKS {
        let old = old_blocks(run, history, survivors);
        if old > 2 && history.freed >= survivors.blocks {
            return growth(old);
        }
        if is_plateau(history, survivors) {
            return Verdict::BoundedCache;
        }
    }
    if is_full_from_before(history) {
        return Verdict::BoundedCache;
    }
    let is_late = survivors.allocs_by_slice[..SLICES / 2].iter().all(|&allocs| allocs == 0);
    if is_young && is_late { Verdict::YoungAtEnd } else { Verdict::OneTime }
}

/// Returns whether all survivors are younger than blocks of the site become: up to twice the
/// longest lifetime, because the end of a run is often slower than the rest.
fn is_young(run: &Run, history: &History, survivors: &Survivors) -> bool {
    let first = run.axis.unit(survivors.first);
    history.freed > 0 && history.longest_lifetime.saturating_mul(2) >= run.end.saturating_sub(first)
}

/// Returns the verdict on evidence from snapshots, which has no lifetimes. A site that frees blocks
/// is growing only if its live bytes rise from quarter to quarter, and if its survivors were
/// allocated in at least three quarters of the slices.
///
/// Of a sampled site, only growth is known: a rise beyond [`MIN_STANDARD_ERRORS`]. All other sites
/// may be anything, since a sample may lack what was freed, or what is new.
fn snapshot_shape(run: &Run, history: &History, survivors: &Survivors) -> Verdict {
    if let Some(error) = history.rise_error {
        let rise = history.series[SLICES - 1].saturating_sub(history.series[SLICES / 2 - 1]);
        if rise <= error.saturating_mul(MIN_STANDARD_ERRORS) {
            return Verdict::Uncertain;
        }
    }
    if history.freed == 0 {
        let verdict = shape(run, history, survivors);
        let is_known = history.rise_error.is_none() || matches!(verdict, Verdict::Growing | Verdict::Slow);
        return if is_known { verdict } else { Verdict::Uncertain };
    }
    let steady = survivors.allocs_by_slice.iter().filter(|&&allocs| allocs > 0).count() * 4 >= SLICES * 3;
    let more_blocks = survivors.blocks > history.half_blocks + history.half_blocks / 4 + 1;
    if !(steady && more_blocks && rises(history)) {
        return Verdict::Uncertain;
    }
    if is_slow(run, history, survivors, survivors.blocks) { Verdict::Slow } else { Verdict::Growing }
}

/// Returns whether growth by a number of blocks is slow: it is small in number, as a share of the
/// allocations, or per second.
fn is_slow(run: &Run, history: &History, survivors: &Survivors, blocks: u64) -> bool {
    let grown = blocks as f64;
    let light = (survivors.bytes as f64) < LIGHT_SHARE * run.peak_bytes as f64;
    let rare = grown < SMALL_SHARE * history.allocs as f64
        || grown < RARE_SHARE * run.allocs as f64
        // Fewer than one block a second.
        || grown < run.seconds;
    blocks < MIN_GROWTH_BLOCKS || (rare && light)
}

/// Returns the number of survivors that are older than any freed block of their site became, or 0
/// if they are not from the whole run up to its end, as far as blocks of its end can be that old.
/// The popular entries of a cache, which are never replaced, are from its start only.
fn old_blocks(run: &Run, history: &History, survivors: &Survivors) -> u64 {
    let width = run.axis.length() / SLICES as u64 + 1;
    let old_enough = run.axis.length().saturating_sub(history.longest_lifetime) / width;
    let eligible = usize::try_from(old_enough).map_or(SLICES, |slices| slices.saturating_sub(1).min(SLICES));
    let old = &survivors.old_by_slice[..eligible];
    let held = old.iter().filter(|&&allocs| allocs > 0).count();
    let is_late = old[eligible * 3 / 4..].iter().any(|&allocs| allocs > 0);
    if held > 2 && held * 3 >= eligible && is_late { old.iter().sum() } else { 0 }
}

/// Returns whether live bytes stay within a tenth of their maximum through the last
/// [`FULL_SLICES`], while blocks are still allocated.
fn is_plateau(history: &History, survivors: &Survivors) -> bool {
    let full = &history.series[SLICES - FULL_SLICES..];
    let (least, most) = (full.iter().min().copied().unwrap_or(0), full.iter().max().copied().unwrap_or(0));
    // A wave may have the same height at the end of each slice.
    let is_kept = history.least[SLICES - FULL_SLICES..SLICES - 1].iter().all(|&least| least >= most / 2);
    let flat = least > 0 && least >= most - most / 10 && is_kept;
    flat && survivors.blocks >= MIN_POOL_BLOCKS
        && survivors.allocs_by_slice[SLICES / 2..].iter().any(|&allocs| allocs > 0)
}

/// Returns whether a site that held bytes before the run freed about as many in it as it allocated:
/// a full cache that the run is too short to replace.
fn is_full_from_before(history: &History) -> bool {
    let allocated = history.bytes.saturating_sub(history.carried_bytes);
    history.carried_bytes > 0
        && history.freed > MIN_POOL_BLOCKS
        && history.live_bytes.abs_diff(history.carried_bytes) <= allocated / 10
}

/// Returns whether live bytes rise by more than a tenth from the second quarter of the run to the
/// third, and from the third to the fourth.
fn rises(history: &History) -> bool {
    let quarter = |number: usize| {
        history.series[number * QUARTER_SLICES..][..QUARTER_SLICES].iter().map(|&b| b as f64).sum::<f64>()
    };
    quarter(2) > 1.1 * quarter(1) && quarter(3) > 1.1 * quarter(2)
}

/// Returns whether the blocks belong to containers: they were reallocated or replaced by larger
/// ones again and again, their number stayed the same, and the largest block is live.
fn is_container(history: &History, survivors: &Survivors) -> bool {
    let resized = survivors.resized * 2 > survivors.blocks && history.resized >= survivors.blocks;
    let replaced = history.freed >= 3 && history.replaced * 10 >= history.freed * 9;
    let same_number = survivors.blocks <= history.half_blocks + history.half_blocks / 4 + 1;
    (resized || replaced) && same_number && survivors.largest == history.largest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::axis::{Axis, Slicing};

    /// Returns the verdict on growth by `bytes` over a number of stacks of one function, in a run
    /// of a number of seconds.
    fn final_verdict(verdict: Verdict, bytes: u64, stacks: u64, active_seconds: f64) -> Verdict {
        let axis = Axis::plain(true, 0, 100);
        let run = Run {
            axis,
            slicing: Slicing::even(&axis),
            end: 100,
            // The end of the process was noticed late.
            seconds: active_seconds * 3.0,
            active_seconds,
            allocs: 1000,
            peak_bytes: 64 << 20,
            hidden: 0,
            hidden_until: 0,
        };
        let mut growth = Growth::default();
        (0..stacks).for_each(|_| growth.add("leak", verdict, bytes / stacks, 0.0));
        growth.add("other", Verdict::Growing, 1 << 30, 0.0);
        let (settled, is_probable) = growth.settle(&run, &"leak", verdict);
        // Growth is probable in a run that is too short for more.
        let is_short = active_seconds > 0.0 && active_seconds < FLOOR_SECONDS;
        let is_expected = verdict == Verdict::Growing && is_short && bytes >= FLOOR_BYTES;
        assert_eq!(is_probable, is_expected, "{bytes} in {active_seconds} s");
        settled
    }

    #[test]
    fn growth_is_short_if_it_ended_early_in_a_longer_run() {
        let axis = Axis::plain(true, 0, 100);
        let slicing = Slicing::even(&axis);
        let (seconds, active_seconds, peak_bytes) = (1.3, 1.2, 1 << 20);
        let run = Run {
            axis,
            slicing,
            end: 100,
            seconds,
            active_seconds,
            allocs: 900,
            peak_bytes,
            hidden: 0,
            hidden_until: 0,
        };
        let mut growth = Growth::default();
        for (function, verdict, last) in [
            ("start", Verdict::Growing, 0.9),
            ("run", Verdict::Growing, 1.1),
            ("both", Verdict::Growing, 0.2),
            ("both", Verdict::Growing, 1.2),
            ("few", Verdict::Slow, 0.9),
        ] {
            growth.add(function, verdict, 512 << 10, last);
        }
        let settled = |function, verdict| growth.settle(&run, &function, verdict);
        assert_eq!(settled("start", Verdict::Growing), (Verdict::TooLittle, true));
        assert_eq!(settled("run", Verdict::Growing), (Verdict::Growing, false));
        assert_eq!(settled("both", Verdict::Growing), (Verdict::Growing, false));
        assert_eq!(settled("few", Verdict::Slow), (Verdict::TooLittle, false));
    }

    #[test]
    fn growth_has_a_floor() {
        let (growing, slow, too_little) = (Verdict::Growing, Verdict::Slow, Verdict::TooLittle);
        assert_eq!(final_verdict(growing, 64 << 10, 1, 1.0), growing);
        assert_eq!(final_verdict(growing, 64 << 10, 1, 0.9), too_little, "too short");
        assert_eq!(final_verdict(growing, 1 << 30, 1, 0.9), too_little, "too short, however much");
        assert_eq!(final_verdict(growing, 60 << 10, 1, 100.0), too_little, "too few bytes");
        assert_eq!(final_verdict(growing, 64 << 10, 16, 1.0), growing, "one leak from many stacks");
        assert_eq!(final_verdict(growing, 300, 1, 0.0), too_little, "no times: bytes alone decide");
        assert_eq!(final_verdict(growing, 64 << 10, 1, 0.0), growing);
        assert_eq!(final_verdict(slow, 300, 1, 1.0), slow, "slow growth is little by its nature");
        assert_eq!(final_verdict(slow, 300, 1, 0.9), too_little);
        assert_eq!(final_verdict(Verdict::OneTime, 300, 1, 0.1), Verdict::OneTime);
    }
}

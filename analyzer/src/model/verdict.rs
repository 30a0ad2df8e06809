//! The verdict on the survivors of a site. The rules are in [`shape`], in the order in which they
//! apply. If events are missing, a survivor may be a block whose free is missing. Then a verdict
//! holds only if it would be the same without as many survivors as events are missing.

use super::leaks::{Axis, History, SLICES, Survivors};
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
    pub const WORST_FIRST: [Verdict; 10] = [
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

/// The properties of a run on which the verdicts about all its sites depend.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// The axis on which the run is measured.
    pub axis: Axis,
    /// End of the run, in the unit of the axis.
    pub end: u64,
    /// Length of the run in seconds, or 0 if it is unknown.
    pub seconds: f64,
    /// Seconds from the start to the last allocation, or 0 if it is unknown. A process that waits
    /// before it ends shows no growth in that time.
    pub active_seconds: f64,
    /// Number of allocations and reallocations of all sites.
    pub allocs: u64,
    /// Peak of the live bytes of all sites together.
    pub peak_bytes: u64,
    /// Number of missing events, or `u64::MAX` if an unknown number is missing.
    pub hidden: u64,
    /// Last position at which events may be missing, in the unit of the axis.
    pub hidden_until: u64,
}

/// Minimum number of survivors for growth. Fewer are slow growth.
const MIN_GROWTH_BLOCKS: u64 = 8;
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
/// Of survivors that were allocated at one time, at least this share was: 7/8. It is the same for
/// the rise of live bytes.
const BURST: (u64, u64) = (7, 8);
/// Number of slices of a quarter of the run.
const QUARTER_SLICES: usize = SLICES / 4;

/// Minimum length of a run for growth, in seconds. In a shorter run growth is too little to tell,
/// because every program allocates at its start what it keeps.
pub const FLOOR_SECONDS: f64 = 1.0;
/// Minimum number of bytes for growth. Growth by fewer bytes is too little to tell, if it is also
/// less than [`FLOOR_SHARE`].
pub const FLOOR_BYTES: u64 = 64 << 10;
/// Minimum share of the run's peak for growth, if it has fewer than [`FLOOR_BYTES`].
pub const FLOOR_SHARE: f64 = 0.01;

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

    /// Returns the final verdict, after all survivors were added, and whether only the length of the
    /// run is below the floor: then growth is probable. Growth below the floor becomes
    /// [`Verdict::TooLittle`].
    pub fn settle(&self, run: &Run, of: &K, verdict: Verdict) -> (Verdict, bool) {
        let (bytes, last_seconds) = self.of.get(of).copied().unwrap_or_default();
        // Growth that ended after half a second was short, however long the program waited then.
        let grew_seconds = if last_seconds > 0.0 { last_seconds } else { run.active_seconds };
        let is_short = run.active_seconds > 0.0 && grew_seconds < FLOOR_SECONDS;
        let is_small = bytes < FLOOR_BYTES && (bytes as f64) < FLOOR_SHARE * run.peak_bytes as f64;
        match verdict {
            // What a run below a tenth of a second keeps is mostly its start.
            Verdict::Growing if is_short || is_small => {
                (Verdict::TooLittle, !is_small && (run.axis.by_tick || bytes >= FLOOR_BYTES))
            }
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
pub fn judge_snapshots(run: &Run, history: &History, survivors: &Survivors) -> Verdict {
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
    let first = if run.axis.by_tick { survivors.first.0 } else { survivors.first.1 };
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
    let width = run.axis.end.saturating_sub(run.axis.start) / SLICES as u64;
    let start_of = |slice: usize| run.axis.start + width * slice as u64;
    for at in 0..SLICES {
        let slice = if youngest { SLICES - 1 - at } else { at };
        if start_of(slice) > run.hidden_until {
            continue;
        }
        let removed = hidden.min(rest.allocs_by_slice[slice]);
        hidden -= removed;
        rest.allocs_by_slice[slice] -= removed;
        rest.blocks -= removed;
        rest.bytes = rest.bytes.saturating_sub(removed * size);
        for live in &mut history.series[slice..] {
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
        let point = |at: u64| (at, at);
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
    let (first, last) = match run.axis.by_tick {
        true => (survivors.first.0, survivors.last.0),
        false => (survivors.first.1, survivors.last.1),
    };
    let length = run.axis.end.saturating_sub(run.axis.start).max(1) as f64;
    let share = |at: u64| at.saturating_sub(run.axis.start) as f64 / length;
    let growth = |blocks: u64| if is_slow(run, history, survivors, blocks) { Verdict::Slow } else { Verdict::Growing };
    let is_burst = is_burst(survivors);
    if history.freed > MIN_POOL_BLOCKS && history.freed >= survivors.blocks {
        let (outliers, spread) = outliers(run, history, survivors);
        if outliers > 2 && spread {
            return growth(outliers);
        }
        if is_plateau(history, survivors) {
            return Verdict::BoundedCache;
        }
        if rises(history) && survivors.blocks >= MIN_GROWTH_BLOCKS && !is_burst {
            return growth(survivors.blocks);
        }
    }
    if is_full_from_before(history) {
        return Verdict::BoundedCache;
    }
    // Twice the longest lifetime, because the end of a run is often slower than the rest.
    let young = history.longest_lifetime.saturating_mul(2) >= run.end.saturating_sub(first);
    if history.freed > 0 && young && share(first) > 0.5 {
        let backlog = rises(history) && survivors.blocks >= MIN_GROWTH_BLOCKS && !is_burst;
        return if backlog { growth(survivors.blocks) } else { Verdict::YoungAtEnd };
    }
    let slices = survivors.allocs_by_slice.iter().filter(|&&allocs| allocs > 0).count();
    let rising = history.series[SLICES - 1] > history.series[SLICES / 2] && survivors.blocks > 2;
    if rising && !is_burst && slices > 2 && share(last) - share(first) > 0.2 && share(last) > 0.7 {
        return growth(survivors.blocks);
    }
    Verdict::OneTime
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

/// Returns whether nearly all survivors were allocated at one time, as by the import of a module:
/// in one slice, or in two next to each other, since the time may be at the end of a slice. That
/// never is growth, and has no rate.
pub fn is_burst(survivors: &Survivors) -> bool {
    let slices = &survivors.allocs_by_slice;
    let together = slices.windows(2).map(|pair| pair[0].saturating_add(pair[1])).max().unwrap_or(0);
    let all = slices.iter().fold(0u64, |sum, allocs| sum.saturating_add(*allocs));
    all > 0 && u128::from(together) * u128::from(BURST.1) >= u128::from(all) * u128::from(BURST.0)
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

/// Returns the number of survivors that are older, by at least a slice, than any freed block of the
/// site became. Also returns whether they were allocated throughout the run. The popular entries of
/// a cache, which are never replaced, are from its start only.
fn outliers(run: &Run, history: &History, survivors: &Survivors) -> (u64, bool) {
    let width = (run.axis.end.saturating_sub(run.axis.start) / SLICES as u64).saturating_add(1);
    let old_enough = run.axis.end.saturating_sub(run.axis.start).saturating_sub(history.longest_lifetime) / width;
    let eligible = usize::try_from(old_enough).map_or(SLICES, |slices| slices.saturating_sub(1).min(SLICES));
    let allocs_by_slice = &survivors.allocs_by_slice[..eligible];
    let held = allocs_by_slice.iter().filter(|&&allocs| allocs > 0).count();
    let late = allocs_by_slice[eligible / 2..].iter().any(|&allocs| allocs > 0);
    (allocs_by_slice.iter().sum(), held > 2 && held * 3 >= eligible && late)
}

/// Returns whether live bytes stay within a tenth of their maximum through the second half of the
/// run, while blocks are still allocated.
fn is_plateau(history: &History, survivors: &Survivors) -> bool {
    let half = &history.series[SLICES / 2 - 1..];
    let (least, most) = (half.iter().min().copied().unwrap_or(0), half.iter().max().copied().unwrap_or(0));
    let flat = least > 0 && least >= most - most / 10;
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

/// Returns whether a site without survivors freed its blocks only at the end of the run: all of
/// them were live at the same time, in the last quarter.
pub fn is_kept_to_exit(history: &History) -> bool {
    let kept = history.bytes - history.bytes / 10;
    history.live_blocks == 0
        && history.freed > 0
        && history.peak_bytes >= kept
        && fullest(history).1 >= SLICES - QUARTER_SLICES
}

/// Returns whether sites whose blocks were kept to the exit grew through the run: more bytes were
/// live at the end than in the middle.
pub fn is_freed_at_exit(history: &History) -> bool {
    let (most, at) = fullest(history);
    let rose = history.freed >= MIN_GROWTH_BLOCKS && at >= SLICES - QUARTER_SLICES;
    rose && history.series[at / 2] <= most - most / 4 && !rises_at_once(history)
}

/// Returns whether nearly all live bytes came at one time, as by the load of a file.
fn rises_at_once(history: &History) -> bool {
    let most = u128::from(fullest(history).0);
    let before = |at: usize| at.checked_sub(2).map_or(0, |at| history.series[at]);
    let step = (0..SLICES).map(|at| history.series[at].saturating_sub(before(at))).max().unwrap_or(0);
    u128::from(step) * u128::from(BURST.1) >= most * u128::from(BURST.0)
}

/// Returns the maximum of the live bytes at the ends of slices, and the last slice that has it.
fn fullest(history: &History) -> (u64, usize) {
    history.series.iter().zip(0..).fold((0, 0), |most, (&live, at)| most.max((live, at)))
}

/// Returns the growth of a site in bytes per unit of the axis, by least squares over the live bytes
/// at the ends of the slices.
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
    fn final_verdict(verdict: Verdict, bytes: u64, stacks: u64, active_seconds: f64) -> Verdict {
        let axis = Axis { by_tick: true, start: 0, end: 100 };
        let run = Run {
            axis,
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
        let is_enough = bytes >= FLOOR_BYTES || bytes as f64 >= FLOOR_SHARE * run.peak_bytes as f64;
        assert_eq!(is_probable, verdict == Verdict::Growing && is_short && is_enough, "{bytes} in {active_seconds} s");
        settled
    }

    /// Returns survivors with numbers of blocks by slice.
    fn survivors_of(allocs_by_slice: [u64; SLICES]) -> Survivors {
        Survivors { blocks: allocs_by_slice.iter().sum(), allocs_by_slice, ..Survivors::default() }
    }

    #[test]
    fn what_was_allocated_at_one_time_is_a_burst() {
        let slices = |of: &[(usize, u64)]| {
            let mut slices = [0; SLICES];
            of.iter().for_each(|&(slice, blocks)| slices[slice] = blocks);
            slices
        };
        for burst in [&[(9, 211)][..], &[(9, 100), (10, 111)], &[(0, 3), (9, 60), (10, 60), (15, 2)], &[(3, 1)]] {
            assert!(is_burst(&survivors_of(slices(burst))), "{burst:?}");
        }
        for steady in [&[(9, 100), (11, 111)][..], &[(0, 10), (9, 60)], &[(13, 10), (14, 20), (15, 40)]] {
            assert!(!is_burst(&survivors_of(slices(steady))), "{steady:?}");
        }
        assert!(!is_burst(&survivors_of([4; SLICES])) && !is_burst(&Survivors::default()));
    }

    #[test]
    fn what_was_loaded_at_once_did_not_grow() {
        let history = |series: [u64; SLICES]| History { freed: 100, series, ..History::default() };
        let at = |from: usize| std::array::from_fn(|slice| if slice >= from { 1 << 20 } else { 0 });
        for from in 9..SLICES {
            assert!(!is_freed_at_exit(&history(at(from))), "{from}");
        }
        assert!(is_freed_at_exit(&history(std::array::from_fn(|slice| (slice as u64 + 1) << 16))));
    }

    #[test]
    fn growth_is_short_if_it_ended_early_in_a_longer_run() {
        let axis = Axis { by_tick: true, start: 0, end: 100 };
        let (seconds, active_seconds, peak_bytes) = (1.3, 1.2, 1 << 20);
        let run = Run { axis, end: 100, seconds, active_seconds, allocs: 900, peak_bytes, hidden: 0, hidden_until: 0 };
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

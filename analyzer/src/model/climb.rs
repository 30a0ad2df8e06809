//! Growth, judged by the level of a site's live bytes in the sixteenths of the run. What counts is
//! the least of each sixteenth: a wave that comes and goes has no level, and a queue that is never
//! emptied has one, however young its blocks are. All verdicts on growth, of blocks that are kept
//! and of blocks that were freed at exit, are this one judgement.

use super::axis::SLICES;
use super::leaks::{History, Survivors};
use super::run::{MIN_GROWTH_BLOCKS, QUARTER_SLICES, Run};

/// Of what was allocated at one time, at least this share was: 7/8. It is the same for the rise of
/// a level.
const BURST: (u64, u64) = (7, 8);
/// Minimum rise in the last quarter of the run, as a share of that in the quarter before: 1/2.
const FADE: u64 = 2;
/// The same as a share of the level.
const LEAST_SHARE: u64 = 16;
/// A level whose rises are not as many times its falls comes and goes.
const STEADY: u64 = 4;

/// A level that rises to the end of the run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Climb {
    /// Share of the level at the end that came in the run, by the pace of its second half.
    share: f64,
    /// Whether it came down in the run before.
    pub came_down: bool,
}

impl Climb {
    /// Returns how many of a site's blocks came in the climb.
    pub(crate) fn of_blocks(&self, blocks: u64) -> u64 {
        (blocks as f64 * self.share) as u64
    }
}

/// Returns how a level rises, if it does so to the end of the run: in the second half at times that
/// are apart, not all at once, with few falls, and in the last quarter at half the pace of the
/// quarter before, or still by a sixteenth of all.
pub fn climb(levels: &[u64; SLICES], run: &Run) -> Option<Climb> {
    const HALF: usize = SLICES / 2 - 1;
    const LAST: usize = SLICES - 1;
    let rise = |from: usize, to: usize| levels[to].saturating_sub(levels[from]);
    let risen = rise(HALF, LAST);
    // From the middle of the run on, and from its start on.
    let sums = |from: usize| {
        let steps = (from + 1..SLICES).map(|at| (rise(at - 1, at), levels[at - 1].saturating_sub(levels[at])));
        steps.fold((0u64, 0u64), |sum, (up, down)| (sum.0.saturating_add(up), sum.1.saturating_add(down)))
    };
    let (up, down) = sums(HALF);
    let mut rising = (HALF + 1..SLICES).filter(|&at| rise(at - 1, at) > 0);
    let (first, last) = (rising.next()?, rising.next_back()?);
    let step = (HALF + 1..SLICES).map(|at| rise((at - 2).max(HALF), at)).max().unwrap_or(0);
    let (before, end) = (rise(HALF, LAST - QUARTER_SLICES), rise(LAST - QUARTER_SLICES, LAST));
    let least = levels.iter().min().copied().unwrap_or(0);
    let fades = end.saturating_mul(FADE) < before && end.saturating_mul(LEAST_SHARE) < levels[LAST] - least;
    let took = run.slicing.start(last).saturating_sub(run.slicing.start(first));
    let is_moment = took.saturating_add(run.axis.moment).saturating_mul(SLICES as u64) < run.axis.length();
    let climbs = risen > 0
        && down.saturating_mul(STEADY) <= up
        && last - first > 1
        && !is_most(step, risen)
        && !fades
        && !is_moment;
    let (up, down) = sums(0);
    let share = (2.0 * risen as f64 / levels[LAST].max(1) as f64).min(1.0);
    climbs.then_some(Climb { share, came_down: down.saturating_mul(STEADY) > up })
}

/// Returns whether a part is nearly all.
fn is_most(part: u64, all: u64) -> bool {
    all > 0 && u128::from(part) * u128::from(BURST.1) >= u128::from(all) * u128::from(BURST.0)
}

/// Returns whether nearly all survivors were allocated at one time, as by the import of a module:
/// in one slice, or in two next to each other, since the time may be at the end of a slice. That
/// has no rate.
pub(crate) fn is_burst(survivors: &Survivors) -> bool {
    let slices = &survivors.allocs_by_slice;
    let together = slices.windows(2).map(|pair| pair[0].saturating_add(pair[1])).max().unwrap_or(0);
    is_most(together, slices.iter().fold(0u64, |sum, allocs| sum.saturating_add(*allocs)))
}

/// Returns whether a site without survivors held blocks until the exit: all the time before it, not
/// only now and then.
pub(crate) const fn is_kept_to_exit(history: &History) -> bool {
    history.live_blocks == 0 && history.at_exit.blocks > 0 && history.least[SLICES - 2] > 0
}

/// Returns whether what sites held until the exit grew through the run until then. A queue that is
/// never emptied does, though most of its blocks were freed before.
pub(crate) fn is_freed_at_exit(run: &Run, history: &History) -> bool {
    // The exit is at the end of the last slice.
    let mut levels = history.least;
    levels[SLICES - 1] = history.series[SLICES - 2];
    let held = history.at_exit.blocks;
    held >= MIN_GROWTH_BLOCKS && held > history.half_blocks && climb(&levels, run).is_some_and(|climb| !climb.came_down)
}

/// Returns by how many bytes the blocks of a site became more, and fewer, in the second half of the
/// run. What is freed at the exit does not count.
pub fn change(history: &History) -> (u64, u64) {
    let (middle, end) = (history.series[SLICES / 2 - 1], history.series[SLICES - 2]);
    (end.saturating_sub(middle), middle.saturating_sub(end))
}

/// Returns the growth of a site in bytes per tick, by least squares over the live bytes at the ends
/// of the slices.
pub(crate) fn slope(run: &Run, history: &History) -> f64 {
    let width = run.axis.length() as f64 / SLICES as f64;
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
    use crate::model::axis::{Axis, Slicing};
    use crate::model::leaks::Held;

    /// Returns a run of 16 seconds, in nanoseconds.
    fn run() -> Run {
        let axis = Axis::plain(true, 0, 16_000_000_000);
        let slicing = Slicing::even(&axis);
        let (seconds, active_seconds) = (16.0, 16.0);
        let (allocs, peak_bytes) = (1000, 1 << 20);
        Run { axis, slicing, end: axis.end, seconds, active_seconds, allocs, peak_bytes, hidden: 0, hidden_until: 0 }
    }

    /// Returns whether a level climbs that is a function of the share of the run.
    fn climbs(level: impl Fn(f64) -> f64) -> bool {
        let levels = std::array::from_fn(|at| (level(at as f64 / SLICES as f64) * 1e6) as u64);
        climb(&levels, &run()).is_some()
    }

    #[test]
    fn level_climbs_if_it_rises_to_the_end() {
        assert!(climbs(|at| at));
        assert!(climbs(|at| 1000.0 + at), "a little, on top of much");
        assert!(climbs(|at| at.min(0.9)), "nearly to the end");
        assert!(climbs(|at| (at - 0.6).max(0.0)), "from late on");
        assert!(climbs(|at| (at * 6.0).floor()), "in six steps");
        assert!(climbs(f64::sqrt));
        assert!(!climbs(|_| 1.0));
        for stop in [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7] {
            assert!(!climbs(|at| at.min(stop)), "{stop}");
        }
    }

    #[test]
    fn step_wave_and_cache_do_not_climb() {
        for step in [0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9] {
            assert!(!climbs(|at| if at >= step { 1.0 } else { 0.0 }), "{step}");
            assert!(!climbs(|at| if at >= step { 1.1 } else { 1.0 }), "{step}");
        }
        assert!(!climbs(|at| 1.0 - at));
        for period in [0.1, 0.15, 0.2, 0.3, 0.4] {
            assert!(!climbs(|at| at % period), "{period}");
        }
        // A cache of random keys that fills.
        for fill in [0.05, 0.1, 0.2, 0.25] {
            assert!(!climbs(|at| 1.0 - (-at / fill).exp()), "{fill}");
        }
    }

    #[test]
    fn what_happens_in_a_moment_of_a_run_of_events_does_not_climb() {
        let mut levels = [0u64; SLICES];
        (4..SLICES).for_each(|at| levels[at] = at as u64);
        assert!(climb(&levels, &run()).is_some());
        // The events of slices 3 to 15 took half a second.
        let starts = std::array::from_fn(|at| if at <= 3 { at as u64 * 5_000_000_000 } else { 15_500_000_000 });
        let run = Run { slicing: Slicing::new(starts), ..run() };
        assert!(climb(&levels, &run).is_none());
    }

    #[test]
    fn level_that_was_emptied_before_came_down() {
        let levels =
            |emptied: usize| std::array::from_fn(|at| if at < emptied { at } else { at - emptied } as u64 * 10);
        assert!(climb(&levels(6), &run()).is_some_and(|climb| climb.came_down));
        assert!(climb(&levels(SLICES), &run()).is_some_and(|climb| !climb.came_down));
    }

    #[test]
    fn any_levels_are_accepted() {
        for (low, high) in [(0, u64::MAX), (u64::MAX, 0), (u64::MAX, u64::MAX), (0, 0)] {
            for split in 0..SLICES {
                climb(&std::array::from_fn(|at| if at < split { low } else { high }), &run());
                climb(&std::array::from_fn(|at| if (at / 2 + split) % 2 == 0 { low } else { high }), &run());
            }
        }
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
    fn only_what_grew_to_the_exit_is_freed_at_exit() {
        // The blocks are freed in the last slice. `level` is what is live at the end of each slice.
        let of = |level: &dyn Fn(usize) -> u64| {
            let blocks = |at: usize| if at < SLICES - 1 { level(at) / 64 } else { 0 };
            let series = std::array::from_fn(|at| 64 * blocks(at));
            let least = std::array::from_fn(|at| series[at].min(if at == 0 { 0 } else { series[at - 1] }));
            let at_exit = Held { blocks: blocks(SLICES - 2), bytes: series[SLICES - 2] };
            History { freed: 9999, at_exit, half_blocks: blocks(SLICES / 2 - 1), series, least, ..History::default() }
        };
        for from in 0..SLICES - 2 {
            let loaded = of(&|at| if at >= from { 1 << 20 } else { 0 });
            assert!(is_kept_to_exit(&loaded) && !is_freed_at_exit(&run(), &loaded), "{from}");
        }
        let ramp = |until: usize| of(&|at| (at.min(until) as u64 + 1) << 16);
        assert!(is_kept_to_exit(&ramp(SLICES)) && is_freed_at_exit(&run(), &ramp(SLICES)));
        assert!(!is_freed_at_exit(&run(), &ramp(SLICES / 2)));
        let drained = of(&|at| if at < SLICES - 3 { (at as u64 + 1) << 16 } else { 0 });
        assert!(!is_kept_to_exit(&drained), "all were freed before the exit");
        let few = History { at_exit: Held { blocks: 7, bytes: 1 << 20 }, half_blocks: 3, ..ramp(SLICES) };
        assert!(!is_freed_at_exit(&run(), &few));
        // It came down once: what is live at the exit may be work that is not done yet.
        assert!(!is_freed_at_exit(&run(), &of(&|at| if at < 6 { 8 << 20 } else { (at as u64) << 16 })));
    }
}

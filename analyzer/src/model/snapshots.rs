//! Evidence from sums that were looked at again and again: what lived of a site at some moments of
//! the run. How long blocks live is not known.

use super::leaks::{Axis, History, SLICES, Survivors};
use super::verdict::Run;
use heaptape_formats::tape::{self, SiteHistory, SiteSums, Totals};

/// No process holds so much: what a file says beyond that is as good as this, and sums of it fit.
const MOST: u64 = 1 << 56;
/// A shorter course says nothing, in seconds: a program's start grows too.
const SHORT: f64 = 8.0;

/// The run that a course tells of: up to `end`, at `rate` ticks a second. `None` when it tells
/// nothing.
pub fn run_of(course: &tape::History, totals: &Totals, end: u64, rate: u64, hidden: u64) -> Option<Run> {
    let [first, second, ..] = course.ticks[..] else { return None };
    // The moments are as far from each other as the first is from the start.
    let start = first.saturating_sub(second.saturating_sub(first));
    let seconds = end.checked_sub(start)? as f64 / rate.max(1) as f64;
    let is_told = seconds >= SHORT && course.ticks.is_sorted() && course.ticks.len() >= SLICES / 2;
    let axis = Axis { by_tick: true, start, end };
    let allocs = totals.allocs.saturating_add(totals.resizes);
    let (peak_bytes, hidden_until) = (totals.peak_bytes, u64::MAX);
    is_told.then_some(Run { axis, end, seconds, active_seconds: seconds, allocs, peak_bytes, hidden, hidden_until })
}

/// A value at `tick`, on the line between the moments around it: nothing at the start, `now` at the
/// end.
fn between(ticks: &[u64], values: &[u64], tick: u64, start: u64, (end, now): (u64, u64)) -> u64 {
    let next = ticks.partition_point(|&moment| moment <= tick);
    let point = |place: usize| match (ticks.get(place), values.get(place)) {
        (Some(&moment), Some(&value)) => (moment, value),
        _ => (end, now),
    };
    let (from, before) = next.checked_sub(1).map_or((start, 0), point);
    let (to, after) = point(next);
    let share = tick.saturating_sub(from) as f64 / to.saturating_sub(from).max(1) as f64;
    ((before as f64 + (after as f64 - before as f64) * share.min(1.0)) as u64).min(MOST)
}

/// A site over that run, as far as moments tell: between two of them it went straight on; a block
/// is born where more live than before.
pub fn evidence_of(run: &Run, course: &tape::History, site: &SiteHistory, now: &SiteSums) -> (History, Survivors) {
    let (allocs, frees) = (now.allocs.min(MOST), now.frees.min(MOST));
    let (live_blocks, live_bytes) = (allocs.saturating_sub(frees), now.bytes.saturating_sub(now.freed_bytes).min(MOST));
    let width = run.axis.end.saturating_sub(run.axis.start) / SLICES as u64;
    let end_of = |slice: usize| run.axis.start + width * (slice as u64 + 1);
    let at = |slice: usize| {
        let value = |values: &[u64], now: u64| {
            between(&course.ticks, values, end_of(slice), run.axis.start, (run.axis.end, now))
        };
        match slice + 1 {
            SLICES => (live_blocks, live_bytes),
            _ => (value(&site.blocks, live_blocks), value(&site.bytes, live_bytes)),
        }
    };
    let held: [(u64, u64); SLICES] = std::array::from_fn(at);
    let mut survivors = Survivors { blocks: live_blocks, bytes: live_bytes, ..Survivors::default() };
    // From the end on: a block that lives was born when there were first so many.
    let mut least = live_blocks;
    for slice in (0..SLICES).rev() {
        let before = if slice == 0 { 0 } else { held[slice - 1].0.min(least) };
        survivors.allocs_by_slice[slice] = least - before;
        least = before;
    }
    let start_of = |slice: usize| run.axis.start + width * slice as u64;
    let born = |slice: Option<usize>, of: &dyn Fn(usize) -> u64| slice.map_or((0, 0), |slice| (of(slice), 0));
    survivors.first =
        born(survivors.allocs_by_slice.iter().position(|&allocs_by_slice| allocs_by_slice > 0), &start_of);
    survivors.last = born(survivors.allocs_by_slice.iter().rposition(|&allocs_by_slice| allocs_by_slice > 0), &end_of);
    let series = held.map(|(_, bytes)| bytes);
    let history = History {
        allocs,
        bytes: now.bytes,
        frees,
        freed: frees,
        live_blocks,
        live_bytes,
        peak_bytes: series.into_iter().max().unwrap_or(0),
        peak_blocks: held.iter().map(|(blocks, _)| *blocks).max().unwrap_or(0),
        half_blocks: held[SLICES / 2 - 1].0,
        series,
        ..History::default()
    };
    (history, survivors)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::verdict::{Verdict, judge_snapshots};

    /// Judges a site with the given numbers of live blocks of 100 bytes after each of 100 seconds,
    /// of freed blocks, and of lost events.
    fn verdict(held: impl Fn(u64) -> u64, frees: u64, lost: u64) -> Verdict {
        let moments = (8..=96).step_by(8);
        let blocks: Vec<u64> = moments.clone().map(&held).collect();
        let bytes = blocks.iter().map(|blocks| blocks * 100).collect();
        let course = tape::History { ticks: moments.collect(), sites: vec![SiteHistory { site: 1, blocks, bytes }] };
        let live = held(100);
        let allocs = live + frees;
        let now =
            SiteSums { site: 1, allocs, frees, bytes: allocs * 100, freed_bytes: frees * 100, ..SiteSums::default() };
        let totals = Totals { allocs, peak_bytes: live * 100, ..Totals::default() };
        let run = run_of(&course, &totals, 100, 1, lost).unwrap_or_else(|| panic!("the course is long enough"));
        let (history, survivors) = evidence_of(&run, &course, &course.sites[0], &now);
        assert_eq!(survivors.allocs_by_slice.iter().sum::<u64>(), live);
        judge_snapshots(&run, &history, &survivors)
    }

    #[test]
    fn what_grows_all_the_time_is_told_and_nothing_else() {
        assert_eq!(verdict(|second| 10 * second, 0, 0), Verdict::Growing);
        assert_eq!(verdict(|second| 10 * second, 300, 0), Verdict::Growing);
        assert_eq!(verdict(|second| 10 * second, 100_000, 0), Verdict::Growing);
        assert_eq!(verdict(|second| second / 14, 0, 0), Verdict::Slow);
        assert_eq!(verdict(|_| 50, 0, 0), Verdict::OneTime);
        // Comes and goes, fills up, grows in one step, shrinks.
        assert_eq!(verdict(|second| 50 + second % 20, 5000, 0), Verdict::Uncertain);
        assert_eq!(verdict(|second| second.min(30) * 10, 5000, 0), Verdict::Uncertain);
        assert_eq!(verdict(|second| if second < 60 { 10 } else { 500 }, 5000, 0), Verdict::Uncertain);
        assert_eq!(verdict(|second| 2000 - 10 * second, 5000, 0), Verdict::Uncertain);
        // A vector: one block that is resized.
        assert_eq!(verdict(|_| 1, 20, 0), Verdict::Uncertain);
    }

    #[test]
    fn whatever_a_file_says_is_judged() {
        for value in [0, 1, 1 << 60, u64::MAX] {
            for ticks in [vec![value; 9], (0..9).map(|at| u64::MAX - 9 + at).collect(), (0..9).collect()] {
                let site = SiteHistory { site: 1, blocks: vec![value, 5, value], bytes: vec![value; 20] };
                let course = tape::History { ticks, sites: vec![site] };
                let now = SiteSums { site: 1, allocs: u64::MAX, bytes: value, frees: value, ..SiteSums::default() };
                let totals = Totals { allocs: u64::MAX, resizes: value, ..Totals::default() };
                for (end, lost) in [(u64::MAX, 0), (u64::MAX, u64::MAX), (7, 3), (value, value)] {
                    if let Some(run) = run_of(&course, &totals, end, value & 1, lost) {
                        let (history, survivors) = evidence_of(&run, &course, &course.sites[0], &now);
                        judge_snapshots(&run, &history, &survivors);
                    }
                }
            }
        }
    }

    #[test]
    fn lost_events_never_make_growth() {
        assert_eq!(verdict(|second| 10 * second, 0, 100), Verdict::Growing);
        assert_eq!(verdict(|second| 10 * second, 0, 1000), Verdict::Uncertain);
        // One free in a hundred is lost: so many seem to stay.
        assert_eq!(verdict(|second| 40 + second, 10_000, 100), Verdict::Uncertain);
    }
}

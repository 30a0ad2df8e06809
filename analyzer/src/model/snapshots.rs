//! Evidence for the leak report from snapshots: the live blocks and bytes of sites at regular
//! points in time, for processes that were recorded without events. Lifetimes are not known.

use super::axis::{Axis, SLICES, Slicing};
use super::leaks::{History, Survivors};
use super::run::Run;
use crate::event::Position;
use heaptape_formats::tape::{self, SiteErrors, SiteHistory, SiteSums, Totals};

/// Limit of values from a file. No process has this many bytes, and sums of it do not overflow.
const MAX_VALUE: u64 = 1 << 56;
/// Minimum length of a run in seconds. Every program grows at its start.
const MIN_SECONDS: f64 = 8.0;

/// Returns the properties of a run with snapshots, up to `end`, at `rate` ticks per second. Returns
/// `None` if there are too few snapshots.
pub fn run_of(snapshots: &tape::History, totals: &Totals, end: u64, rate: u64, hidden: u64) -> Option<Run> {
    let [first, second, ..] = snapshots.ticks[..] else { return None };
    // The first snapshot is one interval after the start.
    let start = first.saturating_sub(second.saturating_sub(first));
    let seconds = end.checked_sub(start)? as f64 / rate.max(1) as f64;
    let is_enough = seconds >= MIN_SECONDS && snapshots.ticks.is_sorted() && snapshots.ticks.len() >= SLICES / 2;
    let axis = Axis::plain(true, start, end);
    let slicing = Slicing::even(&axis);
    let allocs = totals.allocs.saturating_add(totals.resizes);
    let (peak_bytes, hidden_until) = (totals.peak_bytes, u64::MAX);
    let active_seconds = seconds;
    is_enough.then_some(Run { axis, slicing, end, seconds, active_seconds, allocs, peak_bytes, hidden, hidden_until })
}

/// Returns the part of a run since its last loss of events, at `loss`, at `rate` ticks per second:
/// a free that was lost only keeps blocks that are older. It begins with the first snapshot after
/// the loss. Returns `None` if there are too few snapshots since then.
pub(crate) fn since_loss(run: &Run, snapshots: &tape::History, loss: u64, rate: u64) -> Option<Run> {
    let start = *snapshots.ticks.iter().find(|&&tick| tick >= loss)?;
    let later = snapshots.ticks.iter().filter(|&&tick| tick > start).count();
    let seconds = run.axis.end.checked_sub(start)? as f64 / rate.max(1) as f64;
    let is_enough = seconds >= MIN_SECONDS && later >= SLICES / 2 && start > run.axis.start;
    let axis = Axis { start, ..run.axis };
    let slicing = Slicing::even(&axis);
    is_enough.then_some(Run { axis, slicing, seconds, active_seconds: seconds, hidden: 0, hidden_until: 0, ..*run })
}

/// Returns a value at `tick` by linear interpolation between the snapshots around it. The value is
/// 0 at the start and `now` at the end.
fn between(ticks: &[u64], values: &[u64], tick: u64, start: u64, (end, now): (u64, u64)) -> u64 {
    let next = ticks.partition_point(|&snapshot| snapshot <= tick);
    let point = |index: usize| match (ticks.get(index), values.get(index)) {
        (Some(&snapshot), Some(&value)) => (snapshot, value),
        _ => (end, now),
    };
    let (from, before) = next.checked_sub(1).map_or((start, 0), point);
    let (to, after) = point(next);
    let share = tick.saturating_sub(from) as f64 / to.saturating_sub(from).max(1) as f64;
    ((before as f64 + (after as f64 - before as f64) * share.min(1.0)) as u64).min(MAX_VALUE)
}

/// Returns the standard error of the rise of a site's live bytes from the middle of the run to its
/// end. Blocks that were live in the middle and are live at the end add nothing to it: if no block
/// was freed, these are all of the middle.
pub(crate) fn rise_error(run: &Run, ticks: &[u64], errors: &SiteErrors, has_frees: bool) -> u64 {
    let now = errors.bytes.last().copied().unwrap_or(0).min(MAX_VALUE);
    let middle = run.axis.start + run.axis.end.saturating_sub(run.axis.start) / 2;
    let middle = between(ticks, &errors.bytes, middle, run.axis.start, (run.axis.end, now));
    let (now, middle) = (now as f64, middle as f64);
    let error = if has_frees { now.hypot(middle) } else { (now * now - middle * middle).max(0.0).sqrt() };
    error as u64
}

/// Returns the evidence of a site from its snapshots. Between snapshots, values are interpolated.
/// Where their number rises, blocks are allocated. `errors` are those of a sampled site. What was
/// live at the start of the run does not count.
pub(crate) fn evidence_of(
    run: &Run,
    snapshots: &tape::History,
    site: &SiteHistory,
    now: &SiteSums,
    errors: Option<&SiteErrors>,
) -> (History, Survivors) {
    let (allocs, frees) = (now.allocs.min(MAX_VALUE), now.frees.min(MAX_VALUE));
    let (live_blocks, live_bytes) =
        (allocs.saturating_sub(frees), now.bytes.saturating_sub(now.freed_bytes).min(MAX_VALUE));
    let width = run.axis.end.saturating_sub(run.axis.start) / SLICES as u64;
    let end_of = |slice: usize| run.axis.start + width * (slice as u64 + 1);
    let at = |slice: usize| {
        let value = |values: &[u64], now: u64| {
            between(&snapshots.ticks, values, end_of(slice), run.axis.start, (run.axis.end, now))
        };
        match slice + 1 {
            SLICES => (live_blocks, live_bytes),
            _ => (value(&site.blocks, live_blocks), value(&site.bytes, live_bytes)),
        }
    };
    let held: [(u64, u64); SLICES] = std::array::from_fn(at);
    let at_start = |values: &[u64], now: u64| {
        between(&snapshots.ticks, values, run.axis.start, run.axis.start, (run.axis.end, now))
    };
    let before = (at_start(&site.blocks, live_blocks), at_start(&site.bytes, live_bytes));
    let held = held.map(|(blocks, bytes)| (blocks.saturating_sub(before.0), bytes.saturating_sub(before.1)));
    let [.., (live_blocks, live_bytes)] = held;
    let mut survivors = Survivors { blocks: live_blocks, bytes: live_bytes, ..Survivors::default() };
    // From the last slice to the first: the oldest n survivors were allocated when n blocks became
    // live for the last time.
    let mut least = live_blocks;
    for slice in (0..SLICES).rev() {
        let before = if slice == 0 { 0 } else { held[slice - 1].0.min(least) };
        survivors.allocs_by_slice[slice] = least - before;
        least = before;
    }
    let start_of = |slice: usize| run.axis.start + width * slice as u64;
    let at_slice = |slice: Option<usize>, of: &dyn Fn(usize) -> u64| {
        slice.map_or_else(Position::default, |slice| Position { tick: of(slice), number: 0 })
    };
    survivors.first = at_slice(survivors.allocs_by_slice.iter().position(|&allocs| allocs > 0), &start_of);
    survivors.last = at_slice(survivors.allocs_by_slice.iter().rposition(|&allocs| allocs > 0), &end_of);
    let series = held.map(|(_, bytes)| bytes);
    // Between two snapshots there may have been fewer.
    let least = std::array::from_fn(|slice| if slice == 0 { 0 } else { series[slice - 1].min(series[slice]) });
    if frees == 0 {
        survivors.old_by_slice = survivors.allocs_by_slice;
    }
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
        least,
        rise_error: errors.map(|errors| rise_error(run, &snapshots.ticks, errors, frees > 0)),
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
        let ticks = (8..=96).step_by(8);
        let blocks: Vec<u64> = ticks.clone().map(&held).collect();
        let bytes = blocks.iter().map(|blocks| blocks * 100).collect();
        let snapshots = tape::History {
            ticks: ticks.collect(),
            sites: vec![SiteHistory { site: 1, blocks, bytes }],
            ..Default::default()
        };
        let live = held(100);
        let allocs = live + frees;
        let now =
            SiteSums { site: 1, allocs, frees, bytes: allocs * 100, freed_bytes: frees * 100, ..SiteSums::default() };
        let totals = Totals { allocs, peak_bytes: live * 100, ..Totals::default() };
        let run = run_of(&snapshots, &totals, 100, 1, lost).unwrap_or_else(|| panic!("the run is long enough"));
        let (history, survivors) = evidence_of(&run, &snapshots, &snapshots.sites[0], &now, None);
        assert_eq!(survivors.allocs_by_slice.iter().sum::<u64>(), live);
        judge_snapshots(&run, &history, &survivors)
    }

    #[test]
    fn only_steady_growth_is_reported() {
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
    fn any_values_of_a_file_are_accepted() {
        for value in [0, 1, 1 << 60, u64::MAX] {
            for ticks in [vec![value; 9], (0..9).map(|at| u64::MAX - 9 + at).collect(), (0..9).collect()] {
                let site = SiteHistory { site: 1, blocks: vec![value, 5, value], bytes: vec![value; 20] };
                let snapshots = tape::History { ticks, sites: vec![site], ..Default::default() };
                let now = SiteSums { site: 1, allocs: u64::MAX, bytes: value, frees: value, ..SiteSums::default() };
                let totals = Totals { allocs: u64::MAX, resizes: value, ..Totals::default() };
                for (end, lost) in [(u64::MAX, 0), (u64::MAX, u64::MAX), (7, 3), (value, value)] {
                    if let Some(run) = run_of(&snapshots, &totals, end, value & 1, lost) {
                        let errors = SiteErrors { site: 1, bytes: vec![value; 3] };
                        let (history, survivors) =
                            evidence_of(&run, &snapshots, &snapshots.sites[0], &now, Some(&errors));
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
        // One free in a hundred is lost, so as many blocks seem to be live.
        assert_eq!(verdict(|second| 40 + second, 10_000, 100), Verdict::Uncertain);
    }

    /// Judges what happened since events were lost at this second, of 100.
    fn since(loss: u64, held: impl Fn(u64) -> u64, frees: u64) -> Option<Verdict> {
        let ticks: Vec<u64> = (4..=96).step_by(4).collect();
        let blocks: Vec<u64> = ticks.iter().map(|&tick| held(tick)).collect();
        let bytes = blocks.iter().map(|blocks| blocks * 100).collect();
        let sites = vec![SiteHistory { site: 1, blocks, bytes }];
        let snapshots = tape::History { ticks, sites, ..Default::default() };
        let live = held(100);
        let allocs = live + frees;
        let now =
            SiteSums { site: 1, allocs, frees, bytes: allocs * 100, freed_bytes: frees * 100, ..SiteSums::default() };
        let totals = Totals { allocs, peak_bytes: live * 100, ..Totals::default() };
        let run = run_of(&snapshots, &totals, 100, 1, 7958).expect("the run is long enough");
        let (history, survivors) = evidence_of(&run, &snapshots, &snapshots.sites[0], &now, None);
        assert_eq!(judge_snapshots(&run, &history, &survivors), Verdict::Uncertain);
        let run = since_loss(&run, &snapshots, loss, 1)?;
        let (history, survivors) = evidence_of(&run, &snapshots, &snapshots.sites[0], &now, None);
        Some(judge_snapshots(&run, &history, &survivors))
    }

    #[test]
    fn growth_since_the_last_loss_is_judged() {
        assert_eq!(since(20, |second| 10 * second, 5000), Some(Verdict::Growing));
        assert_eq!(since(20, |second| 4000 + second, 0), Some(Verdict::Slow), "beside what was there before");
        // The lost frees make a step at the loss, and nothing after it.
        assert_eq!(since(20, |second| if second < 20 { 50 } else { 500 }, 5000), Some(Verdict::Uncertain));
        assert_eq!(since(20, |second| 500 + second % 20, 5000), Some(Verdict::Uncertain));
        assert_eq!(since(20, |second| second.min(50) * 10, 5000), Some(Verdict::Uncertain));
        assert_eq!(since(97, |second| 10 * second, 5000), None, "there are too few snapshots since then");
    }

    /// Judges a site of a sampled profile: 100 seconds, blocks of 100 bytes, with this number of
    /// sampled blocks of 512 KiB each after each second, and with frees or without.
    fn sampled(held: impl Fn(u64) -> u64, frees: u64) -> Verdict {
        const WEIGHT: u64 = 512 << 10;
        let ticks: Vec<u64> = (8..=96).step_by(8).collect();
        let bytes: Vec<u64> = ticks.iter().map(|&tick| held(tick) * WEIGHT).collect();
        let blocks = bytes.iter().map(|bytes| bytes / 100).collect();
        // The sum of `w (w - size)` over n samples.
        let error = |samples: u64| ((samples as f64).sqrt() * WEIGHT as f64) as u64;
        let errors = ticks.iter().chain([&100]).map(|&tick| error(held(tick))).collect();
        let snapshots =
            tape::History { ticks, sites: vec![SiteHistory { site: 1, blocks, bytes }], ..Default::default() };
        let live = held(100) * WEIGHT;
        let (allocs, allocated) = (live / 100 + frees, live + frees * 100);
        let now =
            SiteSums { site: 1, allocs, frees, bytes: allocated, freed_bytes: frees * 100, ..SiteSums::default() };
        let totals = Totals { allocs, peak_bytes: live, ..Totals::default() };
        let run = run_of(&snapshots, &totals, 100, 1, 0).unwrap_or_else(|| panic!("the run is long enough"));
        let errors = SiteErrors { site: 1, bytes: errors };
        let (history, survivors) = evidence_of(&run, &snapshots, &snapshots.sites[0], &now, Some(&errors));
        judge_snapshots(&run, &history, &survivors)
    }

    #[test]
    fn sampled_site_grows_if_its_rise_is_beyond_three_standard_errors() {
        // 100 samples more in the second half: their error is that of 100 samples.
        assert_eq!(sampled(|second| second * 2, 0), Verdict::Growing);
        assert_eq!(sampled(|second| second * 2, 1_000_000), Verdict::Growing);
        // 6 of 12 samples are new: 2.4 standard errors.
        assert_eq!(sampled(|second| second * 12 / 100, 0), Verdict::Uncertain);
        // 23 of 45 samples: 4.8 without frees, and 2.8 with them, where all blocks may be others.
        assert_eq!(sampled(|second| second * 45 / 100, 0), Verdict::Growing);
        assert_eq!(sampled(|second| second * 45 / 100, 1_000_000), Verdict::Uncertain);
        // As an unsampled one of this shape; but a sample may not have a block yet.
        assert_eq!(sampled(|_| 50, 0), Verdict::Uncertain);
        assert_eq!(sampled(|second| 500 + second % 20, 1_000_000), Verdict::Uncertain);
    }
}

//! Totals and sums by site of a process, from whatever is cheapest: the tape's summary, a profile's,
//! or a replay.

use crate::event::{Range, Span};
use crate::load::{Accounting, Process, StartPoint};
use crate::missing::Missing;
use crate::model::call_sites::CallSites;
use crate::model::peak::Peak;
use crate::model::totals::Totals;
use crate::progress::Progress;
use crate::replay::{self, replay_from};
use heaptape_formats::tape::{self, Inherited, SiteSums};

/// Totals and sums by site, from which most reports begin.
#[derive(Clone, Debug, Default)]
pub struct Sums {
    pub totals: tape::Totals,
    /// One row for each site with allocations.
    pub sites: Vec<SiteSums>,
    /// Whether the peak is known, which is not the case for profiles.
    pub has_peak: bool,
    /// What is missing: of the process, and what was found missing during the replay.
    pub missing: Vec<Missing>,
    /// The accounting of all events of the process, also where the sums are those of a time range.
    pub accounting: Accounting,
}

/// Returns the sums of a whole process.
pub fn sums(process: &Process, progress: &Progress) -> Sums {
    match process.ready_sums() {
        Some(ready) => from_summary(process, ready, process.unusable_chunks()),
        None => replayed_sums(process, progress),
    }
}

/// Returns the sums of a process that has just been recorded. Unlike [`sums`], this does not read
/// the trace to check it for damage.
pub(crate) fn sums_of_new_process(process: &Process, progress: &Progress) -> Sums {
    match process.ready_sums() {
        Some(ready) => from_summary(process, ready, Vec::new()),
        None => replayed_sums(process, progress),
    }
}

fn from_summary(process: &Process, ready: tape::Summary, damage: Vec<Missing>) -> Sums {
    let tape::Summary { totals, sites } = ready;
    let missing = [process.missing.clone(), damage].concat();
    let accounting = Accounting::of(process, &totals, &missing, None);
    Sums { totals, sites, has_peak: process.knows_peak(), missing, accounting }
}

/// Returns the sums of a whole process by a pass over its events.
fn replayed_sums(process: &Process, progress: &Progress) -> Sums {
    let mut sums = sums_within(process, &Range::ALL, progress);
    // The stacks of this trace are known only from the profile beside it.
    if let Some((_, profile)) = &process.sums {
        (sums.sites, sums.has_peak) = (profile.clone(), false);
    }
    sums
}

/// Returns the sums of a time range: what was allocated in it, and how much of that was freed in
/// it.
pub fn sums_within(process: &Process, range: &Range, progress: &Progress) -> Sums {
    let inherited = if range.is_all() { process.tape.inherited.as_ref() } else { None };
    let span = process.span(range);
    // Sums since the start continue from the last summary before the end.
    let start = match range {
        Range { from: None, to: Some(_) } => process.start_before_end(span),
        _ => None,
    };
    let mut replay_all = |models: &mut Models| {
        let Models { totals, sites, peak } = models;
        replay_from(process, start.as_ref(), span, progress, &mut (totals, sites, peak))
    };
    by_replay(process, inherited, start.as_ref(), range.is_all(), &mut replay_all)
}

/// The models that compute the sums in one pass.
pub(crate) struct Models {
    pub(crate) totals: Totals,
    pub(crate) sites: CallSites,
    pub(crate) peak: Peak,
}

/// Returns the sums of the events that `replay` passes to the models.
pub(crate) fn sums_of_replay(process: &Process, replay: &mut dyn FnMut(&mut Models) -> replay::Outcome) -> Sums {
    by_replay(process, None, None, false, replay)
}

/// Returns the sums that `replay` computes, beginning from the summary of `start`. The accounting
/// covers recorded events only if `is_whole`.
fn by_replay(
    process: &Process,
    inherited: Option<&Inherited>,
    start: Option<&StartPoint>,
    is_whole: bool,
    replay: &mut dyn FnMut(&mut Models) -> replay::Outcome,
) -> Sums {
    let mut models = Models { totals: Totals::default(), sites: CallSites::default(), peak: Peak::within(Span::ALL) };
    if let Some(summary) = start.and_then(|start| start.summary.as_ref()) {
        models.totals.begin(&summary.totals);
        models.sites.begin(&summary.sites);
        models.peak.begin(summary);
    }
    let outcome = replay(&mut models);
    let mut missing = process.missing.clone();
    missing.extend(outcome.missing);
    let mut rows = models.sites.sums();
    for row in &mut rows {
        let held = models.peak.at_peak(row.site);
        (row.peak_blocks, row.peak_bytes) = (held.blocks, held.bytes);
    }
    let totals = models.totals.finish(inherited);
    let accounting = Accounting::of(process, &totals, &missing, is_whole.then_some(&outcome.recorded));
    Sums { totals, sites: rows, has_peak: true, missing, accounting }
}

//! The first phase of the leak report: the numbers of each call site with blocks that were never
//! freed. Nothing is named here.

use super::axis::{axis, reaches_end};
use super::evidence::{self, Evidence};
use crate::event::Span;
use crate::load::Process;
use crate::missing::Missing;
use crate::model::leaks::{History, Leaks, Survivors};
use crate::model::live_set::LiveSet;
use crate::model::run::Run;
use crate::model::snapshots;
use crate::model::verdict::{Verdict, judge, judge_snapshots};
use crate::report::PointInTime;
use crate::sums::Sums;
use crate::symbols::Symbolizer;
use heaptape_formats::tape::{SiteErrors, SiteHistory};
use rustc_hash::FxHashMap;

/// The blocks of a call site that were never freed.
#[derive(Debug)]
pub(crate) struct Candidate {
    /// The call site that allocated the blocks.
    pub site: u32,
    /// Whether the blocks were inherited from the parent process.
    pub inherited: bool,
    /// Number of blocks that were never freed.
    pub blocks: u64,
    /// Number of bytes in these blocks.
    pub bytes: u64,
    /// What a verdict is based on; `None` where only sums are known.
    pub basis: Option<Basis>,
}

/// What the verdict on a call site, or on a group of them, is based on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Basis {
    /// The site over the run.
    pub history: History,
    /// The blocks that were never freed.
    pub survivors: Survivors,
    /// The same of the time since events were lost, where that is long enough.
    pub since_loss: Option<Box<Basis>>,
}

impl Basis {
    /// Adds the basis of another call site.
    pub(crate) fn merge(&mut self, other: &Basis) {
        self.survivors.merge(&other.survivors);
        self.history.merge(&other.history);
        match (&mut self.since_loss, &other.since_loss) {
            (Some(own), Some(other)) => own.merge(other),
            (own, _) => *own = None,
        }
    }
}

/// The call sites of a process with blocks that were never freed.
#[derive(Debug)]
pub(crate) struct Candidates<'a> {
    /// The process that allocated the blocks.
    pub process: &'a Process,
    /// The run as a whole; `None` where only sums are known.
    pub run: Option<Run>,
    /// The run since events were lost, if there are snapshots.
    pub run_since_loss: Option<Run>,
    /// The model of the events; `None` where there were none.
    pub model: Option<Leaks>,
    /// The call sites, in ascending order.
    pub sites: Vec<Candidate>,
    /// Whether the range ends before the recording: then nobody asked what was freed later.
    pub is_cut: bool,
}

impl<'a> Candidates<'a> {
    /// Returns the candidates after a replay of the events of a span to `model`. Only blocks that
    /// were allocated in `allocated` count. `live` are the live blocks at the end, and `missing` is
    /// what is missing of the recording.
    pub(crate) fn from_events(
        process: &'a Process,
        span: Span,
        allocated: Span,
        mut model: Leaks,
        live: &LiveSet,
        missing: &[Missing],
    ) -> Candidates<'a> {
        let mut survivors: Vec<((u32, bool), Survivors)> = model.survivors(live, allocated).into_iter().collect();
        survivors.sort_by_key(|(key, _)| *key);
        let candidate = |((site, inherited), survivors): ((u32, bool), Survivors)| {
            let (blocks, bytes) = (survivors.blocks, survivors.bytes);
            let basis = Some(Basis { history: model.history(site), survivors, since_loss: None });
            Candidate { site, inherited, blocks, bytes, basis }
        };
        let sites = survivors.into_iter().map(candidate).collect();
        let run = Some(evidence::run_of(process, axis(process, span), span, &model, missing));
        let is_cut = !reaches_end(process, span);
        Candidates { process, run, run_since_loss: None, model: Some(model), sites, is_cut }
    }

    /// Returns the candidates according to sums: what was allocated and not freed. There is a basis
    /// for verdicts where snapshots of the sums were recorded through the run.
    pub(crate) fn from_sums(process: &'a Process, sums: &Sums) -> Candidates<'a> {
        let recorded = &process.tape.history;
        let mut lost = sums.accounting.all().lost;
        if process.live_since_unix_ns().is_some() {
            // A full cache that replaces blocks of before would look as if it grew.
            lost = lost.saturating_add(sums.totals.unknown_frees);
        }
        let (end, rate) = (process.tape.last_tick, process.clock.ticks_per_second);
        let run = snapshots::run_of(recorded, &sums.totals, end, rate, lost);
        let loss = last_loss(process, lost).filter(|_| lost > 0);
        let run_since_loss =
            run.as_ref().zip(loss).and_then(|(run, loss)| snapshots::since_loss(run, recorded, loss, rate));
        let by_site: FxHashMap<u32, &SiteHistory> = recorded.sites.iter().map(|site| (site.site, site)).collect();
        let errors = &process.tape.history_errors;
        let errors: FxHashMap<u32, &SiteErrors> = errors.iter().map(|errors| (errors.site, errors)).collect();
        // Without its standard error, a sampled site would seem to rise and fall by chance.
        let is_known = |site: u32| process.tape.process.sample_bytes == 0 || errors.contains_key(&site);
        let mut sites = Vec::new();
        for row in &sums.sites {
            let (blocks, bytes) = (row.allocs.saturating_sub(row.frees), row.bytes.saturating_sub(row.freed_bytes));
            if blocks > 0 || bytes > 0 {
                let known = by_site.get(&row.site).filter(|_| is_known(row.site));
                let basis = run.as_ref().zip(known).map(|(run, site)| {
                    let errors = errors.get(&row.site).copied();
                    let basis = |run: &Run, since_loss| {
                        let (history, survivors) = snapshots::evidence_of(run, recorded, site, row, errors);
                        Basis { history, survivors, since_loss }
                    };
                    let since_loss = run_since_loss.as_ref().map(|run| Box::new(basis(run, None)));
                    basis(run, since_loss)
                });
                sites.push(Candidate { site: row.site, inherited: false, blocks, bytes, basis });
            }
        }
        Candidates { process, run, run_since_loss, model: None, sites, is_cut: false }
    }

    /// Returns the verdict on a basis, without regard to other call sites.
    pub(crate) fn verdict(&self, basis: Option<&Basis>) -> Verdict {
        match (&self.run, basis) {
            (Some(run), Some(Basis { history, survivors, .. })) if self.model.is_some() => {
                judge(run, history, survivors)
            }
            (Some(run), Some(basis)) => match self.since_loss(basis) {
                Some((_, _, verdict)) => verdict,
                None => judge_snapshots(run, &basis.history, &basis.survivors),
            },
            _ => Verdict::Uncertain,
        }
    }

    /// Returns what a verdict of growth since the last loss is based on, with that verdict. There is
    /// none where the whole run has a verdict.
    fn since_loss<'b>(&'b self, basis: &'b Basis) -> Option<(&'b Run, &'b Basis, Verdict)> {
        let (run, run_since_loss, since_loss) =
            (self.run.as_ref()?, self.run_since_loss.as_ref()?, basis.since_loss.as_deref()?);
        if judge_snapshots(run, &basis.history, &basis.survivors) != Verdict::Uncertain {
            return None;
        }
        let verdict = judge_snapshots(run_since_loss, &since_loss.history, &since_loss.survivors);
        matches!(verdict, Verdict::Growing | Verdict::Slow).then_some((run_since_loss, since_loss, verdict))
    }

    /// Returns the evidence of a verdict. `site` represents the group of the basis.
    pub(crate) fn evidence(&self, site: u32, basis: &Basis, symbols: &mut Symbolizer) -> Option<Evidence> {
        let (run, Basis { history, survivors, .. }) = (self.run.as_ref()?, basis);
        if let Some(model) = &self.model {
            let freed_at = evidence::freed_at(self.process, model, site, symbols);
            return Some(evidence::evidence(self.process, run, history, survivors, freed_at));
        }
        let Some((since, Basis { history, survivors, .. }, _)) = self.since_loss(basis) else {
            return Some(evidence::evidence_from_snapshots(self.process, run, history, survivors));
        };
        let missing_events = (run.hidden < u64::MAX).then_some(run.hidden);
        let judged_since = Some(PointInTime::at(self.process, since.axis.start, None));
        let evidence = evidence::evidence_from_snapshots(self.process, since, history, survivors);
        Some(Evidence { missing_events, judged_since, ..evidence })
    }
}

/// Returns the tick of the last loss of a process with `lost` events lost; `None` if it is not known
/// of all of them.
fn last_loss(process: &Process, lost: u64) -> Option<u64> {
    let losses = &process.tape.losses;
    let known = losses.iter().fold(0u64, |sum, loss| sum.saturating_add(loss.events));
    losses.iter().map(|loss| loss.to_tick).max().filter(|_| known >= lost)
}

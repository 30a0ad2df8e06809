//! The first phase of the leak report: the numbers of each call site with blocks that were never
//! freed. Nothing is named here.

use super::evidence::{self, Evidence};
use crate::event::Span;
use crate::load::Process;
use crate::missing::Missing;
use crate::model::leaks::{Axis, History, Leaks, Survivors};
use crate::model::live_set::LiveSet;
use crate::model::snapshots;
use crate::model::verdict::{Run, Verdict, judge, judge_snapshots};
use crate::sort::SortRows;
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
}

/// The call sites of a process with blocks that were never freed.
#[derive(Debug)]
pub(crate) struct Candidates<'a> {
    /// The process that allocated the blocks.
    pub process: &'a Process,
    /// The run as a whole; `None` where only sums are known.
    pub run: Option<Run>,
    /// The model of the events; `None` where there were none.
    pub model: Option<Leaks>,
    /// The call sites, in ascending order.
    pub sites: Vec<Candidate>,
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
        survivors.sort_rows_by_key(|(key, _)| *key);
        let candidate = |((site, inherited), survivors): ((u32, bool), Survivors)| {
            let (blocks, bytes) = (survivors.blocks, survivors.bytes);
            let basis = Some(Basis { history: model.history(site), survivors });
            Candidate { site, inherited, blocks, bytes, basis }
        };
        let sites = survivors.into_iter().map(candidate).collect();
        let run = Some(evidence::run_of(process, axis(process, span), span, &model, missing));
        Candidates { process, run, model: Some(model), sites }
    }

    /// Returns the candidates according to sums: what was allocated and not freed. There is a basis
    /// for verdicts where snapshots of the sums were recorded through the run.
    pub(crate) fn from_sums(process: &'a Process, sums: &Sums) -> Candidates<'a> {
        let recorded = &process.tape.history;
        let lost = sums.accounting.all().lost;
        let (end, rate) = (process.tape.last_tick, process.clock.ticks_per_second);
        let run = snapshots::run_of(recorded, &sums.totals, end, rate, lost);
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
                    let (history, survivors) = snapshots::evidence_of(run, recorded, site, row, errors);
                    Basis { history, survivors }
                });
                sites.push(Candidate { site: row.site, inherited: false, blocks, bytes, basis });
            }
        }
        Candidates { process, run, model: None, sites }
    }

    /// Returns the verdict on a basis, without regard to other call sites.
    pub(crate) fn verdict(&self, basis: Option<&Basis>) -> Verdict {
        match (&self.run, basis) {
            (Some(run), Some(Basis { history, survivors })) if self.model.is_some() => judge(run, history, survivors),
            (Some(run), Some(Basis { history, survivors })) => judge_snapshots(run, history, survivors),
            _ => Verdict::Uncertain,
        }
    }

    /// Returns the evidence of a verdict. `site` represents the group of the basis.
    pub(crate) fn evidence(&self, site: u32, basis: &Basis, symbols: &mut Symbolizer) -> Option<Evidence> {
        let (run, Basis { history, survivors }) = (self.run.as_ref()?, basis);
        Some(match &self.model {
            Some(model) => {
                let freed_at = evidence::freed_at(self.process, model, site, symbols);
                evidence::evidence(self.process, run, history, survivors, freed_at)
            }
            None => evidence::evidence_from_snapshots(self.process, run, history, survivors),
        })
    }
}

/// Returns the axis by which the run of a process is measured, up to the end of a span. The model
/// of [`Candidates::from_events`] must use it.
pub(crate) fn axis(process: &Process, span: Span) -> Axis {
    evidence::axis(process, span)
}

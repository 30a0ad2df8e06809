//! The first step of the leak report: the numbers of a process, from its events or from its sums.
//! Nothing is named here.

use super::axis::axis;
use super::candidates::Candidates;
use super::crossings::{self, CrossedBlocks};
use crate::event::Span;
use crate::load::Process;
use crate::missing::Missing;
use crate::model::leaks::Leaks;
use crate::progress::Progress;
use crate::report::{Error, Scope, needs_frees};
use crate::sums::sums;
use crate::symbols::Symbolizer;

/// The numbers of a process: all that the next step needs.
pub(crate) struct Collected<'a> {
    /// The call sites with blocks that were never freed, and the model of all others.
    pub candidates: Candidates<'a>,
    /// Blocks that another allocator freed than allocated them.
    pub crossed: Vec<CrossedBlocks<'a>>,
    /// What is missing of the recording of the process.
    pub missing: Vec<Missing>,
}

/// Collects the numbers of a process. The names of `symbols` are those that the query filters by.
///
/// # Errors
/// Returns [`Unanswerable`](super::super::Unanswerable) when there are only sums, and they do not
/// count frees.
pub(super) fn collect<'a>(
    process: &'a Process,
    scope: &Scope,
    symbols: &mut Symbolizer,
    progress: &Progress,
) -> Result<Collected<'a>, Error> {
    if process.has_events() {
        return Ok(from_events(process, scope, symbols, progress));
    }
    let mut sums = sums(process, progress);
    if !scope.filter.is_all() {
        let chosen = scope.filter.matching_sites(process.stacks(), symbols);
        sums.sites.retain(|row| chosen.get(row.site as usize).copied().unwrap_or(false));
    }
    needs_frees(&sums, process)?;
    let candidates = Candidates::from_sums(process, &sums);
    Ok(Collected { candidates, crossed: Vec::new(), missing: sums.missing })
}

/// Collects the numbers of a process by a replay of its events.
fn from_events<'a>(
    process: &'a Process,
    scope: &Scope,
    symbols: &mut Symbolizer,
    progress: &Progress,
) -> Collected<'a> {
    let span = process.span(&scope.range);
    let mut model = Leaks::new(axis(process, span), process.tape.process.free_sites);
    let mut crossed = Vec::new();
    let outcome = match crossings::model(process, span) {
        None => scope.replay(process, span.with_history(), symbols, progress, &mut model),
        Some(mut crossings) => {
            let models = &mut (&mut model, &mut crossings);
            let outcome = scope.replay(process, span.with_history(), symbols, progress, models);
            crossed = CrossedBlocks::all(process, crossings);
            outcome
        }
    };
    let mut missing = process.missing.clone();
    missing.extend(outcome.missing);
    let allocated = Span { end: u64::MAX, end_tick: u64::MAX, ..span };
    let candidates = Candidates::from_events(process, span, allocated, model, &outcome.live, &missing);
    Collected { candidates, crossed, missing }
}

//! What grew through the run and was freed only at its exit, by function.

use super::candidates::{Basis, Candidates};
use super::findings::Leak;
use crate::model::climb::{is_freed_at_exit, is_kept_to_exit};
use crate::model::leaks::History;
use crate::model::verdict::Verdict;
use crate::report::frames::{SourceLines, call_site};
use crate::report::grouping::{GroupBy, group_key};
use crate::symbols::Symbolizer;
use rustc_hash::FxHashMap;

/// What was freed at the exit of a process.
#[derive(Default)]
pub(crate) struct FreedAtExit<'a> {
    pub leaks: Vec<Leak<'a>>,
    /// Number of bytes to which all grew together.
    pub grown: u64,
}

/// Sites that were emptied at the end of the run, and whose stacks are merged.
#[derive(Default)]
struct ExitGroup {
    /// The site with the most bytes.
    site: u32,
    /// Number of bytes of `site`.
    greatest: u64,
    sites: u64,
    history: History,
    lines: SourceLines,
}

/// Finds the functions whose sites were emptied only at the end of the run. While events are
/// missing, it finds none: a site that seems empty may not be.
pub(crate) fn find<'a>(candidates: &Candidates<'a>, by: GroupBy, symbols: &mut Symbolizer) -> FreedAtExit<'a> {
    let mut found = FreedAtExit::default();
    let (Some(run), Some(model)) = (&candidates.run, &candidates.model) else { return found };
    let process = candidates.process;
    let mut groups: FxHashMap<Vec<String>, ExitGroup> = FxHashMap::default();
    for (site, history) in model.histories().filter(|(_, history)| run.hidden == 0 && is_kept_to_exit(history)) {
        let names = group_key(symbols, process.stacks(), site, by);
        let group = groups.entry(names).or_default();
        if history.peak_bytes > group.greatest {
            (group.site, group.greatest) = (site, history.peak_bytes);
        }
        group.sites += 1;
        group.lines.add(&call_site(symbols, process.stacks(), site, 1).frame);
        group.history.merge(&history);
    }
    let (mut all, mut largest) = (History::default(), 0);
    // The sum at one point in time: several sites may have had their peaks at different times.
    let together = |history: &History| history.series.iter().copied().max().unwrap_or(0);
    for ExitGroup { site, greatest, sites, history, lines } in groups.into_values() {
        if !is_freed_at_exit(run, &history) {
            continue;
        }
        all.merge(&history);
        // A peak may be between two points of the series.
        let grown = together(&history).max(greatest);
        largest = largest.max(grown);
        let history = History { peak_bytes: grown, ..history };
        let evidence = candidates.evidence(site, &Basis { history, ..Basis::default() }, symbols);
        found.leaks.push(Leak {
            process,
            verdict: Verdict::FreedAtExit,
            site,
            sites,
            blocks: 0,
            bytes: 0,
            grown,
            evidence,
            kept: None,
            is_probable: false,
            lines,
        });
    }
    found.grown = together(&all).max(largest);
    found
}

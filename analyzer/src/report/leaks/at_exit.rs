//! What grew through the run and was freed only at its exit, by function.

use super::candidates::{Basis, Candidates};
use super::leak::Leak;
use crate::model::climb::{change, is_freed_at_exit, is_kept_to_exit};
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

/// Sites of one function that were emptied in the run or at its end.
#[derive(Default)]
struct ExitGroup {
    /// The site that held most at the exit.
    site: u32,
    /// Number of bytes that `site` held.
    greatest: u64,
    /// The sites that held blocks until the exit.
    sites: Vec<u32>,
    history: History,
    lines: SourceLines,
}

/// Finds the functions whose sites were emptied only at the end of the run. While events are
/// missing, it finds none: a site that seems empty may not be.
pub(crate) fn find<'a>(candidates: &Candidates<'a>, by: GroupBy, symbols: &mut Symbolizer) -> FreedAtExit<'a> {
    let mut found = FreedAtExit::default();
    let (Some(run), Some(model)) = (&candidates.run, &candidates.model) else { return found };
    if run.hidden > 0 {
        return found;
    }
    let process = candidates.process;
    let mut groups: FxHashMap<Vec<String>, ExitGroup> = FxHashMap::default();
    for (site, history) in model.histories().filter(|(_, history)| is_kept_to_exit(history)) {
        let group = groups.entry(group_key(symbols, process.stacks(), site, by)).or_default();
        if history.at_exit.bytes > group.greatest {
            (group.site, group.greatest) = (site, history.at_exit.bytes);
        }
        group.sites.push(site);
        group.lines.add(&call_site(symbols, process.stacks(), site, 1).frame);
        group.history.merge(&history);
    }
    // Blocks that take the place of those of another stack are no growth.
    let is_replaced =
        |history: &History| history.live_blocks == 0 && !is_kept_to_exit(history) && change(history).1 > 0;
    if groups.is_empty() {
        return found;
    }
    for (site, history) in model.histories().filter(|(_, history)| is_replaced(history)) {
        if let Some(group) = groups.get_mut(&group_key(symbols, process.stacks(), site, by)) {
            group.history.merge(&history);
        }
    }
    for ExitGroup { site, sites, history, lines, .. } in groups.into_values() {
        if !is_freed_at_exit(run, &history) {
            continue;
        }
        let grown = history.at_exit.bytes;
        found.grown = found.grown.saturating_add(grown);
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
            held: None,
            lines,
        });
    }
    found
}

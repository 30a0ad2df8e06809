//! What the second step of the leak report found: leaks with names and verdicts. The last step
//! prints them, as text, JSON, conditions or a page.

use super::at_exit::{self, FreedAtExit};
use super::candidates::Candidates;
use super::collect::Collected;
use super::held;
use super::judged::{judge_leaks, sum_by_function};
use super::leak::Leak;
use super::{CrossedBlocks, Options, Rules};
use crate::load::Process;
use crate::missing::Missing;
use crate::report::grouping::GroupBy;
use crate::symbols::Symbolizer;
use serde::Serialize;

/// Sums of all leaks.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Total {
    /// Number of bytes never freed.
    pub bytes: u64,
    /// Number of blocks never freed.
    pub blocks: u64,
    /// Number of call stacks that allocated them.
    pub stacks: u64,
    /// Number of bytes at the exit of what grew through the run and was freed only then, summed
    /// over processes.
    pub grown_bytes: u64,
}

/// The leaks of the selected processes.
pub struct LeakReport<'a> {
    /// Leaks that are not suppressed, worst first.
    pub leaks: Vec<Leak<'a>>,
    /// Call sites that grew and were freed only at the end of the run, worst first.
    pub freed_at_exit: Vec<Leak<'a>>,
    /// Blocks that another allocator freed than allocated them, most bytes first.
    pub crossed: Vec<CrossedBlocks<'a>>,
    /// Sums of `leaks` without what the runtime keeps on purpose, and of `freed_at_exit`.
    pub total: Total,
    /// Peak live bytes, summed over processes.
    pub peak_bytes: u64,
    /// The processes, each with what is missing of its recording.
    pub missing: Vec<(&'a Process, Vec<Missing>)>,
    /// The suppressions, with what each of them suppressed.
    pub rules: Rules,
    /// Whether the range ends before a process does. What is live then may have been freed later.
    pub is_cut: bool,
    /// That it was read before the end who holds what, or why it is not known.
    pub note_of_holders: Option<String>,
}

impl<'a> LeakReport<'a> {
    /// Returns a report on no process yet.
    pub(super) const fn new(rules: Rules) -> LeakReport<'a> {
        LeakReport {
            leaks: Vec::new(),
            freed_at_exit: Vec::new(),
            crossed: Vec::new(),
            total: Total { bytes: 0, blocks: 0, stacks: 0, grown_bytes: 0 },
            peak_bytes: 0,
            missing: Vec::new(),
            rules,
            is_cut: false,
            note_of_holders: None,
        }
    }

    /// Adds the numbers of a process: names and judges them. `by` is how the query groups stacks.
    pub(super) fn add(
        &mut self,
        collected: Collected<'a>,
        by: Option<GroupBy>,
        options: &Options,
        symbols: &mut Symbolizer,
    ) {
        let Collected { candidates, crossed, missing } = collected;
        self.judge(&candidates, by, options, symbols);
        self.crossed.extend(crossed);
        self.missing.push((candidates.process, missing));
    }

    /// Adds the leaks of a process.
    pub(super) fn judge(
        &mut self,
        candidates: &Candidates<'a>,
        by: Option<GroupBy>,
        options: &Options,
        symbols: &mut Symbolizer,
    ) {
        let chosen = by.unwrap_or(match options.depth {
            0 => GroupBy::Stack,
            depth => GroupBy::Frames(depth),
        });
        let mut leaks = judge_leaks(candidates, Some(chosen), &mut self.rules, symbols);
        if options.by_function {
            leaks = sum_by_function(leaks, candidates, symbols);
        }
        self.is_cut |= candidates.is_cut;
        self.leaks.extend(leaks.into_iter().map(|leak| Leak::of(leak, candidates, symbols)));
        if let Some(run) = candidates.run.as_ref().filter(|_| candidates.model.is_some()) {
            self.peak_bytes = self.peak_bytes.saturating_add(run.peak_bytes);
        }
        // A live block has a call stack to show. Nothing of these is live, so that the function
        // suffices.
        let chosen = if chosen == GroupBy::Stack && by.is_none() { GroupBy::Function } else { chosen };
        let FreedAtExit { leaks, grown } = at_exit::find(candidates, chosen, symbols);
        self.freed_at_exit.extend(leaks);
        self.total.grown_bytes = self.total.grown_bytes.saturating_add(grown);
    }

    /// Adds who holds the blocks of each leak.
    pub(super) fn add_holders(&mut self, symbols: &mut Symbolizer) {
        for (process, _) in &self.missing {
            let is_own = |leak: &&mut Leak| std::ptr::eq(leak.process, *process);
            let own: Vec<&mut Leak> =
                self.leaks.iter_mut().chain(&mut self.freed_at_exit).filter(|leak| is_own(leak)).collect();
            self.note_of_holders = held::add(process, own, symbols).or(self.note_of_holders.take());
        }
    }

    /// Sorts everything worst first, and sums up the leaks.
    pub(super) fn sort(&mut self) {
        self.leaks.sort_by_key(Leak::order);
        self.freed_at_exit.sort_by_key(Leak::order);
        self.crossed.sort_by_key(CrossedBlocks::order);
        for leak in self.leaks.iter().filter(|leak| leak.kept.is_none()) {
            self.total.bytes = self.total.bytes.saturating_add(leak.bytes);
            self.total.blocks += leak.blocks;
            self.total.stacks += leak.stacks();
        }
    }

    /// Leaves out all blocks, for a report on mappings.
    pub(super) fn without_blocks(&mut self) {
        (self.leaks, self.freed_at_exit, self.crossed) = Default::default();
        self.total = Total::default();
    }

    pub(super) fn processes(&self) -> Vec<&'a Process> {
        self.missing.iter().map(|(process, _)| *process).collect()
    }
}

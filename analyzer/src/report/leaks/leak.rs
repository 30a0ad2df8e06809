//! A leak: a call site, or a group of them, with its verdict and the evidence.

use super::Evidence;
use super::candidates::Candidates;
use super::held::{Fate, Held};
use super::judged::JudgedLeak;
use crate::load::Process;
use crate::model::verdict::Verdict;
use crate::report::frames::SourceLines;
use crate::symbols::Symbolizer;
use heaptape_formats::recording::Exit;
use std::cmp::Reverse;

/// The blocks of one stack, or of a group of stacks, that were never freed.
pub struct Leak<'a> {
    /// The process that allocated the blocks.
    pub process: &'a Process,
    /// What the leak is judged to be.
    pub verdict: Verdict,
    /// The site that represents the group: the one with the most bytes.
    pub site: u32,
    /// The sites in the group.
    pub sites: Vec<u32>,
    /// Number of blocks that were never freed.
    pub blocks: u64,
    /// Number of bytes in these blocks.
    pub bytes: u64,
    /// Number of bytes at the exit of what grew through the run and was freed only then; 0 for
    /// other leaks.
    pub grown: u64,
    /// The evidence of the verdict, where events or snapshots of the sums are known.
    pub evidence: Option<Evidence>,
    /// Name of what the C or C++ runtime keeps here on purpose, if this is such a block.
    pub kept: Option<&'static str>,
    /// Whether it probably grows: only the run is too short to call it growth.
    pub is_probable: bool,
    /// Who holds its blocks at the end, if that was recorded.
    pub held: Option<Held>,
    /// The lines of the blamed function, where stacks with several are summed up.
    pub(super) lines: SourceLines,
}

pub(crate) const PROBABLY_GROWING: &str = "probably growing (the run was short)";
/// Weight of a byte of what probably grows.
pub(crate) const PROBABLE_WEIGHT: u64 = Verdict::Growing.weight();

impl<'a> Leak<'a> {
    /// Returns a judged leak with its evidence.
    pub(super) fn of(leak: JudgedLeak, candidates: &Candidates<'a>, symbols: &mut Symbolizer) -> Leak<'a> {
        let JudgedLeak { site, sites, blocks, bytes, verdict, trend, is_probable, lines, basis, kept, .. } = leak;
        let evidence = basis.and_then(|basis| candidates.evidence(site, &basis, symbols));
        let evidence = evidence.map(|evidence| Evidence { trend, ..evidence });
        let process = candidates.process;
        let held = None;
        Leak { process, verdict, site, sites, blocks, bytes, grown: 0, evidence, kept, is_probable, held, lines }
    }

    /// Returns the number of call stacks.
    pub const fn stacks(&self) -> u64 {
        self.sites.len() as u64
    }

    /// Returns whether exec released the blocks. They were in use when the process replaced its
    /// program by another one. What grew until then is a leak all the same.
    pub(crate) fn is_released_by_exec(&self) -> bool {
        let grew = matches!(self.verdict, Verdict::Growing | Verdict::Slow);
        self.process.about.exit == Some(Exit::Exec) && self.blocks > 0 && !grew
    }

    /// Returns the key that sorts leaks, worst first.
    pub(super) fn order(&self) -> (Reverse<u64>, Reverse<u64>, u32) {
        let weight = self.bytes.max(self.grown).saturating_mul(self.weight());
        (Reverse(self.lost_in_core()), Reverse(weight), self.site)
    }

    /// Returns the bytes that nothing holds, as far as that is known.
    pub(super) fn unheld_bytes(&self) -> u64 {
        self.held.as_ref().map_or(0, Held::unheld_bytes)
    }

    /// Returns the bytes that nothing holds in the core that the question is about: they come first,
    /// whatever the verdict over time is.
    pub(super) fn lost_in_core(&self) -> u64 {
        if self.process.core.is_some() { self.unheld_bytes() } else { 0 }
    }

    /// Returns what becomes of its blocks in a core, if that is all that is known.
    pub(super) fn fate(&self) -> Option<Fate> {
        self.process.is_core_alone().then(|| self.held.as_ref().map_or(Fate::Unknown, Held::fate))
    }

    /// Returns the weight of a byte for the order of leaks.
    pub(super) const fn weight(&self) -> u64 {
        if self.is_probable { PROBABLE_WEIGHT } else { self.verdict.weight() }
    }

    /// Returns the name of the verdict in text.
    pub(super) const fn verdict_name(&self) -> &'static str {
        if self.is_probable { PROBABLY_GROWING } else { self.verdict.name() }
    }
}

//! The second phase of the leak report: names. Suppressions, groups of stacks and growth of whole
//! functions decide the verdicts. The page of the HTML export is judged here, too.

use super::Rules;
use super::candidates::{Basis, Candidates};
use crate::model::climb::change;
use crate::model::leaks::History;
use crate::model::run::MIN_GROWTH_BLOCKS;
use crate::model::verdict::{FLOOR_BYTES, Growth, Verdict};
use crate::report::frames::{SourceLines, blamed_frames, call_site};
use crate::report::grouping::{GroupBy, group_key};
use crate::symbols::Symbolizer;
use rustc_hash::FxHashMap;

/// Call sites whose blocks were never freed, with a verdict.
#[derive(Debug)]
pub(crate) struct JudgedLeak {
    /// The site that represents the group: the one with the most bytes.
    pub site: u32,
    /// The sites in the group.
    pub sites: Vec<u32>,
    /// Number of blocks that were never freed.
    pub blocks: u64,
    /// Number of bytes in these blocks.
    pub bytes: u64,
    pub verdict: Verdict,
    /// The verdict that a longer run, or more bytes, would lead to, if it is another one.
    pub trend: Option<Verdict>,
    /// Whether it probably grows: only the run is too short to call it growth.
    pub is_probable: bool,
    /// The lines of the blamed function, where stacks with several are summed up.
    pub lines: SourceLines,
    /// What the verdict is based on; `None` where only sums are known.
    pub basis: Option<Basis>,
    /// Name of what the C or C++ runtime keeps here on purpose, if this is such a block.
    pub kept: Option<&'static str>,
    /// Number of bytes of `site`.
    greatest: u64,
}

/// Blocks take the place of others if there are as many bytes of these, but for this fraction: 1/8.
const REPLACED: u64 = 8;
/// Leaks of a few blocks are judged together if none has more than this fraction of their bytes:
/// 1/4.
const SCATTERED: u64 = 4;
/// Leaks have as many blocks as each other if their numbers differ by less than this fraction:
/// 1/10.
const SAME_NUMBER: u64 = 10;

/// The key of a group of call sites.
#[derive(PartialEq, Eq, Hash)]
struct GroupKey {
    names: Vec<String>,
    inherited: bool,
    kept: Option<&'static str>,
}

/// Judges the candidates of a process. Candidates of events with equal names by `by` are merged;
/// with `None`, each site is judged by itself. What the rules suppress is left out.
pub(crate) fn judge_leaks(
    candidates: &Candidates,
    by: Option<GroupBy>,
    rules: &mut Rules,
    symbols: &mut Symbolizer,
) -> Vec<JudgedLeak> {
    let (process, has_events) = (candidates.process, candidates.model.is_some());
    let mut groups: Vec<JudgedLeak> = Vec::new();
    let mut known: FxHashMap<GroupKey, usize> = FxHashMap::default();
    let has_lines = has_events && by.is_some_and(|by| by != GroupBy::Stack);
    for candidate in &candidates.sites {
        let (site, blocks, bytes) = (candidate.site, candidate.blocks, candidate.bytes);
        if rules.suppress(process, symbols, site, blocks, bytes) {
            continue;
        }
        let kept = if has_events { rules.count_kept(process, symbols, site, blocks, bytes) } else { None };
        let key = by.filter(|_| has_events).map(|by| {
            let names = group_key(symbols, process.stacks(), site, by);
            GroupKey { names, inherited: candidate.inherited, kept }
        });
        let next = groups.len();
        let index = key.map_or(next, |key| *known.entry(key).or_insert(next));
        if index < next {
            groups[index].merge(site, &[site], blocks, bytes, candidate.basis.as_ref());
        } else {
            groups.push(JudgedLeak {
                site,
                sites: vec![site],
                blocks,
                bytes,
                verdict: Verdict::Uncertain,
                trend: None,
                is_probable: false,
                lines: SourceLines::default(),
                basis: candidate.basis.clone(),
                kept,
                greatest: bytes,
            });
        }
        if has_lines {
            groups[index].lines.add(&call_site(symbols, process.stacks(), site, 1).frame);
        }
    }
    for group in &mut groups {
        group.verdict = candidates.verdict(group.basis.as_ref());
    }
    settle_verdicts(candidates, &mut groups, symbols);
    groups
}

impl JudgedLeak {
    /// Adds sites to the group; `site` is the one of them with the most bytes.
    fn merge(&mut self, site: u32, sites: &[u32], blocks: u64, bytes: u64, basis: Option<&Basis>) {
        if bytes > self.greatest {
            (self.site, self.greatest) = (site, bytes);
        }
        self.sites.extend_from_slice(sites);
        if let (Some(own), Some(other)) = (&mut self.basis, basis) {
            own.merge(other);
            (self.blocks, self.bytes) = (own.survivors.blocks, own.survivors.bytes);
        } else {
            (self.blocks, self.bytes) = (self.blocks.saturating_add(blocks), self.bytes.saturating_add(bytes));
        }
    }
}

/// The key of leaks that are summed up.
#[derive(PartialEq, Eq, Hash)]
struct SumKey {
    function: Vec<String>,
    verdict: Verdict,
    is_probable: bool,
    kept: Option<&'static str>,
}

/// Sums up the leaks of one function that have the same verdict: they are one bug, from several
/// stacks.
pub(super) fn sum_by_function(
    leaks: Vec<JudgedLeak>,
    candidates: &Candidates,
    symbols: &mut Symbolizer,
) -> Vec<JudgedLeak> {
    let stacks = candidates.process.stacks();
    let mut sums: Vec<JudgedLeak> = Vec::new();
    let mut known: FxHashMap<SumKey, usize> = FxHashMap::default();
    for mut leak in leaks {
        let call_site = call_site(symbols, stacks, leak.site, 1);
        let next = sums.len();
        let (function, verdict, is_probable, kept) = (call_site.names, leak.verdict, leak.is_probable, leak.kept);
        let key = SumKey { function, verdict, is_probable, kept };
        let index = *known.entry(key).or_insert(next);
        if index == next {
            leak.lines.add(&call_site.frame);
            sums.push(leak);
            continue;
        }
        let sum = &mut sums[index];
        sum.lines.add(&call_site.frame);
        sum.merge(leak.site, &leak.sites, leak.blocks, leak.bytes, leak.basis.as_ref());
        sum.trend = sum.trend.filter(|trend| leak.trend == Some(*trend));
    }
    sums
}

/// Corrects the verdicts on growth of leaks with too little growth in their function to be sure,
/// and then those of their siblings.
fn settle_verdicts(candidates: &Candidates, leaks: &mut [JudgedLeak], symbols: &mut Symbolizer) {
    let Some(run) = &candidates.run else { return };
    judge_scattered(candidates, leaks, symbols);
    settle_replaced(candidates, leaks, symbols);
    let mut growth = Growth::default();
    let mut functions: Vec<Option<Vec<String>>> = Vec::new();
    for leak in leaks.iter() {
        let rises = matches!(leak.verdict, Verdict::Growing | Verdict::Slow);
        let stacks = candidates.process.stacks();
        let function = rises.then(|| group_key(symbols, stacks, leak.site, GroupBy::Function));
        if let Some(function) = &function {
            growth.add(function.clone(), leak.verdict, leak.bytes, last_seconds(candidates, leak));
        }
        functions.push(function);
    }
    for (leak, function) in leaks.iter_mut().zip(functions) {
        let Some(function) = function else { continue };
        let (settled, is_probable) = growth.settle(run, &function, leak.verdict);
        leak.trend = (settled != leak.verdict).then_some(leak.verdict);
        leak.verdict = settled;
        leak.is_probable = is_probable;
    }
    inherit_verdicts(candidates, leaks, symbols);
}

/// The leaks of one line that have too few blocks to be judged each.
#[derive(Default)]
struct Scattered {
    bytes: u64,
    blocks: u64,
    basis: Basis,
}

/// Judges leaks of one line together that have a few blocks each: what leaks in a recursion, or in
/// a helper of many callers, leaves a block of each stack, and none of them shows that it grows.
/// Where they are little together, they stay what they are: every program keeps such blocks, as
/// `bash` its hash table.
fn judge_scattered(candidates: &Candidates, leaks: &mut [JudgedLeak], symbols: &mut Symbolizer) {
    let Some(model) = &candidates.model else { return };
    let stacks = candidates.process.stacks();
    let is_few = |leak: &JudgedLeak| {
        let may_grow = matches!(leak.verdict, Verdict::OneTime | Verdict::Slow | Verdict::YoungAtEnd);
        may_grow && leak.kept.is_none() && leak.blocks < MIN_GROWTH_BLOCKS
    };
    let few = leaks.iter().enumerate().filter(|(_, leak)| is_few(leak));
    let mut few: Vec<(usize, Vec<String>)> =
        few.map(|(at, leak)| (at, group_key(symbols, stacks, leak.site, GroupBy::Line))).collect();
    let mut lines: FxHashMap<Vec<String>, Scattered> = FxHashMap::default();
    for (at, line) in &few {
        let sum = lines.entry(line.clone()).or_default();
        (sum.bytes, sum.blocks) = (sum.bytes.saturating_add(leaks[*at].bytes), sum.blocks + leaks[*at].blocks);
    }
    // A large table beside small leaks is no part of their growth.
    few.retain(|(at, line)| leaks[*at].bytes <= lines[line].bytes / SCATTERED);
    lines.retain(|_, sum| sum.blocks >= MIN_GROWTH_BLOCKS && sum.bytes >= FLOOR_BYTES);
    if lines.is_empty() {
        return;
    }
    for (at, line) in &few {
        if let (Some(sum), Some(basis)) = (lines.get_mut(line), &leaks[*at].basis) {
            sum.basis.merge(basis);
        }
    }
    // In a queue that many stacks fill, blocks take the place of others, of which nothing is left.
    let is_gone = |history: &History| history.live_blocks == 0 && change(history).1 > 0;
    for (site, history) in model.histories().filter(|(_, history)| is_gone(history)) {
        if let Some(sum) = lines.get_mut(&group_key(symbols, stacks, site, GroupBy::Line)) {
            sum.basis.history.merge(&history);
        }
    }
    let verdicts: FxHashMap<Vec<String>, Verdict> =
        lines.into_iter().map(|(line, sum)| (line, candidates.verdict(Some(&sum.basis)))).collect();
    for (at, line) in few {
        if let Some(&verdict @ (Verdict::Growing | Verdict::Slow)) = verdicts.get(&line) {
            leaks[at].verdict = verdict;
        }
    }
}

/// Corrects the verdict on growth where blocks of a line only take the place of others of that
/// line, as in a table that one caller fills and another one updates: one stack gets more, the
/// other one fewer, and the table stays as it is.
fn settle_replaced(candidates: &Candidates, leaks: &mut [JudgedLeak], symbols: &mut Symbolizer) {
    let Some(model) = &candidates.model else { return };
    if !leaks.iter().any(|leak| matches!(leak.verdict, Verdict::Growing | Verdict::Slow)) {
        return;
    }
    let stacks = candidates.process.stacks();
    let mut lines: FxHashMap<Vec<String>, (u64, u64)> = FxHashMap::default();
    for (site, history) in model.histories() {
        let (more, fewer) = change(&history);
        if more > 0 || fewer > 0 {
            let sum = lines.entry(group_key(symbols, stacks, site, GroupBy::Line)).or_default();
            *sum = (sum.0.saturating_add(more), sum.1.saturating_add(fewer));
        }
    }
    lines.retain(|_, (more, fewer)| *fewer > 0 && more.abs_diff(*fewer) <= *more / REPLACED);
    for leak in leaks.iter_mut().filter(|_| !lines.is_empty()) {
        let Some((more, fewer)) = leak.basis.as_ref().map(|basis| change(&basis.history)) else { continue };
        let grows = matches!(leak.verdict, Verdict::Growing | Verdict::Slow) && more > 0;
        let shrinks = leak.verdict == Verdict::OneTime && fewer > 0;
        if (grows || shrinks) && lines.contains_key(&group_key(symbols, stacks, leak.site, GroupBy::Line)) {
            leak.verdict = Verdict::BoundedCache;
        }
    }
}

/// Returns the seconds from the start to the last block of a leak that was kept, or 0 if they are
/// unknown.
fn last_seconds(candidates: &Candidates, leak: &JudgedLeak) -> f64 {
    let process = candidates.process;
    let last = leak.basis.as_ref().map(|basis| basis.survivors.last.tick).filter(|_| process.has_times());
    last.map_or(0.0, |last| process.clock.nanos(last) as f64 / 1e9)
}

/// A call that leaks have in common: of the blamed line, or of its caller. Without a line it is the
/// call instruction that counts.
#[derive(PartialEq, Eq, Hash)]
enum Call {
    Line(String, Option<String>, u64),
    Caller(String, Option<String>, u64),
}

/// Gives leaks the verdict on a sibling that surely, or probably, grows. Leaks of one line are one
/// bug, such as a document and its parts. So are as many blocks of one caller.
fn inherit_verdicts(candidates: &Candidates, leaks: &mut [JudgedLeak], symbols: &mut Symbolizer) {
    let grows = |leak: &JudgedLeak| leak.kept.is_none() && (leak.verdict == Verdict::Growing || leak.is_probable);
    if !leaks.iter().any(grows) {
        return;
    }
    let stacks = candidates.process.stacks();
    let mut calls = |site: u32| {
        let found = blamed_frames(symbols, stacks, site, 2, |_, frame| frame.role).frames;
        let parts = |at: usize| {
            let (_, frame) = found.get(at)?;
            Some((frame.title(), frame.file.clone(), frame.line.map_or(frame.offset, u64::from)))
        };
        let line = parts(0).map(|(function, file, line)| Call::Line(function, file, line));
        (line, parts(1).map(|(function, file, line)| Call::Caller(function, file, line)))
    };
    let mut growing: FxHashMap<Call, Vec<u64>> = FxHashMap::default();
    for leak in leaks.iter().filter(|leak| grows(leak)) {
        let (line, caller) = calls(leak.site);
        for call in line.into_iter().chain(caller) {
            growing.entry(call).or_default().push(leak.blocks);
        }
    }
    let is_certain = leaks.iter().any(|leak| leak.verdict == Verdict::Growing);
    for leak in leaks.iter_mut() {
        let may_grow = matches!(leak.verdict, Verdict::Slow | Verdict::TooLittle);
        let is_sibling = may_grow || leak.verdict == Verdict::OneTime;
        if !is_sibling || leak.is_probable || leak.kept.is_some() {
            continue;
        }
        let (line, caller) = calls(leak.site);
        let as_many = |blocks: &u64| leak.blocks > 1 && leak.blocks.abs_diff(*blocks) <= blocks / SAME_NUMBER;
        let known = |call: Option<Call>| call.and_then(|call| growing.get(&call));
        let of_line = known(line).is_some_and(|blocks| may_grow || blocks.iter().any(as_many));
        if of_line || known(caller).is_some_and(|blocks| blocks.iter().any(as_many)) {
            leak.verdict = if is_certain { Verdict::Growing } else { Verdict::TooLittle };
            leak.trend = (!is_certain).then_some(Verdict::Growing);
            leak.is_probable = !is_certain;
        }
    }
}

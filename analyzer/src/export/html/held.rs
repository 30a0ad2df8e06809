//! Who holds what is live at the end, for the page: each root with the blocks for which it is the
//! nearest, in the order in which they hold each other, and of each leak who holds it, and how.

use super::data::{HeldBy, HeldPart, HeldPath, Leak};
use crate::load::Process;
use crate::report::holders::{Amount, Holders, Path};
use crate::report::leaks::BySite;
use crate::report::lost::{self, Lost};
use crate::symbols::Symbolizer;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;

/// Maximum number of roots that a page lists of each process.
const ROOTS: usize = 60;
/// Maximum number of kinds of blocks that a page lists of each root, and of what holds others.
const PARTS: usize = 12;
/// Kinds of blocks that the table names.
const KINDS: usize = 3;
/// Ways in which the blocks of a leak are held that its card shows.
const PATHS: usize = 2;
/// Levels of the map below its roots.
const LEVELS: usize = 8;
/// Part of all bytes below which the map does not divide an area: one in this number.
const SMALL: u64 = 500;

/// What is live at the end of a process, and who holds it.
pub(super) struct HeldBlocks<'a> {
    holders: Holders<'a>,
    lost: Lost,
    by_site: BySite,
}

/// Returns what holds the blocks of a process; `None` if that was not recorded.
pub(super) fn held<'a>(process: &'a Process, symbols: &mut Symbolizer) -> Option<HeldBlocks<'a>> {
    let mut holders = Holders::of(process, symbols).ok()?.filter(|holders| holders.snapshot.shows_end_of(process))?;
    let lost = lost::find(&mut holders);
    let by_site = BySite::of(&holders, &lost);
    Some(HeldBlocks { holders, lost, by_site })
}

impl HeldBlocks<'_> {
    /// Returns all roots, most bytes first.
    pub(super) fn roots(&self) -> Vec<HeldBy> {
        roots(&self.holders, &self.lost)
    }

    /// Adds to leaks of some sites who holds their blocks, and how.
    pub(super) fn add_to(&self, leaks: &mut [(&mut Leak, &[u32])]) {
        let mut leak_of: FxHashMap<u32, usize> = FxHashMap::default();
        for (number, (leak, sites)) in leaks.iter_mut().enumerate() {
            leak.held = self.by_site.held(sites);
            leak_of.extend(sites.iter().map(|site| (*site, number)));
        }
        let blocks = &self.holders.snapshot.graph.blocks;
        let placed = (0..blocks.len() as u32).filter_map(|block| Some((*leak_of.get(&blocks.site(block))?, block)));
        let all = self.holders.paths(leaks.len(), placed);
        for ((leak, _), paths) in leaks.iter_mut().zip(all) {
            let path =
                |path: Path| HeldPath { blocks: path.amount.blocks, bytes: path.amount.bytes, steps: path.steps };
            leak.paths = paths.into_iter().take(PATHS).map(path).collect();
        }
    }
}

fn roots(holders: &Holders<'_>, lost: &Lost) -> Vec<HeldBy> {
    let mut kinds: Vec<FxHashMap<&str, Amount>> = vec![FxHashMap::default(); holders.groups.len()];
    for (number, block) in (0..).zip(holders.snapshot.graph.blocks.iter()) {
        if let Some(group) = holders.group_number(number) {
            kinds[group as usize].entry(&holders.label(number).text).or_default().add(&block);
        }
    }
    let mut roots: Vec<HeldBy> = holders
        .groups
        .iter()
        .zip(kinds)
        .zip(ways(holders))
        .map(|((group, kinds), parts)| HeldBy {
            name: group.name.clone(),
            kind: group.kind,
            blocks: group.held.blocks,
            bytes: group.held.bytes,
            only_bytes: Some(group.only.bytes),
            kinds: largest(kinds, KINDS),
            parts,
        })
        .collect();
    for (kind, name, is_cycle) in [("lost", "nothing: lost", false), ("cycle", "only their own cycle", true)] {
        let (mut all, mut parts): (Amount, FxHashMap<&str, Amount>) = Default::default();
        for group in lost.groups.iter().filter(|group| group.is_cycle == is_cycle) {
            all.join(group.amount);
            parts.entry(&group.text).or_default().join(group.amount);
        }
        let Amount { blocks, bytes } = all;
        let kinds = largest(parts.clone(), KINDS);
        roots.push(HeldBy {
            name: name.into(),
            kind,
            blocks,
            bytes,
            only_bytes: None,
            kinds,
            parts: largest(parts, PARTS),
        });
    }
    roots.retain(|root| root.blocks > 0);
    roots.sort_by(|a, b| (Reverse(a.bytes), &a.name).cmp(&(Reverse(b.bytes), &b.name)));
    if roots.len() > ROOTS {
        let rest = roots.split_off(ROOTS - 1);
        let sum = |of: fn(&HeldBy) -> u64| rest.iter().map(of).sum();
        roots.push(HeldBy {
            name: format!("{} others", rest.len()),
            kind: "others",
            blocks: sum(|root| root.blocks),
            bytes: sum(|root| root.bytes),
            only_bytes: None,
            kinds: Vec::new(),
            parts: Vec::new(),
        });
    }
    roots
}

/// Returns for each root what it leads to at once, with all that this holds.
fn ways(holders: &Holders<'_>) -> Vec<Vec<HeldPart>> {
    let ways = holders.ways();
    let all: u64 = ways.iter().filter(|way| way.is_outermost).map(|way| way.held.bytes).sum();
    let mut of_root: Vec<Vec<HeldPart>> = holders.groups.iter().map(|_| Vec::new()).collect();
    let mut of_way: Vec<Vec<HeldPart>> = ways.iter().map(|_| Vec::new()).collect();
    let mut level = vec![0; ways.len()];
    for (number, way) in ways.iter().enumerate() {
        level[number] = if way.is_outermost { 0 } else { level[way.outer as usize] + 1 };
    }
    for (number, way) in ways.iter().enumerate().rev() {
        let mut parts = std::mem::take(&mut of_way[number]);
        sort(&mut parts, PARTS);
        if level[number] < LEVELS && way.held.bytes >= all / SMALL {
            let part = HeldPart { name: way.text.into(), blocks: way.held.blocks, bytes: way.held.bytes, parts };
            let outer = if way.is_outermost { &mut of_root } else { &mut of_way };
            outer[way.outer as usize].push(part);
        }
    }
    of_root.iter_mut().for_each(|parts| sort(parts, PARTS));
    of_root
}

/// Returns the largest parts; what they leave is the difference to the whole.
fn largest(parts: FxHashMap<&str, Amount>, most: usize) -> Vec<HeldPart> {
    let part = |(name, amount): (&str, Amount)| HeldPart {
        name: name.into(),
        blocks: amount.blocks,
        bytes: amount.bytes,
        parts: Vec::new(),
    };
    let mut parts: Vec<HeldPart> = parts.into_iter().map(part).collect();
    sort(&mut parts, most);
    parts
}

fn sort(parts: &mut Vec<HeldPart>, most: usize) {
    parts.sort_by(|a, b| (Reverse(a.bytes), &a.name).cmp(&(Reverse(b.bytes), &b.name)));
    parts.truncate(most);
}

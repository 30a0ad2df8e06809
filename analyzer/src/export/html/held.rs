//! Who holds what is live at the end, for the page: each root with the kinds of blocks for which it
//! is the nearest, and of each leak who holds it.

use super::data::{HeldBy, HeldPart};
use crate::load::Process;
use crate::report::holders::{Amount, Holders};
use crate::report::leaks::BySite;
use crate::report::lost::{self, Lost};
use crate::symbols::Symbolizer;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;

/// Maximum number of roots that a page lists of each process.
const ROOTS: usize = 60;
/// Maximum number of kinds of blocks that a page lists of each root.
const PARTS: usize = 12;

/// Returns what holds the blocks of a process, and the holders of each call site; `None` if that was
/// not recorded.
pub(super) fn held(process: &Process, symbols: &mut Symbolizer) -> Option<(Vec<HeldBy>, BySite)> {
    let mut holders = Holders::of(process, symbols).ok()?.filter(|holders| holders.snapshot.is_of_end())?;
    let lost = lost::find(&mut holders);
    let by_site = BySite::of(&holders, &lost);
    Some((roots(&holders, &lost), by_site))
}

fn roots(holders: &Holders<'_>, lost: &Lost) -> Vec<HeldBy> {
    let mut parts: Vec<FxHashMap<&str, Amount>> = vec![FxHashMap::default(); holders.groups.len()];
    for (number, block) in (0..).zip(holders.snapshot.graph.blocks.iter()) {
        if let Some(group) = holders.group_number(number) {
            parts[group as usize].entry(&holders.label(number).text).or_default().add(&block);
        }
    }
    let mut roots: Vec<HeldBy> = holders
        .groups
        .iter()
        .zip(parts)
        .map(|(group, parts)| HeldBy {
            name: group.name.clone(),
            kind: group.kind,
            blocks: group.held.blocks,
            bytes: group.held.bytes,
            only_bytes: Some(group.only.bytes),
            parts: largest(parts),
        })
        .collect();
    for (kind, name, is_cycle) in [("lost", "nothing: lost", false), ("cycle", "only their own cycle", true)] {
        let (mut all, mut parts): (Amount, FxHashMap<&str, Amount>) = Default::default();
        for group in lost.groups.iter().filter(|group| group.is_cycle == is_cycle) {
            all.join(group.amount);
            parts.entry(&group.text).or_default().join(group.amount);
        }
        let Amount { blocks, bytes } = all;
        roots.push(HeldBy { name: name.into(), kind, blocks, bytes, only_bytes: None, parts: largest(parts) });
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
            parts: Vec::new(),
        });
    }
    roots
}

/// Returns the largest parts; what they leave is the difference to the whole.
fn largest(parts: FxHashMap<&str, Amount>) -> Vec<HeldPart> {
    let part =
        |(name, amount): (&str, Amount)| HeldPart { name: name.into(), blocks: amount.blocks, bytes: amount.bytes };
    let mut parts: Vec<HeldPart> = parts.into_iter().map(part).collect();
    parts.sort_by(|a, b| (Reverse(a.bytes), &a.name).cmp(&(Reverse(b.bytes), &b.name)));
    parts.truncate(PARTS);
    parts
}

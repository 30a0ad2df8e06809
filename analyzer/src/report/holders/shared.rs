//! What else leads to the blocks that a root holds. One old word on a stack leads into a map, and so
//! only the global that owns the map does not lead to its nodes: who reads that nothing is held only
//! by the global wants to know by what else.

use super::{Amount, Holders, RootGroup, STALE};
use crate::model::references::{NONE, Root};
use crate::model::retained::{GROUPS, led_to};

/// Times that the graph is walked for it.
const WALKS: usize = 4;
/// Part of all held bytes below which nobody asks: one in this number.
const SMALL: u64 = 100;
/// Part of what a root holds that others must lead to, too: one in this number.
const SOME: u64 = 10;

impl Holders<'_> {
    /// Finds for each large root that is not alone what else leads to most of what it holds.
    pub fn share(&mut self) {
        let all: u64 = self.groups.iter().map(|group| group.held.bytes).sum();
        let is_shared = |group: &RootGroup| {
            let not_alone = group.held.bytes - group.only.bytes.min(group.held.bytes);
            group.kind != STALE
                && not_alone > 0
                && not_alone.saturating_mul(SOME) >= group.held.bytes
                && group.held.bytes >= all / SMALL
        };
        let shared: Vec<u32> =
            (0..).zip(&self.groups).filter(|(_, group)| is_shared(group)).map(|(number, _)| number).collect();
        if shared.is_empty() {
            return;
        }
        let graph = &self.snapshot.graph;
        // Those that lead to blocks of others at once come first: there may be more than are tried.
        let leads_to_others = |(group, root): (&u32, &Root)| {
            self.group_number(root.target).is_some_and(|nearest| nearest != *group).then_some(*group)
        };
        let first = self.group_of.iter().zip(&graph.roots).filter_map(leads_to_others);
        let mut is_listed = vec![false; self.groups.len()];
        let mut is_new = |group: &u32| !std::mem::replace(&mut is_listed[*group as usize], true);
        let others: Vec<u32> = first.chain(self.group_of.iter().copied()).filter(|group| is_new(group)).collect();
        let mut most: Vec<Option<(u32, Amount)>> = vec![None; shared.len()];
        for groups in others.chunks(GROUPS).take(WALKS) {
            let mut sums = vec![[Amount::default(); GROUPS]; shared.len()];
            for (number, mut bits) in (0..).zip(led_to(graph, &self.group_of, groups)) {
                let nearest = self.group_number(number).unwrap_or(NONE);
                let Ok(place) = shared.binary_search(&nearest) else { continue };
                let block = graph.block(number);
                while bits != 0 {
                    sums[place][bits.trailing_zeros() as usize].add(&block);
                    bits &= bits - 1;
                }
            }
            for ((own, sums), most) in shared.iter().zip(sums).zip(&mut most) {
                for (group, amount) in
                    groups.iter().zip(sums).filter(|(group, amount)| *group != own && amount.blocks > 0)
                {
                    if most.is_none_or(|(_, most)| amount.bytes > most.bytes) {
                        *most = Some((*group, amount));
                    }
                }
            }
        }
        for (group, most) in shared.into_iter().zip(most) {
            self.groups[group as usize].also = most;
        }
    }
}

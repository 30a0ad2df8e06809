//! What would be free without something: the blocks that only it leads to. Exactly so, not by
//! dominators of single blocks: a list that a program enters at both ends retains all that is in
//! it.

use super::references::{Graph, NONE, in_rounds};

/// Sets of blocks that one pass removes, each from a graph of its own.
const AT_ONCE: usize = u32::BITS as usize - 1;
/// The bit of a block that is held at all.
const HELD: u32 = 1 << AT_ONCE;

/// Number of no group, for blocks that several groups lead to.
const SEVERAL: u32 = NONE - 1;

/// Returns for each block the only group of roots that leads to it, or [`NONE`] if there are
/// several, or none. `group_of` has the group of each root.
pub(crate) fn only_group(graph: &Graph, group_of: &[u32]) -> Vec<u32> {
    let mut only = vec![NONE; graph.blocks.len()];
    let mut next = Vec::new();
    // A block changes at most twice: to a group, and to several.
    let join = |only: &mut [u32], block: u32, group: u32, next: &mut Vec<u32>| {
        let known = &mut only[block as usize];
        if *known != group && *known != SEVERAL {
            *known = if *known == NONE { group } else { SEVERAL };
            next.push(block);
        }
    };
    for (root, group) in graph.roots.iter().zip(group_of) {
        join(&mut only, root.target, *group, &mut next);
    }
    in_rounds(&mut next, |block, next| {
        let group = only[block as usize];
        for reference in graph.sure_references(block) {
            join(&mut only, reference.target, group, next);
        }
    });
    only.iter_mut().filter(|group| **group == SEVERAL).for_each(|group| *group = NONE);
    only
}

/// Number of groups that [`led_to`] tells apart.
pub(crate) const GROUPS: usize = u32::BITS as usize;

/// Returns for each block which of some groups of roots lead to it, a bit for each of the first
/// [`GROUPS`]. `group_of` has the group of each root.
pub(crate) fn led_to(graph: &Graph, group_of: &[u32], groups: &[u32]) -> Vec<u32> {
    let mut led = vec![0u32; graph.blocks.len()];
    let mut next = Vec::new();
    let join = |led: &mut [u32], block: u32, bits: u32, next: &mut Vec<u32>| {
        let known = &mut led[block as usize];
        if *known | bits != *known {
            *known |= bits;
            next.push(block);
        }
    };
    for (root, group) in graph.roots.iter().zip(group_of) {
        if let Some(bit) = groups.iter().take(GROUPS).position(|one| one == group) {
            join(&mut led, root.target, 1 << bit, &mut next);
        }
    }
    in_rounds(&mut next, |block, next| {
        let bits = led[block as usize];
        for reference in graph.sure_references(block) {
            join(&mut led, reference.target, bits, next);
        }
    });
    led
}

/// Calls `found` with each set and each held block that is held no more without the set's blocks,
/// those themselves among them. `set_of` has the set of each block, and [`NONE`] for blocks in none.
pub(crate) fn of_sets(graph: &Graph, set_of: impl Fn(u32) -> u32, sets: usize, mut found: impl FnMut(usize, u32)) {
    for first in (0..sets).step_by(AT_ONCE) {
        for (block, held) in (0..).zip(held_without(graph, &set_of, first)) {
            if held & HELD == 0 {
                continue;
            }
            let mut lost = !held;
            while lost != 0 {
                let set = first + lost.trailing_zeros() as usize;
                lost &= lost - 1;
                if set < sets {
                    found(set, block);
                }
            }
        }
    }
}

/// Returns for each block which of [`AT_ONCE`] sets from `first` on it does not need: the bit of a
/// set is 1 if the block is held without that set's blocks. [`HELD`] is 0 if nothing holds it.
fn held_without(graph: &Graph, set_of: impl Fn(u32) -> u32, first: usize) -> Vec<u32> {
    let mut held = vec![0u32; graph.blocks.len()];
    let mut next = Vec::new();
    // Asked once for each block.
    let own: Vec<u8> = (0..graph.blocks.len() as u32)
        .map(|block| match (set_of(block) as usize).checked_sub(first) {
            Some(set) if set < AT_ONCE => set as u8,
            _ => AT_ONCE as u8,
        })
        .collect();
    let join = |held: &mut [u32], block: u32, without: u32, next: &mut Vec<u32>| {
        let known = &mut held[block as usize];
        let joined = *known | without & !(1 << own[block as usize]) | HELD;
        if *known != joined {
            *known = joined;
            next.push(block);
        }
    };
    for root in &graph.roots {
        join(&mut held, root.target, u32::MAX, &mut next);
    }
    in_rounds(&mut next, |block, next| {
        let without = held[block as usize];
        for reference in graph.sure_references(block) {
            join(&mut held, reference.target, without, next);
        }
    });
    held
}

#[cfg(test)]
mod tests {
    use super::*;
    use heaptape_formats::tape::{Edge, ROOT_DATA, ReferenceBlock, RootRegion};
    use proptest::prelude::*;

    type Pairs = Vec<(u64, u64)>;

    const REGIONS: u64 = 4;

    fn graph(blocks: u64, edges: &Pairs, roots: &Pairs) -> Graph {
        let block =
            |number| ReferenceBlock { address: 0x1000 + 64 * number, size: 64, usable: 64, ..Default::default() };
        let region =
            |number| RootRegion { start: 0x10_0000 * (number + 1), length: 4096, kind: ROOT_DATA, name: 0, thread: 0 };
        let edge = |&(source, target): &(u64, u64)| Edge { source, offset: 0, target, inside: 0 };
        let mut sorted = edges.clone();
        sorted.sort_unstable();
        let edges = sorted.iter().map(edge).collect();
        Graph::new((0..blocks).map(block).collect(), (0..REGIONS).map(region).collect(), edges, roots.iter().map(edge))
            .0
    }

    fn all_sets(graph: &Graph, set_of: &[u32], sets: usize) -> Vec<Vec<u32>> {
        let mut retained = vec![Vec::new(); sets];
        of_sets(graph, |block| set_of[block as usize], sets, |set, block| retained[set].push(block));
        retained
    }

    /// Returns which blocks are held, without some roots and blocks.
    fn reached(graph: &Graph, without_region: Option<u32>, is_removed: impl Fn(u32) -> bool) -> Vec<bool> {
        let mut seen = vec![false; graph.blocks.len()];
        let roots = graph.roots.iter().filter(|root| Some(root.region) != without_region);
        let mut next: Vec<u32> = roots.map(|root| root.target).collect();
        while let Some(block) = next.pop() {
            if !is_removed(block) && !std::mem::replace(&mut seen[block as usize], true) {
                next.extend(graph.references(block).iter().map(|reference| reference.target));
            }
        }
        seen
    }

    proptest! {
        /// Removing something and looking again what is held is what "retained" means.
        #[test]
        fn retained_is_what_is_gone_after_a_removal(
            (blocks, edges, roots, sets) in (1u64..40).prop_flat_map(|blocks| (
                Just(blocks),
                proptest::collection::vec((0..blocks, 0..blocks), 0..80),
                proptest::collection::vec((0..REGIONS, 0..blocks), 0..8),
                // More sets than one pass removes.
                proptest::collection::vec(prop_oneof![Just(NONE), 0u32..3, 29u32..33, 60u32..67], blocks as usize),
            ))
        ) {
            let graph = graph(blocks, &edges, &roots);
            let all = reached(&graph, None, |_| false);
            let group_of: Vec<u32> = graph.roots.iter().map(|root| root.region).collect();
            let only = only_group(&graph, &group_of);
            for region in 0..REGIONS as u32 {
                let rest = reached(&graph, Some(region), |_| false);
                let expected: Vec<bool> = all.iter().zip(&rest).map(|(all, rest)| *all && !rest).collect();
                prop_assert_eq!(only.iter().map(|group| *group == region).collect::<Vec<_>>(), expected);
            }
            let asked = [2, 0];
            let led = led_to(&graph, &group_of, &asked);
            for (bit, region) in asked.into_iter().enumerate() {
                let is_its = |root: &&crate::model::references::Root| root.region == region;
                let mut seen = vec![false; blocks as usize];
                let mut next: Vec<u32> = graph.roots.iter().filter(is_its).map(|root| root.target).collect();
                while let Some(block) = next.pop() {
                    if !std::mem::replace(&mut seen[block as usize], true) {
                        next.extend(graph.references(block).iter().map(|reference| reference.target));
                    }
                }
                prop_assert_eq!(led.iter().map(|bits| bits >> bit & 1 != 0).collect::<Vec<_>>(), seen);
            }
            for (set, found) in all_sets(&graph, &sets, 67).into_iter().enumerate() {
                let rest = reached(&graph, None, |block| sets[block as usize] as usize == set);
                let expected: Vec<u32> = (0..blocks as u32).filter(|b| all[*b as usize] && !rest[*b as usize]).collect();
                prop_assert_eq!(found, expected, "set {}", set);
            }
        }
    }

    #[test]
    fn list_that_is_entered_at_both_ends_retains_what_is_in_it() {
        // Blocks 0 to 2 are a list in both directions, 3 to 5 what they hold; 4 is held by 1 only.
        let edges = vec![(0, 1), (1, 2), (2, 1), (1, 0), (0, 3), (1, 4), (2, 5)];
        let graph = graph(6, &edges, &vec![(0, 0), (0, 2), (1, 5)]);
        assert_eq!(all_sets(&graph, &[0, 0, 0, NONE, NONE, NONE], 1), [vec![0, 1, 2, 3, 4]]);
        assert_eq!(only_group(&graph, &[0, 0, 1]), [0, 0, 0, 0, 0, NONE]);
    }
}

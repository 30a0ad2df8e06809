//! What is held by way of what, as a tree: below a root the kinds of blocks that it leads to, below
//! each of them those that they lead to on the shortest way.

use super::{Amount, Holders};
use rustc_hash::FxHashMap;

/// Blocks of one kind that are held in one way, as to their kinds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way<'a> {
    /// What the blocks are.
    pub text: &'a str,
    /// Number of the way of what holds them; for the outermost ones, of the group of their root.
    pub outer: u32,
    pub is_outermost: bool,
    /// The blocks, and all that they hold.
    pub held: Amount,
}

impl Holders<'_> {
    /// Returns all ways. Outer ones come before those in them.
    pub(crate) fn ways(&self) -> Vec<Way<'_>> {
        let mut ways: Vec<Way<'_>> = Vec::new();
        let mut known: FxHashMap<(bool, u32, u32), u32> = FxHashMap::default();
        // Steps through several fields of one kind of blocks are one way.
        let mut way_of: Vec<u32> = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            // Through unused memory another root holds them.
            let is_outermost = step.is_outermost || self.steps[step.outer as usize].root != step.root;
            let outer = match is_outermost {
                true => step.root,
                false => way_of[step.outer as usize],
            };
            let next = ways.len() as u32;
            let way = *known.entry((is_outermost, outer, step.label)).or_insert(next);
            if way == next {
                let text = &*self.labels[step.label as usize].text;
                ways.push(Way { text, outer, is_outermost, held: Amount::default() });
            }
            way_of.push(way);
        }
        for (block, step) in self.snapshot.graph.blocks.iter().zip(self.step_of.iter()) {
            let way = way_of.get(step as usize).and_then(|way| ways.get_mut(*way as usize));
            way.into_iter().for_each(|way| way.held.add(&block));
        }
        for number in (0..ways.len()).rev() {
            let Way { outer, is_outermost, held, .. } = ways[number];
            if !is_outermost {
                ways[outer as usize].held.join(held);
            }
        }
        ways
    }
}

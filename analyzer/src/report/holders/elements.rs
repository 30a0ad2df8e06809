//! Arrays inside of nodes: the blocks of a deque, the nodes of a B-tree and the slots of a queue have room
//! for several elements. Which place one has tells nothing, and would make as many ways of one.

use super::{Holders, Step};
use crate::model::references::NONE;
use rustc_hash::{FxHashMap, FxHashSet};

/// From so many places in blocks of one kind to blocks of one kind they are elements of an array: a structure
/// seldom has so many fields that lead to the same.
const ELEMENTS: usize = 8;

impl Holders<'_> {
    /// Joins the steps that differ only in the place that an element has in its node.
    pub(super) fn join_elements(&mut self) {
        let kinds = |steps: &[Step], step: &Step| (steps[step.outer as usize].label, step.label);
        let mut places: FxHashMap<(u32, u32), FxHashSet<u32>> = FxHashMap::default();
        for step in self.steps.iter().filter(|step| !step.is_outermost) {
            places.entry(kinds(&self.steps, step)).or_default().insert(step.word);
        }
        places.retain(|_, words| words.len() >= ELEMENTS);
        if places.is_empty() {
            return;
        }
        let (mut known, mut joined, mut number_of) = (FxHashMap::default(), Vec::new(), Vec::new());
        // Outer steps come first.
        for step in &self.steps {
            let mut step = *step;
            if !step.is_outermost {
                if places.contains_key(&kinds(&self.steps, &step)) {
                    step.word = 0;
                }
                step.outer = number_of[step.outer as usize];
            }
            let next = joined.len() as u32;
            let number = *known.entry(step).or_insert(next);
            if number == next {
                joined.push(step);
            }
            number_of.push(number);
        }
        for block in 0..self.snapshot.graph.blocks.len() as u32 {
            let step = self.step_of.get(block);
            if step != NONE {
                self.step_of.set(block, number_of[step as usize]);
            }
        }
        self.steps = joined;
    }
}

//! Converts stacks to samples and arcs, in time linear in the tree of stacks: sites share their
//! callers, and a hostile file could have a stack of all its sites at each of them.
//!
//! The amount below a node counts for the arc into it, unless the same pair of functions is further
//! out on the path, where it has been counted already. So each pair counts a stack once, even if a
//! recursion passes through it repeatedly.

use super::object_table::Table;
use super::objects::Frame;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// The sites of a process by number less one: their callers and their locations.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    /// Number of the caller, which is smaller than the site's own; 0 for none. Any other number
    /// counts as none.
    pub parents: Vec<u32>,
    /// Location of the site, if it is in an object.
    pub frames: Vec<Option<Frame>>,
}

impl Tree {
    fn parent(&self, node: u32) -> u32 {
        let parent = self.parents.get((node as usize).wrapping_sub(1)).copied().unwrap_or(0);
        if parent < node { parent } else { 0 }
    }

    fn frame(&self, node: u32) -> Option<Frame> {
        self.frames.get((node as usize).wrapping_sub(1)).copied().flatten()
    }
}

/// Collects samples and arcs.
#[derive(Debug, Default)]
pub(crate) struct Gathering {
    through: bool,
    tables: Vec<Table>,
    /// Amount that has no stack, or whose stack begins in no object.
    pub outside: u64,
}

/// A frame on the path, with the part of its amount that no inner frame of its object has.
struct Passed {
    frame: Frame,
    left: u64,
}

impl Gathering {
    /// Returns an empty collection. With `through`, an object also gets what others allocate on its
    /// behalf.
    pub(crate) fn new(through: bool) -> Gathering {
        Gathering { through, ..Gathering::default() }
    }

    pub(crate) fn add(&mut self, tree: &Tree, amounts: impl Iterator<Item = (u32, u64)>) {
        let mut by_object: BTreeMap<usize, Vec<(u32, u64)>> = BTreeMap::new();
        let mut all = Vec::new();
        for (site, amount) in amounts.filter(|(_, amount)| *amount > 0) {
            match tree.frame(site) {
                Some(frame) => by_object.entry(frame.object).or_default().push((site, amount)),
                None => self.outside = self.outside.saturating_add(amount),
            }
            all.push((site, amount));
        }
        let mut walk = Walk::new(tree);
        if self.through {
            walk.amounts(&all, &mut self.tables, None);
        } else {
            for (object, amounts) in &by_object {
                walk.amounts(amounts, &mut self.tables, Some(*object));
            }
        }
    }

    /// Returns the tables by object, without arcs from outside.
    pub(crate) fn finish(self) -> Vec<Table> {
        self.tables
    }
}

/// Passes over a tree, which reuse their memory.
struct Walk<'t> {
    tree: &'t Tree,
    /// For each node, the amount at it and below it.
    totals: Vec<u64>,
    is_met: Vec<bool>,
    /// For each node, its first child among those that were met.
    first: Vec<u32>,
    /// For each node, its parent's next child among those that were met.
    next: Vec<u32>,
}

impl<'t> Walk<'t> {
    fn new(tree: &'t Tree) -> Walk<'t> {
        let nodes = tree.parents.len().max(tree.frames.len()) + 1;
        Walk { tree, totals: vec![0; nodes], is_met: vec![false; nodes], first: vec![0; nodes], next: vec![0; nodes] }
    }

    /// Returns the nodes from these sites outwards, callers first, after linking them and adding up
    /// the amounts below them.
    fn met(&mut self, amounts: &[(u32, u64)]) -> Vec<u32> {
        let mut met = Vec::new();
        for &(site, amount) in amounts {
            let Some(total) = self.totals.get_mut(site as usize).filter(|_| site != 0) else { continue };
            *total = total.saturating_add(amount);
            let mut node = site;
            while node != 0 && !std::mem::replace(&mut self.is_met[node as usize], true) {
                met.push(node);
                node = self.tree.parent(node);
            }
        }
        met.sort_unstable();
        self.first[0] = 0;
        met.iter().for_each(|&node| self.first[node as usize] = 0);
        for &node in met.iter().rev() {
            let parent = self.tree.parent(node) as usize;
            self.totals[parent] = self.totals[parent].saturating_add(self.totals[node as usize]);
            self.next[node as usize] = self.first[parent];
            self.first[parent] = node;
        }
        met
    }

    /// Counts amounts in the tables of one object, or of all objects that the stacks pass through.
    fn amounts(&mut self, amounts: &[(u32, u64)], tables: &mut Vec<Table>, only: Option<usize>) {
        let met = self.met(amounts);
        let counted =
            |tree: &Tree, node: u32| tree.frame(node).filter(|frame| only.is_none_or(|only| only == frame.object));
        let mut path: FxHashMap<usize, Vec<Passed>> = FxHashMap::default();
        let mut pairs: FxHashMap<(usize, u64, u64), u32> = FxHashMap::default();
        let mut node = self.first[0];
        let mut open: Vec<u32> = Vec::new();
        while node != 0 || !open.is_empty() {
            if node != 0 {
                if let Some(frame) = counted(self.tree, node) {
                    tables.resize_with(tables.len().max(frame.object + 1), Table::default);
                    let (table, total) = (&mut tables[frame.object], self.totals[node as usize]);
                    let passed = path.entry(frame.object).or_default();
                    table.meet(&frame);
                    match passed.last_mut() {
                        None => table.entry(&frame, total),
                        Some(caller) => {
                            caller.left = caller.left.saturating_sub(total);
                            let times = pairs.entry((frame.object, caller.frame.start, frame.start)).or_default();
                            *times += 1;
                            if *times == 1 {
                                table.arc(&caller.frame, &frame, total);
                            }
                        }
                    }
                    passed.push(Passed { frame, left: total });
                }
                open.push(node);
                node = self.first[node as usize];
                continue;
            }
            let Some(left) = open.pop() else { break };
            if let Some(frame) = counted(self.tree, left) {
                let passed = path.entry(frame.object).or_default();
                if let Some(Passed { frame, left }) = passed.pop() {
                    tables[frame.object].sample(&frame, left);
                }
                if let Some(caller) = passed.last()
                    && let Some(times) = pairs.get_mut(&(frame.object, caller.frame.start, frame.start))
                {
                    *times -= 1;
                }
            }
            node = self.next[left as usize];
        }
        for node in met.into_iter().chain([0]) {
            self.totals[node as usize] = 0;
            self.is_met[node as usize] = false;
        }
    }
}

//! The stacks of all processes as one tree of named frames, outermost first, with sums at its
//! nodes. It is built in time linear in the sites, so that stacks of any depth and number can be
//! written by what they share.

use crate::load::Process;
use crate::symbols::{Frame, Symbolizer};
use rustc_hash::FxHashMap;
use std::rc::Rc;

/// Maximum depth of a tree. Stacks have at most 1,024 frames, and more only where functions were
/// inlined, but a hostile file could have one of millions at each of as many sites. Deeper frames
/// are counted at this depth.
const DEEPEST: u16 = 4096;

/// Attributes by which a tree distinguishes frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// The name of the function alone.
    Function,
    /// Module, source file, line and function.
    Line,
}

impl Identity {
    fn of(self, frame: &Frame) -> Frame {
        match self {
            Identity::Function => Frame { function: Some(frame.title()), ..Frame::default() },
            Identity::Line => Frame {
                function: Some(frame.title()),
                file: frame.file.clone(),
                line: frame.line,
                module: frame.module.clone(),
                ..Frame::default()
            },
        }
    }
}

/// A node: a frame with a particular stack of callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// Node of the caller; the node itself for the root, which is not a frame.
    pub parent: u32,
    /// Index of the frame in [`Tree::frames`].
    pub frame: u32,
}

/// The frames that the symbolizer returned for a site, and their indexes.
type Known = (Rc<[Frame]>, Box<[u32]>);

/// An amount that is added to a tree.
#[derive(Clone, Copy, Debug)]
pub struct Amount {
    pub site: u32,
    pub column: usize,
    /// Number of bytes, blocks or events.
    pub amount: u64,
}

#[derive(Debug)]
pub struct Tree {
    identity: Identity,
    /// The nodes. Callers come before their callees; the first node is the root.
    pub nodes: Vec<Node>,
    pub frames: Vec<Frame>,
    /// For each column, the sum at each node itself, without its callees.
    pub columns: Vec<Vec<u64>>,
    depths: Vec<u16>,
    children: FxHashMap<(u32, u32), u32>,
    known: FxHashMap<Frame, u32>,
    /// Frame indexes of sites, by the address of the frames that the symbolizer returned. It keeps
    /// these frames.
    sites: FxHashMap<*const Frame, Known>,
}

impl Tree {
    /// Returns a tree without frames, with the given number of columns.
    pub fn new(identity: Identity, columns: usize) -> Tree {
        Tree {
            identity,
            nodes: vec![Node { parent: 0, frame: 0 }],
            frames: vec![Frame::default()],
            columns: vec![vec![0]; columns],
            depths: vec![0],
            children: FxHashMap::default(),
            known: FxHashMap::default(),
            sites: FxHashMap::default(),
        }
    }

    pub fn add(&mut self, symbols: &mut Symbolizer, process: &Process, sums: &[Amount]) {
        let nodes = self.sites(symbols, process, sums.iter().map(|sum| sum.site));
        for &Amount { site, column, amount } in sums {
            let node = nodes.get(site as usize).copied().unwrap_or(0);
            if let Some(sum) = self.columns.get_mut(column).and_then(|column| column.get_mut(node as usize)) {
                *sum = sum.saturating_add(amount);
            }
        }
    }

    /// Returns the nodes of a process's sites, by site number. The outermost frame is the name of
    /// the process. Sites that are on no wanted stack have node 0. Site 0 has the node for events
    /// without a stack, if it is wanted.
    pub fn sites(
        &mut self,
        symbols: &mut Symbolizer,
        process: &Process,
        wanted: impl Iterator<Item = u32>,
    ) -> Vec<u32> {
        let stacks = process.stacks();
        let root = self.named(0, &process.name());
        let mut nodes = vec![0u32; stacks.len() + 1];
        let mut innermost: Vec<u32> = wanted.collect();
        innermost.sort_unstable();
        innermost.dedup();
        for &site in &innermost {
            if site == 0 {
                nodes[0] = u32::MAX;
            }
            // Marks each site that is on a wanted stack; callers have smaller numbers.
            for (number, _) in stacks.stack(site) {
                match nodes.get_mut(number as usize) {
                    Some(mark) if *mark == 0 => *mark = u32::MAX,
                    _ => break,
                }
            }
        }
        if nodes[0] != 0 {
            nodes[0] = self.named(root, "(no stack)");
        }
        for number in 1..=stacks.len() as u32 {
            if nodes[number as usize] == 0 {
                continue;
            }
            let site = stacks.site(number);
            let has_caller = site.parent > 0 && site.parent < number;
            let mut parent = if has_caller { nodes[site.parent as usize] } else { root };
            if has_caller {
                parent = self.below(parent, &symbols.tail_frames(stacks, &stacks.site(site.parent), Some(&site)));
            }
            let frames = symbols.frames(stacks, &site);
            nodes[number as usize] = self.below(parent, &frames);
        }
        // No call goes on from a function that left by a jump to the allocator.
        for site in innermost.into_iter().filter(|site| (1..=stacks.len() as u32).contains(site)) {
            let tails = symbols.tail_frames(stacks, &stacks.site(site), None);
            nodes[site as usize] = self.below(nodes[site as usize], &tails);
        }
        nodes
    }

    fn named(&mut self, parent: u32, name: &str) -> u32 {
        let frame = Frame { function: Some(name.to_string()), ..Frame::default() };
        let frame = self.frame(frame);
        self.node(parent, frame)
    }

    /// Returns the node of a site's frames below that of its caller.
    fn below(&mut self, parent: u32, frames: &Rc<[Frame]>) -> u32 {
        if frames.is_empty() {
            return parent;
        }
        let key = frames.as_ptr();
        if !self.sites.contains_key(&key) {
            let numbers = frames.iter().map(|frame| self.frame(self.identity.of(frame))).collect();
            self.sites.insert(key, (frames.clone(), numbers));
        }
        let count = self.sites[&key].1.len();
        (0..count).rev().fold(parent, |parent, at| {
            let frame = self.sites[&key].1[at];
            self.node(parent, frame)
        })
    }

    fn frame(&mut self, frame: Frame) -> u32 {
        if let Some(&known) = self.known.get(&frame) {
            return known;
        }
        let number = self.frames.len() as u32;
        self.frames.push(frame.clone());
        self.known.insert(frame, number);
        number
    }

    fn node(&mut self, parent: u32, frame: u32) -> u32 {
        let depth = self.depths[parent as usize] + 1;
        if depth > DEEPEST {
            return parent;
        }
        let (nodes, columns, depths) = (&mut self.nodes, &mut self.columns, &mut self.depths);
        *self.children.entry((parent, frame)).or_insert_with(|| {
            depths.push(depth);
            nodes.push(Node { parent, frame });
            columns.iter_mut().for_each(|column| column.push(0));
            nodes.len() as u32 - 1
        })
    }

    /// Returns a column's sums including the callees of each node.
    pub fn inclusive(&self, column: usize) -> Vec<u64> {
        let mut sums = self.columns[column].clone();
        for at in (1..self.nodes.len()).rev() {
            let parent = self.nodes[at].parent as usize;
            sums[parent] = sums[parent].saturating_add(sums[at]);
        }
        sums
    }

    /// Visits the nodes: callers before their callees, and the callees of each caller together.
    /// Calls `enter` with each node, which returns whether to visit its callees, and `leave` after
    /// them.
    pub fn walk(&self, mut enter: impl FnMut(u32) -> bool, mut leave: impl FnMut(u32)) {
        let mut first = vec![0u32; self.nodes.len()];
        let mut next = vec![0u32; self.nodes.len()];
        for (at, node) in self.nodes.iter().enumerate().skip(1).rev() {
            next[at] = std::mem::replace(&mut first[node.parent as usize], at as u32);
        }
        let mut stack = Vec::new();
        let mut at = first[0];
        loop {
            while at != 0 {
                if enter(at) {
                    stack.push(at);
                    at = first[at as usize];
                } else {
                    at = next[at as usize];
                }
            }
            let Some(done) = stack.pop() else { break };
            leave(done);
            at = next[done as usize];
        }
    }

    /// Returns the title of the frame of a node.
    pub fn title(&self, node: u32) -> &str {
        let frame = &self.frames[self.nodes[node as usize].frame as usize];
        frame.function.as_deref().unwrap_or_default()
    }

    /// Calls `each` with a line for each node that has an amount of its own in some column: the
    /// titles of its stack between semicolons, outermost first, and the amounts. Nodes that hold
    /// less than `least` of every column, including their callees, are counted at their caller.
    pub fn folded(&self, least: &[u64], mut each: impl FnMut(&str)) {
        let inclusive: Vec<Vec<u64>> = (0..self.columns.len()).map(|column| self.inclusive(column)).collect();
        // Processes are written even if they hold little.
        let small = |node: u32| {
            self.nodes[node as usize].parent != 0
                && inclusive.iter().zip(least).all(|(sums, &least)| sums[node as usize] < least)
        };
        // The amounts that are written at a node: its own, and those of small callees.
        let mut own = self.columns.clone();
        for at in 1..self.nodes.len() as u32 {
            let parent = self.nodes[at as usize].parent;
            if small(at) && !small(parent) {
                for (own, sums) in own.iter_mut().zip(&inclusive) {
                    own[parent as usize] = own[parent as usize].saturating_add(sums[at as usize]);
                }
            }
        }
        let line = std::cell::RefCell::new(String::new());
        let ends = std::cell::RefCell::new(Vec::new());
        self.walk(
            |node| {
                if small(node) {
                    return false;
                }
                let (mut line, mut ends) = (line.borrow_mut(), ends.borrow_mut());
                ends.push(line.len());
                if !line.is_empty() {
                    line.push(';');
                }
                let title = crate::text::clean(self.title(node));
                line.extend(title.chars().map(|c| if c == ';' { ':' } else { c }));
                if own.iter().any(|column| column[node as usize] > 0) {
                    let end = line.len();
                    for column in &own {
                        line.push(' ');
                        line.push_str(&column[node as usize].to_string());
                    }
                    each(&line);
                    line.truncate(end);
                }
                true
            },
            |_| line.borrow_mut().truncate(ends.borrow_mut().pop().unwrap_or(0)),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// root -> a -> b -> c, a -> d.
    fn tree() -> Tree {
        let mut tree = Tree::new(Identity::Function, 1);
        let a = tree.named(0, "a");
        let b = tree.named(a, "b");
        let c = tree.named(b, "c;\n");
        let d = tree.named(a, "d");
        for (node, amount) in [(a, 1), (c, 10), (d, 100)] {
            tree.columns[0][node as usize] = amount;
        }
        tree
    }

    fn lines(least: u64) -> Vec<String> {
        let mut lines = Vec::new();
        tree().folded(&[least], |line| lines.push(line.to_string()));
        lines
    }

    #[test]
    fn folding_keeps_sums() {
        assert_eq!(lines(0), ["a 1", "a;b;c:\u{fffd} 10", "a;d 100"]);
        assert_eq!(lines(11), ["a 11", "a;d 100"]);
        assert_eq!(lines(1000), ["a 111"]);
        assert_eq!(tree().inclusive(0), [111, 111, 10, 10, 100]);
    }
}

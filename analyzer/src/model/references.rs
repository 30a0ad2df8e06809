//! Who holds a block: a graph of blocks, from the words that lead to them. The nearest root of a
//! block is the first one that reaches it in a breadth-first search, the most certain roots first:
//! data of modules, then thread-local data, stacks, registers, and other memory. Unlike dominators,
//! one stale word on a stack changes nothing for what a global holds.

use heaptape_formats::tape::{Edge, ReferenceBlock, RootRegion};

/// Number of no block.
pub const NONE: u32 = u32::MAX;

/// A reference outside of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root {
    pub region: u32,
    /// Address of the word; for a register, its number times 8.
    pub address: u64,
    /// Number of the block.
    pub target: u32,
    /// Offset in that block.
    pub inside: u64,
}

/// A reference in a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reference {
    /// Number of the block that it leads to.
    pub target: u32,
    /// Offset of the word in its own block, in words.
    pub word: u32,
    /// Offset in the block that it leads to, up to a limit.
    pub inside: u32,
}

/// Blocks, and all references to them. Blocks are in ascending order of their addresses.
#[derive(Debug, Default)]
pub struct Graph {
    pub blocks: Vec<ReferenceBlock>,
    pub regions: Vec<RootRegion>,
    /// The references outside of blocks, in order of their regions.
    pub roots: Vec<Root>,
    /// Index of the first reference of each block, and the number of all.
    starts: Vec<u32>,
    references: Vec<Reference>,
}

/// How each block is held.
#[derive(Debug, Default)]
pub struct Held {
    /// The block that holds a block, or [`NONE`].
    pub parent: Vec<u32>,
    /// Offset of the word that holds it, in words.
    pub word: Vec<u32>,
    /// Index of the root that leads to a block, or [`NONE`].
    pub root: Vec<u32>,
    /// The held blocks, nearer ones to their root before others.
    pub order: Vec<u32>,
}

impl Graph {
    /// Makes a graph of blocks. Edges whose numbers are out of range are left out, and counted in
    /// the result.
    pub fn new(
        blocks: Vec<ReferenceBlock>,
        regions: Vec<RootRegion>,
        edges: Vec<Edge>,
        roots: impl Iterator<Item = Edge>,
    ) -> (Graph, u64) {
        let mut bad = 0;
        let mut starts = vec![0u32; blocks.len() + 1];
        let mut references = Vec::with_capacity(edges.len());
        let mut last = 0usize;
        for Edge { source, offset, target, inside } in edges {
            let (is_valid, source) = (source < blocks.len() as u64 && target < blocks.len() as u64, source as usize);
            // The file has them in order, up to that of its chunks.
            if !is_valid || source < last {
                bad += 1;
                continue;
            }
            last = source;
            starts[source + 1] += 1;
            let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
            references.push(Reference { target: target as u32, word: small(offset / 8), inside: small(inside) });
        }
        for number in 0..blocks.len() {
            starts[number + 1] += starts[number];
        }
        let mut found = Graph { blocks, regions, roots: Vec::new(), starts, references };
        for Edge { source, offset, target, inside } in roots {
            let region = usize::try_from(source).ok().and_then(|number| found.regions.get(number));
            match region.filter(|_| target < found.blocks.len() as u64) {
                Some(region) => found.roots.push(Root {
                    region: source as u32,
                    address: region.start.next_multiple_of(8).saturating_add(offset),
                    target: target as u32,
                    inside,
                }),
                None => bad += 1,
            }
        }
        found.roots.sort_by_key(|root| root.region);
        (found, bad)
    }

    pub fn references(&self, block: u32) -> &[Reference] {
        let range = |number: usize| self.starts.get(number).map_or(0, |start| *start as usize);
        self.references.get(range(block as usize)..range(block as usize + 1)).unwrap_or_default()
    }

    /// Returns the number of references in blocks.
    pub fn reference_count(&self) -> usize {
        self.references.len()
    }

    /// Returns the number of the block that contains an address.
    pub fn at(&self, address: u64) -> Option<u32> {
        let number = self.blocks.partition_point(|block| block.address <= address).checked_sub(1)?;
        let block = &self.blocks[number];
        (address - block.address < block.usable.max(1)).then_some(number as u32)
    }

    /// Finds the nearest root of each block. `is_ignored` roots lead to nothing.
    pub fn held(&self, is_ignored: impl Fn(&Root) -> bool) -> Held {
        let count = self.blocks.len();
        let mut held = Held {
            parent: vec![NONE; count],
            word: vec![0; count],
            root: vec![NONE; count],
            order: Vec::with_capacity(count),
        };
        let (mut next, mut first) = (0, 0usize);
        // Regions are in order of their kinds.
        for roots in self.roots.chunk_by(|a, b| self.kind(a) == self.kind(b)) {
            for (number, root) in (first..).zip(roots) {
                let target = root.target as usize;
                if held.root[target] == NONE && !is_ignored(root) {
                    held.root[target] = number as u32;
                    held.order.push(root.target);
                }
            }
            first += roots.len();
            while let Some(&block) = held.order.get(next) {
                next += 1;
                for reference in self.references(block) {
                    let target = reference.target as usize;
                    if held.root[target] == NONE {
                        held.root[target] = held.root[block as usize];
                        (held.parent[target], held.word[target]) = (block, reference.word);
                        held.order.push(reference.target);
                    }
                }
            }
        }
        held
    }

    fn kind(&self, root: &Root) -> u8 {
        self.regions.get(root.region as usize).map_or(0, |region| region.kind)
    }

    /// Returns the groups of lost blocks that refer to each other in a circle, directly or not: a
    /// group for each block, later ones refer to earlier ones only (Tarjan's algorithm).
    pub fn components(&self, lost: &[u32]) -> Vec<Vec<u32>> {
        let mut search = Components::new(self.blocks.len());
        for &block in lost {
            search.state[block as usize].is_lost = true;
        }
        for &block in lost {
            if search.state[block as usize].number == 0 {
                search.from(self, block);
            }
        }
        search.found
    }
}

#[derive(Clone, Copy, Default)]
struct State {
    number: u32,
    low: u32,
    is_lost: bool,
    is_open: bool,
}

struct Components {
    state: Vec<State>,
    count: u32,
    open: Vec<u32>,
    found: Vec<Vec<u32>>,
}

impl Components {
    fn new(count: usize) -> Components {
        Components { state: vec![State::default(); count], count: 0, open: Vec::new(), found: Vec::new() }
    }

    fn begin(&mut self, block: u32) {
        self.count += 1;
        let state = &mut self.state[block as usize];
        (state.number, state.low, state.is_open) = (self.count, self.count, true);
        self.open.push(block);
    }

    fn from(&mut self, graph: &Graph, block: u32) {
        let mut path = vec![(block, 0usize)];
        self.begin(block);
        while let Some((block, next)) = path.last_mut() {
            let block = *block;
            let Some(reference) = graph.references(block).get(*next) else {
                path.pop();
                let State { number, low, .. } = self.state[block as usize];
                if let Some((parent, _)) = path.last() {
                    let parent = &mut self.state[*parent as usize];
                    parent.low = parent.low.min(low);
                }
                if number == low {
                    self.close(block);
                }
                continue;
            };
            *next += 1;
            let target = self.state[reference.target as usize];
            if !target.is_lost {
                continue;
            }
            if target.number == 0 {
                self.begin(reference.target);
                path.push((reference.target, 0));
            } else if target.is_open {
                let state = &mut self.state[block as usize];
                state.low = state.low.min(target.number);
            }
        }
    }

    fn close(&mut self, block: u32) {
        let mut group = Vec::new();
        while let Some(last) = self.open.pop() {
            self.state[last as usize].is_open = false;
            group.push(last);
            if last == block {
                break;
            }
        }
        self.found.push(group);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use heaptape_formats::tape::{ROOT_DATA, ROOT_STACK};

    fn graph(blocks: usize, edges: &[(u64, u64)], roots: &[(u64, u64)]) -> Graph {
        let block =
            |number| ReferenceBlock { address: 0x1000 + 64 * number, size: 64, usable: 64, ..Default::default() };
        let region = |kind, start| RootRegion { start, length: 4096, kind, name: 0, thread: 0 };
        let edge = |&(source, target): &(u64, u64)| Edge { source, offset: 0, target, inside: 0 };
        let regions = vec![region(ROOT_DATA, 0x10_0000), region(ROOT_STACK, 0x20_0000)];
        let blocks = (0..blocks as u64).map(block).collect();
        let (graph, bad) = Graph::new(blocks, regions, edges.iter().map(edge).collect(), roots.iter().map(edge));
        assert_eq!(bad, 0);
        graph
    }

    #[test]
    fn data_comes_before_stacks_even_if_it_is_farther() {
        // The stack has the word 3 itself, and the data a chain to it.
        let graph = graph(5, &[(0, 1), (1, 2), (2, 3), (3, 4)], &[(0, 0), (1, 3)]);
        let held = graph.held(|_| false);
        assert_eq!(held.root, [0, 0, 0, 0, 0]);
        assert_eq!(held.parent, [NONE, 0, 1, 2, 3]);
        let held = graph.held(|root| root.region == 0);
        assert_eq!(held.root, [NONE, NONE, NONE, 1, 1]);
    }

    #[test]
    fn circles_of_lost_blocks_are_found() {
        let graph = graph(7, &[(0, 1), (1, 2), (2, 0), (2, 3), (4, 5), (5, 6)], &[(1, 6)]);
        let held = graph.held(|_| false);
        let lost: Vec<u32> = (0..7).filter(|block| held.root[*block as usize] == NONE).collect();
        assert_eq!(lost, [0, 1, 2, 3, 4, 5]);
        let mut found = graph.components(&lost);
        found.iter_mut().for_each(|group| group.sort_unstable());
        assert_eq!(found, [vec![3], vec![0, 1, 2], vec![5], vec![4]]);
    }

    #[test]
    fn a_long_chain_needs_no_deep_stack() {
        let edges: Vec<(u64, u64)> = (0..99_999).map(|number| (number, number + 1)).collect();
        let graph = graph(100_000, &edges, &[]);
        let lost: Vec<u32> = (0..100_000).collect();
        assert_eq!(graph.components(&lost).len(), 100_000);
    }

    #[test]
    fn edges_out_of_range_are_counted() {
        let edge = |source, target| Edge { source, offset: 0, target, inside: 0 };
        let blocks = vec![ReferenceBlock::default()];
        let (graph, bad) =
            Graph::new(blocks, Vec::new(), vec![edge(0, 1), edge(7, 0), edge(0, 0)], [edge(0, 0)].into_iter());
        assert_eq!((graph.reference_count(), graph.roots.len(), bad), (1, 0, 3));
    }
}

//! Who holds a block: a graph of blocks, from the words that lead to them. The nearest root of a
//! block is the first one that reaches it in a breadth-first search, the most certain roots first:
//! data of modules, then thread-local data, stacks, registers, and other memory. Unlike dominators,
//! one stale word on a stack changes nothing for what a global holds.
//!
//! Memory that the allocator used before still has its old words. Where a block does not use all of
//! its memory, as a vector up to its capacity, such words are *doubtful*: they are followed last. So are
//! those behind the bytes that the program requested, which few programs use.

use super::reference_blocks::Blocks;
use heaptape_formats::tape::{Edge, LOOKED_FOR, ReferenceBlock, RootRegion};
use rustc_hash::FxHashMap;

/// Number of no block.
pub const NONE: u32 = u32::MAX;
/// Maximum number of blocks and of references that are kept: 1.25 GiB.
pub const MOST_BLOCKS: usize = 1 << 25;
const MOST_EDGES: usize = 1 << 26;
/// Maximum number of words that are kept which may be offsets.
const MOST_OFFSETS: usize = 1 << 20;

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
    /// Offset in words, and [`Reference::AT_START`].
    packed: u32,
}

impl Reference {
    /// It leads to the first byte of its block.
    const AT_START: u32 = 1 << 31;

    fn new(edge: &Edge) -> Reference {
        let word = u32::try_from(edge.offset / 8).unwrap_or(u32::MAX).min(Reference::AT_START - 1);
        let at_start = if edge.inside == 0 { Reference::AT_START } else { 0 };
        Reference { target: edge.target as u32, packed: word | at_start }
    }

    /// Returns the offset of the word in its own block, in words.
    pub const fn word(self) -> u32 {
        self.packed & !Reference::AT_START
    }

    /// Returns the offset behind the word, in bytes.
    fn end(self) -> u64 {
        u64::from(self.word()) * 8 + 8
    }

    /// Returns whether it leads to the first byte of its block.
    pub const fn is_at_start(self) -> bool {
        self.packed & Reference::AT_START != 0
    }
}

/// Blocks, and all references to them. Blocks are in ascending order of their addresses.
#[derive(Debug, Default)]
pub struct Graph {
    pub blocks: Blocks,
    pub regions: Vec<RootRegion>,
    /// The references outside of blocks, in order of their regions.
    pub roots: Vec<Root>,
    /// Index of the first reference of each block, and the number of all.
    starts: Vec<u32>,
    references: Vec<Reference>,
    /// Bytes of a block up to which a pair of neighbor words leads, as the words of a std::vector to
    /// its elements; 0 for a text.
    used: FxHashMap<u32, u32>,
    /// A bit for each block with doubtful words.
    doubtful: Vec<u64>,
    /// Words that may be offsets of blocks to which no address leads, in the order of those, each
    /// with its mark before them.
    offsets: Vec<Edge>,
    /// Whether only blocks with a mark were looked for.
    has_marks: bool,
}

/// What leads to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// Number of a root.
    Root(u32),
    /// A word of another block, in words.
    Block { block: u32, word: u32 },
}

/// Makes a graph, while its file is read.
#[derive(Debug, Default)]
pub struct GraphBuilder {
    graph: Graph,
    roots: Vec<Edge>,
    extents: Extents,
    /// References that lead nowhere, or are not in order.
    bad: u64,
    /// Number of all that were given.
    edges: u64,
}

impl GraphBuilder {
    /// Returns the blocks, to add some.
    pub fn blocks(&mut self) -> &mut Blocks {
        &mut self.graph.blocks
    }

    /// Adds a reference in a block. They come in the order of their blocks and words.
    pub fn edge(&mut self, edge: Edge) {
        self.edges += 1;
        let graph = &mut self.graph;
        let source = usize::try_from(edge.source).unwrap_or(usize::MAX);
        let is_valid = source < MOST_BLOCKS && edge.target < MOST_BLOCKS as u64;
        // The file has them in order, up to that of its chunks.
        if !is_valid || source + 1 < graph.starts.len() || graph.references.len() >= MOST_EDGES {
            self.bad += 1;
            return;
        }
        let next = graph.references.len() as u32;
        if graph.starts.len() <= source {
            graph.starts.resize(source + 1, next);
        }
        self.extents.next(edge);
        graph.references.push(Reference::new(&edge));
    }

    /// Adds a word that may be an offset.
    pub fn offset(&mut self, edge: Edge) {
        if self.graph.offsets.len() < MOST_OFFSETS {
            self.graph.offsets.push(edge);
        }
    }

    /// Adds a reference in a region.
    pub fn root(&mut self, edge: Edge) {
        if self.roots.len() < MOST_EDGES {
            self.roots.push(edge);
        }
    }

    /// Returns the numbers of blocks, of references in them, and of others.
    pub fn counts(&self) -> (u64, u64, u64) {
        (self.graph.blocks.len() as u64, self.edges, self.roots.len() as u64)
    }

    /// Returns the graph, without references whose numbers are out of range, and their number.
    pub fn finish(self, regions: Vec<RootRegion>) -> (Graph, u64) {
        let GraphBuilder { mut graph, roots, mut extents, mut bad, .. } = self;
        // Nothing is the neighbor of what begins the regions.
        extents.next(Edge { source: u64::MAX, inside: 1, ..Edge::default() });
        let count = graph.blocks.len();
        if let Some(cut) = graph.starts.get(count).copied() {
            bad += (graph.references.len() - cut as usize) as u64;
            graph.references.truncate(cut as usize);
        }
        graph.starts.resize(count + 1, graph.references.len() as u32);
        bad += graph.remove_bad_targets();
        graph.regions = regions;
        graph.offsets.retain(|edge| edge.source.max(edge.target) < count as u64);
        graph.has_marks = graph.offsets.iter().any(|edge| edge.inside == LOOKED_FOR);
        graph.offsets.sort_by_key(|edge| (edge.target, edge.inside != LOOKED_FOR));
        for edge in roots {
            let region = usize::try_from(edge.source).ok().and_then(|number| graph.regions.get(number));
            let Some(region) = region.filter(|_| edge.target < count as u64) else {
                bad += 1;
                continue;
            };
            let address = region.start.next_multiple_of(8).saturating_add(edge.offset);
            extents.next(edge);
            let (region, target) = (edge.source as u32, edge.target as u32);
            graph.roots.push(Root { region, address, target, inside: edge.inside });
        }
        graph.roots.sort_by_key(|root| root.region);
        graph.used = extents.finish(&graph.blocks);
        (graph, bad)
    }
}

/// Up to where blocks are used: two neighbor words lead to the start of a block and into it, as
/// those of a std::vector lead to its elements and behind the last one.
#[derive(Debug)]
struct Extents {
    last: Edge,
    /// Offsets in bytes. Of several pairs the one that leads farthest counts.
    used: FxHashMap<u32, u32>,
    /// Offsets to which a third word leads, the nearest one of each block: a vector's memory ends there.
    capacities: FxHashMap<u32, u32>,
    /// Whether the last two words were such a pair.
    has_pair: bool,
    /// A bit for each block that a word alone leads to: it may use all of it.
    alone: Vec<u64>,
}

impl Default for Extents {
    fn default() -> Self {
        // Of no block's start.
        let last = Edge { source: u64::MAX, inside: 1, ..Edge::default() };
        let (used, capacities) = Default::default();
        Extents { last, used, capacities, has_pair: false, alone: Vec::new() }
    }
}

impl Extents {
    /// Takes the next edge of the blocks, or of the regions.
    fn next(&mut self, edge: Edge) {
        let last = std::mem::replace(&mut self.last, edge);
        let is_neighbor = (last.source, last.offset.wrapping_add(8)) == (edge.source, edge.offset);
        let had_pair = std::mem::take(&mut self.has_pair);
        let Ok(target) = u32::try_from(last.target) else { return };
        let inside = u32::try_from(edge.inside).unwrap_or(u32::MAX);
        let is_into_same = is_neighbor && last.target == edge.target && inside > 0;
        if had_pair && is_into_same && edge.inside >= last.inside {
            let known = self.capacities.entry(target).or_insert(inside);
            *known = inside.min(*known);
        }
        if last.inside != 0 {
            return;
        }
        if is_into_same {
            let known = self.used.entry(target).or_default();
            *known = inside.max(*known);
            self.has_pair = true;
        } else {
            let words = (target as usize / 64 + 1).max(self.alone.len());
            self.alone.resize(words, 0);
            set_bit(&mut self.alone, target);
        }
    }

    fn finish(mut self, blocks: &Blocks) -> FxHashMap<u32, u32> {
        self.next(Edge { source: u64::MAX, ..Edge::default() });
        // A block that goes on behind a vector's memory is not its own, but that of an arena.
        let is_its = |block: u32| {
            self.capacities.get(&block).is_none_or(|capacity| u64::from(*capacity) >= blocks.get(block).size)
        };
        self.used.retain(|block, _| !bit(&self.alone, *block) && is_its(*block));
        self.used
    }
}

/// Visits blocks in rounds, so that the nearest ones come first: what a visit adds is for the next round.
pub(super) fn in_rounds(next: &mut Vec<u32>, mut visit: impl FnMut(u32, &mut Vec<u32>)) {
    let mut now = Vec::new();
    while !next.is_empty() {
        std::mem::swap(&mut now, next);
        for block in now.drain(..) {
            visit(block, next);
        }
    }
}

impl Graph {
    /// Makes a graph of blocks. Returns the number of edges that were left out, too.
    #[cfg(test)]
    pub fn new(
        blocks: Vec<ReferenceBlock>,
        regions: Vec<RootRegion>,
        edges: Vec<Edge>,
        roots: impl Iterator<Item = Edge>,
    ) -> (Graph, u64) {
        let mut builder = GraphBuilder::default();
        blocks.iter().for_each(|block| builder.blocks().push(block));
        edges.into_iter().for_each(|edge| builder.edge(edge));
        roots.for_each(|edge| builder.root(edge));
        builder.finish(regions)
    }

    /// Removes references to blocks that are not there, and returns their number.
    fn remove_bad_targets(&mut self) -> u64 {
        let count = self.blocks.len();
        let bad = self.references.iter().filter(|reference| reference.target as usize >= count).count();
        if bad > 0 {
            let all = std::mem::take(&mut self.references);
            let starts = std::mem::take(&mut self.starts);
            self.starts.push(0);
            for range in starts.windows(2) {
                let of_block = &all[range[0] as usize..range[1] as usize];
                self.references.extend(of_block.iter().filter(|reference| (reference.target as usize) < count));
                self.starts.push(self.references.len() as u32);
            }
        }
        bad as u64
    }

    /// Returns a block.
    ///
    /// # Panics
    /// Panics if there is none with this number.
    pub fn block(&self, number: u32) -> ReferenceBlock {
        self.blocks.get(number)
    }

    pub fn references(&self, block: u32) -> &[Reference] {
        let range = |number: usize| self.starts.get(number).map_or(0, |start| *start as usize);
        self.references.get(range(block as usize)..range(block as usize + 1)).unwrap_or_default()
    }

    /// Returns the words that may be offsets of a block, or `None` if such words were not looked for,
    /// since no address leads to very many blocks.
    pub fn offsets_of(&self, block: u32) -> Option<&[Edge]> {
        let from = self.offsets.partition_point(|edge| edge.target < u64::from(block));
        let length = self.offsets[from..].partition_point(|edge| edge.target == u64::from(block));
        let offsets = &self.offsets[from..from + length];
        match offsets.split_first() {
            Some((Edge { inside: LOOKED_FOR, .. }, rest)) => Some(rest),
            _ => (!self.has_marks).then_some(offsets),
        }
    }

    /// Returns the references in a block that are not doubtful.
    pub fn sure_references(&self, block: u32) -> &[Reference] {
        let all = self.references(block);
        if !bit(&self.doubtful, block) {
            return all;
        }
        let used = self.used.get(&block).map_or_else(|| self.block(block).size, |used| u64::from(*used));
        &all[..all.partition_point(|reference| reference.end() <= used)]
    }

    /// Notes which words are doubtful: all of a text, those of the elements of a vector that it does
    /// not have, and those that do not lie in what was requested.
    pub fn doubt(&mut self, is_text: impl Fn(u32) -> bool, is_vector: impl Fn(u32) -> bool) {
        self.used.retain(|block, _| is_vector(*block));
        self.doubtful = vec![0; self.blocks.len().div_ceil(64)];
        for (number, block) in (0..).zip(self.blocks.iter()) {
            let Some(end) = self.references(number).last().map(|last| last.end()) else { continue };
            if is_text(number) {
                self.used.insert(number, 0);
            }
            if end > block.size || self.used.contains_key(&number) {
                set_bit(&mut self.doubtful, number);
            }
        }
    }

    /// Returns the number of references in blocks.
    pub fn reference_count(&self) -> usize {
        self.references.len()
    }

    /// Returns the number of the block that contains an address.
    pub fn at(&self, address: u64) -> Option<u32> {
        self.blocks.at(address)
    }

    /// Visits each block that a root leads to, nearer ones before others, with what leads to it and
    /// whether that is sure. Those that only doubtful words lead to come last.
    pub fn walk(&self, mut visit: impl FnMut(u32, Via, bool)) {
        let mut seen = vec![0u64; self.blocks.len().div_ceil(64)];
        let mut next = Vec::new();
        let mut first = 0u32;
        // Regions are in order of their kinds.
        for roots in self.roots.chunk_by(|a, b| self.kind(a) == self.kind(b)) {
            for (number, root) in (first..).zip(roots) {
                if set_bit(&mut seen, root.target) {
                    visit(root.target, Via::Root(number), true);
                    next.push(root.target);
                }
            }
            first += roots.len() as u32;
            self.spread(&mut next, &mut seen, true, &mut visit);
        }
        let sure = seen.clone();
        for (group, bits) in (0..).zip(&self.doubtful) {
            let mut both = bits & sure.get(group as usize).copied().unwrap_or(0);
            while both != 0 {
                let block = group * u64::BITS + both.trailing_zeros();
                both &= both - 1;
                for reference in &self.references(block)[self.sure_references(block).len()..] {
                    if set_bit(&mut seen, reference.target) {
                        visit(reference.target, Via::Block { block, word: reference.word() }, false);
                        next.push(reference.target);
                    }
                }
            }
        }
        self.spread(&mut next, &mut seen, false, &mut visit);
    }

    fn spread(&self, next: &mut Vec<u32>, seen: &mut [u64], is_sure: bool, visit: &mut impl FnMut(u32, Via, bool)) {
        in_rounds(next, |block, next| {
            let references = if is_sure { self.sure_references(block) } else { self.references(block) };
            for reference in references {
                if set_bit(seen, reference.target) {
                    visit(reference.target, Via::Block { block, word: reference.word() }, is_sure);
                    next.push(reference.target);
                }
            }
        });
    }

    fn kind(&self, root: &Root) -> u8 {
        self.regions.get(root.region as usize).map_or(0, |region| region.kind)
    }
}

fn bit(bits: &[u64], number: u32) -> bool {
    bits.get(number as usize / 64).is_some_and(|bits| bits >> (number % 64) & 1 != 0)
}

/// Sets a bit. Returns whether it was 0.
fn set_bit(bits: &mut [u64], number: u32) -> bool {
    let (word, bit) = (&mut bits[number as usize / 64], 1 << (number % 64));
    let is_new = *word & bit == 0;
    *word |= bit;
    is_new
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

    fn walk(graph: &Graph) -> Vec<(u32, Via, bool)> {
        let mut found = Vec::new();
        graph.walk(|block, via, is_sure| found.push((block, via, is_sure)));
        found
    }

    /// The words behind the last element of a vector, and all words of a text, are what was there
    /// before: a block that only they lead to is not held for sure.
    #[test]
    fn unused_memory_of_vectors_and_texts_is_doubtful() {
        let edge = |source, word: u64, target, inside| Edge { source, offset: 8 * word, target, inside };
        let blocks =
            (0..8u64).map(|n| ReferenceBlock { address: 0x1000 + 64 * n, size: 64, usable: 64, ..Default::default() });
        // Block 0 has a vector: its elements are in block 1, of which two of eight words are used. Of
        // a text in block 2 no word counts. Block 6 is what a doubtful word leads to, and leads on.
        let edges = vec![
            edge(0, 1, 1, 0),
            edge(0, 2, 1, 16),
            edge(0, 3, 1, 64),
            edge(0, 5, 2, 0),
            edge(1, 0, 3, 0),
            edge(1, 1, 4, 0),
            edge(1, 2, 5, 0),
            edge(2, 0, 6, 0),
            edge(2, 1, 3, 0),
            edge(6, 0, 7, 0),
        ];
        let region = RootRegion { start: 0x10_0000, length: 4096, kind: ROOT_DATA, name: 0, thread: 0 };
        let (mut graph, bad) =
            Graph::new(blocks.collect(), vec![region.clone()], edges, [edge(0, 0, 0, 0)].into_iter());
        assert_eq!(bad, 0);
        let sure =
            |graph: &Graph| walk(graph).into_iter().map(|(block, _, is_sure)| (block, is_sure)).collect::<Vec<_>>();
        assert!(sure(&graph).iter().all(|(_, is_sure)| *is_sure));
        graph.doubt(|block| block == 2, |block| block == 1);
        assert_eq!(
            sure(&graph),
            [(0, true), (1, true), (2, true), (3, true), (4, true), (5, false), (6, false), (7, false)]
        );
        // Nor is what lies behind the bytes that were requested, not even a word of which some do.
        let blocks = [(64, 72), (20, 24), (16, 16), (16, 16), (16, 16)].into_iter().enumerate();
        let blocks = blocks.map(|(n, (size, usable))| {
            let address = 0x1000 + 96 * n as u64;
            ReferenceBlock { address, size, usable, ..Default::default() }
        });
        let edges = vec![edge(0, 7, 1, 0), edge(0, 8, 2, 0), edge(1, 1, 3, 0), edge(1, 2, 4, 0)];
        let (mut graph, _) = Graph::new(blocks.collect(), vec![region.clone()], edges, [edge(0, 0, 0, 0)].into_iter());
        graph.doubt(|_| false, |_| false);
        assert_eq!(sure(&graph), [(0, true), (1, true), (3, true), (2, false), (4, false)]);
        // Another pair of words that leads farther is another look at the same elements.
        let (mut graph, _) = {
            let blocks = (0..6u64).map(|n| ReferenceBlock {
                address: 0x1000 + 64 * n,
                size: 64,
                usable: 64,
                ..Default::default()
            });
            let edges = vec![edge(0, 0, 1, 0), edge(0, 1, 1, 8), edge(1, 1, 2, 0), edge(1, 3, 3, 0)];
            let roots = [edge(0, 0, 0, 0), edge(0, 1, 1, 0), edge(0, 2, 1, 16)];
            Graph::new(blocks.collect(), vec![region.clone()], edges, roots.into_iter())
        };
        graph.doubt(|_| false, |_| true);
        assert_eq!(sure(&graph), [(0, true), (1, true), (2, true), (3, false)]);
        // A vector's memory that ends before its block is a part of an arena.
        let edges = vec![edge(0, 0, 1, 0), edge(0, 1, 1, 8), edge(0, 2, 1, 56), edge(1, 1, 2, 0)];
        let blocks =
            (0..4u64).map(|n| ReferenceBlock { address: 0x1000 + 64 * n, size: 64, usable: 64, ..Default::default() });
        let (mut graph, _) = Graph::new(blocks.collect(), vec![region.clone()], edges, [edge(0, 0, 0, 0)].into_iter());
        graph.doubt(|_| false, |_| true);
        assert!(sure(&graph).iter().all(|(_, is_sure)| *is_sure));
        // Whoever knows its start alone may know more elements.
        let blocks =
            (0..4u64).map(|n| ReferenceBlock { address: 0x1000 + 64 * n, size: 64, usable: 64, ..Default::default() });
        let edges = vec![edge(0, 0, 1, 0), edge(0, 1, 1, 8), edge(0, 3, 1, 0), edge(1, 1, 2, 0)];
        let (mut graph, _) = Graph::new(blocks.collect(), vec![region], edges, [edge(0, 0, 0, 0)].into_iter());
        graph.doubt(|_| false, |_| true);
        assert!(sure(&graph).iter().all(|(_, is_sure)| *is_sure));
    }

    #[test]
    fn data_comes_before_stacks_even_if_it_is_farther() {
        // The stack has the word 3 itself, and the data a chain to it.
        let graph = graph(5, &[(0, 1), (1, 2), (2, 3), (3, 4)], &[(0, 0), (1, 3)]);
        let by = |block| Via::Block { block, word: 0 };
        assert_eq!(
            walk(&graph),
            [(0, Via::Root(0), true), (1, by(0), true), (2, by(1), true), (3, by(2), true), (4, by(3), true)]
        );
        let graph = self::graph(5, &[(0, 1), (1, 2), (2, 3), (3, 4)], &[(1, 3)]);
        assert_eq!(walk(&graph), [(3, Via::Root(0), true), (4, by(3), true)]);
    }

    #[test]
    fn edges_out_of_range_are_counted() {
        let edge = |source, target| Edge { source, offset: 0, target, inside: 0 };
        let blocks = vec![ReferenceBlock::default()];
        let (graph, bad) =
            Graph::new(blocks, Vec::new(), vec![edge(0, 1), edge(0, 0), edge(7, 0)], [edge(0, 0)].into_iter());
        assert_eq!((graph.reference_count(), graph.roots.len(), bad), (1, 0, 3));
    }
}

//! The call graph: functions (or call sites), and the amounts that were allocated through each
//! call.

use super::cells::Figures;
use super::sites::Sites;
use heaptape_formats::mptl::Site;
use std::collections::{BTreeMap, HashMap};

/// A function with its edges, in the order in which the stacks introduced them.
#[derive(Debug)]
pub(super) struct Vertex<'a> {
    /// A site of the function. It provides the name.
    pub site: &'a Site,
    /// Indexes of the edges from callers, the edge from [`End::Outside`] included.
    pub above: Vec<usize>,
    /// Indexes of the edges to callees, the edge to [`End::Outside`] excluded.
    pub below: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum End {
    /// A function, by its index in [`Graph::vertices`].
    Vertex(usize),
    /// The outside of the graph: the caller of the outermost functions, or the allocator.
    Outside,
}

/// A call from one function to another, and everything that was allocated through it.
#[derive(Debug)]
pub(super) struct Edge {
    pub caller: End,
    /// End at the called function.
    pub callee: End,
    /// The amounts allocated through the call.
    pub figures: Figures,
    /// Whether a stack reached the caller a second time through this edge.
    pub in_cycle: bool,
}

/// The call graph of a profile.
#[derive(Debug, Default)]
pub(super) struct Graph<'a> {
    /// The vertices, in mprof's numbering.
    pub vertices: Vec<Vertex<'a>>,
    /// The edges, in the order in which the stacks first contained them.
    pub edges: Vec<Edge>,
    /// Indexes of the edges from [`End::Outside`] to the outermost functions.
    pub roots: Vec<usize>,
}

impl<'a> Graph<'a> {
    /// Builds the graph from all sites that allocated.
    pub(super) fn new(sites: &Sites<'a>) -> Graph<'a> {
        let (vertices, vertex_at) = vertices(sites);
        let mut graph = Graph { vertices, ..Graph::default() };
        let mut edge_of: HashMap<(End, End), usize> = HashMap::new();
        // For each vertex, the last stack that contained it; stacks are numbered from 1.
        let mut last_stack = vec![0; graph.vertices.len()];
        for (stack, (index, figures)) in (1usize..).zip(sites.allocating()) {
            let mut callee = End::Outside;
            for frame in sites.stack(index) {
                let vertex = vertex_at[frame];
                let edge = graph.edge(&mut edge_of, End::Vertex(vertex), callee);
                if last_stack[vertex] == stack {
                    // The stack was already counted at the inner occurrence.
                    graph.edges[edge].in_cycle = true;
                } else {
                    graph.edges[edge].figures += &figures;
                }
                last_stack[vertex] = stack;
                callee = End::Vertex(vertex);
            }
            let edge = graph.edge(&mut edge_of, End::Outside, callee);
            graph.edges[edge].figures += &figures;
        }
        graph
    }

    /// Returns the index of the edge between two ends. Creates the edge on first use.
    fn edge(&mut self, edge_of: &mut HashMap<(End, End), usize>, caller: End, callee: End) -> usize {
        *edge_of.entry((caller, callee)).or_insert_with(|| {
            let edge = self.edges.len();
            self.edges.push(Edge { caller, callee, figures: Figures::default(), in_cycle: false });
            match caller {
                End::Vertex(vertex) => self.vertices[vertex].below.push(edge),
                End::Outside => self.roots.push(edge),
            }
            if let End::Vertex(vertex) = callee {
                self.vertices[vertex].above.push(edge);
            }
            edge
        })
    }
}

/// Returns the functions that occur in some stack, in mprof's order, and for each site the index of
/// its vertex.
///
/// mprof keeps symbol numbers, and the addresses of frames without a symbol, in one tree and
/// numbers its nodes in order. A vertex has the name of the first frame that introduced it.
fn vertices<'a>(sites: &Sites<'a>) -> (Vec<Vertex<'a>>, Vec<usize>) {
    let mut vertex_of: BTreeMap<u64, Vertex> = BTreeMap::new();
    let mut reached = vec![false; sites.profile.sites.len()];
    for (index, _) in sites.allocating() {
        for frame in sites.stack(index) {
            if std::mem::replace(&mut reached[frame], true) {
                break;
            }
            let site = sites.site(frame);
            let vertex = || Vertex { site, above: Vec::new(), below: Vec::new() };
            vertex_of.entry(sites.identity(site).key()).or_insert_with(vertex);
        }
    }
    let numbers: HashMap<u64, usize> = vertex_of.keys().copied().zip(0..).collect();
    let number = |site| numbers.get(&sites.identity(site).key()).copied().unwrap_or_default();
    (vertex_of.into_values().collect(), sites.profile.sites.iter().map(number).collect())
}

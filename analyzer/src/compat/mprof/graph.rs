//! The call graph: functions (or call sites), and what was allocated through each call.

use super::cells::Figures;
use super::sites::Sites;
use heaptape_formats::mptl::Site;
use std::collections::{BTreeMap, HashMap};

/// A function, and its edges in the order in which stacks made them.
#[derive(Debug)]
pub struct Vertex<'a> {
    /// A site that stands for it.
    pub site: &'a Site,
    /// Edges from callers; those from outside have none.
    pub above: Vec<usize>,
    /// Edges to callees.
    pub below: Vec<usize>,
}

/// The end of an edge. Roots are called by nobody, and what allocates calls the allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// A function, by its place in [`Graph::vertices`].
    Vertex(usize),
    /// Outside: above the roots, and below what allocates.
    Outside,
}

/// A call, and all that was allocated through it.
#[derive(Debug)]
pub struct Edge {
    pub caller: End,
    pub callee: End,
    pub figures: Figures,
    /// A stack reached this edge's caller a second time through it.
    pub in_cycle: bool,
}

/// Vertices in the order in which mprof numbers them, edges in the order in which stacks first took them.
#[derive(Debug, Default)]
pub struct Graph<'a> {
    pub vertices: Vec<Vertex<'a>>,
    pub edges: Vec<Edge>,
    /// Edges from outside to the outermost functions.
    pub roots: Vec<usize>,
}

impl<'a> Graph<'a> {
    pub fn new(sites: &Sites<'a>) -> Graph<'a> {
        let (vertices, vertex_at) = vertices(sites);
        let mut graph = Graph { vertices, ..Graph::default() };
        let mut edge_of: HashMap<(End, End), usize> = HashMap::new();
        // The stack that last passed through a vertex, from 1.
        let mut passed = vec![0; graph.vertices.len()];
        for (stack, (place, figures)) in (1usize..).zip(sites.allocating()) {
            let mut callee = End::Outside;
            for frame in sites.stack(place) {
                let vertex = vertex_at[frame];
                let edge = graph.edge(&mut edge_of, End::Vertex(vertex), callee);
                if passed[vertex] == stack {
                    // The stack was counted on its first pass, further in.
                    graph.edges[edge].in_cycle = true;
                } else {
                    graph.edges[edge].figures += &figures;
                }
                passed[vertex] = stack;
                callee = End::Vertex(vertex);
            }
            let edge = graph.edge(&mut edge_of, End::Outside, callee);
            graph.edges[edge].figures += &figures;
        }
        graph
    }

    /// The edge between two ends, made on first use.
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

/// The functions that some stack passes through, in mprof's order, and the vertex of each site (by place).
///
/// mprof keeps symbol numbers, and the addresses of frames without a symbol, in one tree, and numbers its nodes in order. A
/// vertex has the name of the frame that a stack reached first.
fn vertices<'a>(sites: &Sites<'a>) -> (Vec<Vertex<'a>>, Vec<usize>) {
    let mut vertex_of: BTreeMap<u64, Vertex> = BTreeMap::new();
    let mut reached = vec![false; sites.profile.sites.len()];
    for (place, _) in sites.allocating() {
        for frame in sites.stack(place) {
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

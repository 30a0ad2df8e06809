//! The call graph: functions (or call sites), and what was allocated through each call.

use super::cells::Figures;
use super::sites::{Identity, Sites};
use heaptape_formats::mptl::Site;
use std::collections::HashMap;

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
    /// Caller and callee call each other, directly or through others.
    pub in_cycle: bool,
}

/// Vertices in address order, edges in order of appearance.
#[derive(Debug, Default)]
pub struct Graph<'a> {
    pub vertices: Vec<Vertex<'a>>,
    pub edges: Vec<Edge>,
    /// Edges from outside to the outermost functions.
    pub roots: Vec<usize>,
}

impl<'a> Graph<'a> {
    pub fn new(sites: &Sites<'a>) -> Graph<'a> {
        let mut graph = Graph::default();
        let mut vertex_of: HashMap<Identity, usize> = HashMap::new();
        for site in sites.walk() {
            vertex_of.entry(sites.identity(site)).or_insert_with(|| {
                graph.vertices.push(Vertex { site, above: Vec::new(), below: Vec::new() });
                graph.vertices.len() - 1
            });
        }
        let mut edge_of: HashMap<(End, End), usize> = HashMap::new();
        // The stack that last passed through a vertex, from 1.
        let mut passed = vec![0; graph.vertices.len()];
        for ((site, figures), stack) in sites.allocating().zip(1usize..) {
            let mut callee = End::Outside;
            for frame in sites.stack(site) {
                let vertex = vertex_of[&sites.identity(frame)];
                graph.pass(&mut edge_of, End::Vertex(vertex), callee, (passed[vertex] != stack).then_some(&figures));
                passed[vertex] = stack;
                callee = End::Vertex(vertex);
            }
            graph.pass(&mut edge_of, End::Outside, callee, Some(&figures));
        }
        graph.mark_cycles();
        graph
    }

    /// Adds to an edge. A stack that passes through a function again adds nothing to that call: it was counted further in.
    fn pass(&mut self, edge_of: &mut HashMap<(End, End), usize>, caller: End, callee: End, figures: Option<&Figures>) {
        let edge = *edge_of.entry((caller, callee)).or_insert_with(|| {
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
        });
        if let Some(figures) = figures {
            self.edges[edge].figures += figures;
        }
    }

    /// An edge is part of a cycle when both its ends are in one strongly connected component (Tarjan, without recursion).
    fn mark_cycles(&mut self) {
        const UNSEEN: usize = usize::MAX;
        let count = self.vertices.len();
        let (mut number, mut low, mut component) = (vec![UNSEEN; count], vec![0; count], vec![UNSEEN; count]);
        let (mut open, mut next, mut components) = (Vec::new(), 0, 0);
        for root in 0..count {
            if number[root] != UNSEEN {
                continue;
            }
            let mut path = vec![(root, 0)];
            while let Some((vertex, edge)) = path.pop() {
                if edge == 0 {
                    number[vertex] = next;
                    low[vertex] = next;
                    next += 1;
                    open.push(vertex);
                }
                match self.vertices[vertex].below.get(edge).map(|&edge| self.edges[edge].callee) {
                    Some(callee) => {
                        path.push((vertex, edge + 1));
                        if let End::Vertex(callee) = callee {
                            if number[callee] == UNSEEN {
                                path.push((callee, 0));
                            } else if component[callee] == UNSEEN {
                                low[vertex] = low[vertex].min(number[callee]);
                            }
                        }
                    }
                    None => {
                        if low[vertex] == number[vertex] {
                            while let Some(member) = open.pop() {
                                component[member] = components;
                                if member == vertex {
                                    break;
                                }
                            }
                            components += 1;
                        }
                        if let Some(&(caller, _)) = path.last() {
                            low[caller] = low[caller].min(low[vertex]);
                        }
                    }
                }
            }
        }
        for edge in &mut self.edges {
            edge.in_cycle = match (edge.caller, edge.callee) {
                (End::Vertex(caller), End::Vertex(callee)) => component[caller] == component[callee],
                _ => false,
            };
        }
    }
}

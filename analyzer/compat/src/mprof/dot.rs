//! The call graph as a Graphviz digraph.

use super::Options;
use super::graph::{Edge, End, Graph};
use super::sites::Sites;
use heaptape_analyzer::text::clean;
use std::io::{self, Write};

/// Prints the call graph as a digraph of Graphviz.
///
/// # Errors
/// Returns an error if writing to `out` fails.
pub(super) fn print(sites: &Sites, options: &Options, source: &str, out: &mut dyn Write) -> io::Result<()> {
    let graph = Graph::new(sites);
    let title = if options.leaks { "memory leak call graph" } else { "allocation call graph" };
    // The comment must not end inside the name.
    let source = clean(source).replace("*/", "* /");
    write!(out, "/* produced by mprof 1.3 from {source} */\n\ndigraph \"{title}\"\n{{\n")?;
    let label = |end: End, outside: &str| match end {
        End::Vertex(vertex) => {
            sites.name(graph.vertices[vertex].site).to_string().replace('\\', "\\\\").replace('"', "\\\"")
        }
        End::Outside => outside.to_string(),
    };
    let mut print_edge = |edge: &Edge| -> io::Result<()> {
        let figures = if options.leaks { &edge.figures.unfreed } else { &edge.figures.allocated };
        let amount = figures.all().get(options.counts);
        if amount == 0 && options.leaks {
            return Ok(());
        }
        let style = if edge.in_cycle { ", style = dotted" } else { "" };
        let (caller, callee) = (label(edge.caller, "START"), label(edge.callee, "ALLOC"));
        writeln!(out, "    \"{caller}\" -> \"{callee}\" [label = \"{amount}\"{style}];")
    };
    // Depth first; each edge is followed once, immediately after it is printed. A path that returns
    // to a function continues with the remaining edges of that function.
    let mut printed = vec![0; graph.vertices.len()];
    for &root in &graph.roots {
        print_edge(&graph.edges[root])?;
        let mut path = vec![graph.edges[root].callee];
        while let Some(&end) = path.last() {
            let below = match end {
                End::Vertex(vertex) => {
                    printed[vertex] += 1;
                    graph.vertices[vertex].below.get(printed[vertex] - 1)
                }
                End::Outside => None,
            };
            match below.map(|&edge| &graph.edges[edge]) {
                Some(edge) => {
                    print_edge(edge)?;
                    path.push(edge.callee);
                }
                None => {
                    path.pop();
                }
            }
        }
    }
    writeln!(out, "}}")
}

//! The call graph as a Graphviz digraph.

use super::Options;
use super::graph::{End, Graph};
use super::sites::Sites;
use std::io::{self, Write};

pub fn print(sites: &Sites, options: &Options, source: &str, out: &mut dyn Write) -> io::Result<()> {
    let graph = Graph::new(sites);
    let title = if options.leaks { "memory leak call graph" } else { "allocation call graph" };
    // The comment must not end inside the name.
    let source = source.replace("*/", "* /");
    write!(out, "/* produced by mprof 1.3 from {source} */\n\ndigraph \"{title}\"\n{{\n")?;
    let label = |end: End, outside: &str| match end {
        End::Vertex(vertex) => {
            sites.name(graph.vertices[vertex].site).to_string().replace('\\', "\\\\").replace('"', "\\\"")
        }
        End::Outside => outside.to_string(),
    };
    let mut entered = vec![false; graph.vertices.len()];
    // Edges still to print, the next one last: a function's edges come right behind the first one that leads to it.
    let mut todo: Vec<usize> = graph.roots.iter().rev().copied().collect();
    while let Some(at) = todo.pop() {
        let edge = &graph.edges[at];
        let figures = if options.leaks { &edge.figures.unfreed } else { &edge.figures.allocated };
        let amount = figures.all().get(options.counts);
        if amount != 0 || !options.leaks {
            let style = if edge.in_cycle { ", style = dotted" } else { "" };
            let (caller, callee) = (label(edge.caller, "START"), label(edge.callee, "ALLOC"));
            writeln!(out, "    \"{caller}\" -> \"{callee}\" [label = \"{amount}\"{style}];")?;
        }
        if let End::Vertex(vertex) = edge.callee
            && !std::mem::replace(&mut entered[vertex], true)
        {
            todo.extend(graph.vertices[vertex].below.iter().rev());
        }
    }
    writeln!(out, "}}")
}

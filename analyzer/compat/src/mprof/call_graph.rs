//! The table ALLOCATION CALL GRAPH: each function with its callers above and its callees below.

use super::cells::Classes;
use super::graph::{Edge, End, Graph};
use super::sites::Sites;
use std::io::{self, Write};

/// Prints the table of the call graph.
///
/// # Errors
/// Returns an error if writing to `out` fails.
pub(super) fn print(sites: &Sites, counts: bool, out: &mut dyn Write) -> io::Result<()> {
    let graph = Graph::new(sites);
    let number = graph.vertices.len();
    write!(
        out,
        "                             ALLOCATION CALL GRAPH\n\n                            (number of vertices: {number})\n\n"
    )?;
    out.write_all(if counts {
        b"          allocated             unfreed\n\
        \x20    -------------------  -------------------\n\
        index count   s  m  l  x   count   s  m  l  x  function\n"
    } else {
        b"           allocated               unfreed\n\
        \x20    ---------------------  ---------------------\n\
        index   bytes   s  m  l  x     bytes   s  m  l  x  function\n"
    })?;
    let figures_width = if counts { 45 } else { 49 };
    let print_edge = |out: &mut dyn Write, edge: &Edge, end: End| -> io::Result<()> {
        let End::Vertex(vertex) = end else { return Ok(()) };
        out.write_all(if edge.in_cycle { b" (*) " } else { b"     " })?;
        print_amount(&edge.figures.allocated, counts, out)?;
        out.write_all(b"  ")?;
        print_amount(&edge.figures.unfreed, counts, out)?;
        writeln!(out, "      {} [{}]", sites.name(graph.vertices[vertex].site), vertex + 1)
    };
    for (index, vertex) in graph.vertices.iter().enumerate() {
        writeln!(out, "{:-<figures_width$}", "")?;
        for &edge in &vertex.above {
            print_edge(out, &graph.edges[edge], graph.edges[edge].caller)?;
        }
        let index = format!("[{}]", index + 1);
        writeln!(out, "{index:figures_width$}  {} {index}", sites.name(vertex.site))?;
        for &edge in &vertex.below {
            print_edge(out, &graph.edges[edge], graph.edges[edge].callee)?;
        }
    }
    Ok(())
}

/// Prints an amount and the share of each size class.
fn print_amount(classes: &Classes, counts: bool, out: &mut dyn Write) -> io::Result<()> {
    let (width, total) = (if counts { 6 } else { 8 }, classes.all().get(counts));
    write!(out, "{total:width$} {}", classes.columns(counts, total))
}

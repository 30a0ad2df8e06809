//! The call graph listing, with the callers and callees of each function, and the index of
//! functions.

use super::graph::Node;
use super::view::View;
use std::io::{Result, Write};

/// Prints the call graph.
///
/// # Errors
/// Returns an error if writing to `out` fails.
pub(super) fn print(view: &View<'_>, out: &mut dyn Write) -> Result<()> {
    let (brief, traditional) = (view.options.brief, view.options.traditional);
    if traditional {
        if !brief {
            out.write_all(include_bytes!("text/graph_bsd.txt"))?;
        }
    } else if brief {
        write!(out, "\t\t\tCall graph\n\n")?;
    } else {
        write!(out, "\t\t     Call graph (explanation follows)\n\n")?;
    }
    write!(out, "\ngranularity: each sample hit covers {} byte(s)", view.granularity())?;
    let mut total = view.graph.total;
    if total > 0.0 {
        // gprof prints "seconds" for every dimension.
        write!(out, " for {:.2}% of {:.2} seconds\n\n", 100.0 / total, view.unit(total))?;
    } else {
        write!(out, " no time propagated\n\n")?;
        total = 1.0;
    }
    if traditional {
        writeln!(out, "{:34}called/total       parents ", "")?;
        writeln!(out, "index  %time    self descendants  called+self    name    \tindex")?;
        write!(out, "{:34}called/total       children\n\n", "")?;
    } else {
        writeln!(out, "index % time    self  children    called     name")?;
    }
    let entries = Entries { view, total };
    for &index in &view.graph.entries {
        if entries.is_shown(index) {
            entries.entry(index, out)?;
        }
    }
    if !brief && !traditional {
        out.write_all(include_bytes!("text/graph.txt"))?;
    }
    Ok(())
}

struct Entries<'a> {
    view: &'a View<'a>,
    total: f64,
}

impl Entries<'_> {
    fn is_shown(&self, index: usize) -> bool {
        let node = &self.view.graph.nodes[index];
        let used = node.calls != 0 || node.self_calls != 0 || node.shown_time != 0.0 || node.shown_child_time != 0.0;
        // If lines are profiled, only functions have entries. As in gprof, lines and cycles have
        // none.
        let entry =
            !self.view.options.lines || self.view.table.symbols.get(index).is_some_and(|symbol| symbol.is_function);
        node.shown && (used || self.view.options.unused) && entry
    }

    fn entry(&self, index: usize, out: &mut dyn Write) -> Result<()> {
        let graph = &self.view.graph;
        let node = &graph.nodes[index];
        if index >= graph.symbols {
            self.primary_line(node, &format!("<cycle {} as a whole> [{}]", node.cycle, node.index), out)?;
            for &member in &node.members {
                self.member(member, out)?;
            }
        } else {
            self.callers(node, out)?;
            self.primary_line(node, &self.view.name(index), out)?;
            self.callees(node, out)?;
        }
        let line = "-----------------------------------------------";
        if self.view.options.traditional { write!(out, "\n{line}\n\n") } else { writeln!(out, "{line}") }
    }

    /// Formats the self time and the time of descendants in the columns of the style.
    fn times(&self, time: f64, child_time: f64) -> String {
        let (time, child_time) = (self.view.unit(time), self.view.unit(child_time));
        if self.view.options.traditional {
            format!("{time:7.2} {child_time:11.2}")
        } else {
            format!("{time:7.2} {child_time:7.2}")
        }
    }

    /// Returns an empty text of the same width.
    fn no_times(&self) -> &'static str {
        if self.view.options.traditional { "                   " } else { "               " }
    }

    fn callers(&self, node: &Node, out: &mut dyn Write) -> Result<()> {
        if node.callers.is_empty() {
            return writeln!(out, "{:12} {} {:15}     <spontaneous>", "", self.no_times(), "");
        }
        for &arc in &node.callers {
            let arc = &self.view.graph.arcs[arc];
            self.arc_line(arc, arc.caller, out)?;
        }
        Ok(())
    }

    fn callees(&self, node: &Node, out: &mut dyn Write) -> Result<()> {
        for &arc in &node.callees {
            let arc = &self.view.graph.arcs[arc];
            self.arc_line(arc, arc.callee, out)?;
        }
        Ok(())
    }

    /// Prints the line of a caller or callee: the time that the arc propagates, and its share of
    /// all calls.
    fn arc_line(&self, arc: &super::graph::CallArc, other: usize, out: &mut dyn Write) -> Result<()> {
        let graph = &self.view.graph;
        let name = self.view.name(other);
        if graph.is_inner(arc) {
            return writeln!(out, "{:12} {} {:7} {:7}     {name}", "", self.no_times(), arc.calls, "");
        }
        let all = graph.nodes[graph.nodes[arc.callee].head].calls;
        let times = self.times(arc.time, arc.child_time);
        writeln!(out, "{:12} {times} {:7}/{all:<7}     {name}", "", arc.calls)
    }

    /// Prints the primary line of an entry, with the index at the left.
    fn primary_line(&self, node: &Node, name: &str, out: &mut dyn Write) -> Result<()> {
        let index = format!("[{}]", node.index);
        let percent = 100.0 * (node.shown_time + node.shown_child_time) / self.total;
        write!(out, "{index:<6} {percent:5.1} {} ", self.times(node.shown_time, node.shown_child_time))?;
        if !node.members.is_empty() || node.calls > 0 || node.self_calls > 0 {
            write!(out, "{:7}", node.calls)?;
        } else {
            write!(out, "{:7}", "")?;
        }
        match node.self_calls {
            0 => writeln!(out, " {:7} {name}", ""),
            calls => writeln!(out, "+{calls:<7} {name}"),
        }
    }

    /// Prints the line of a member of a cycle.
    fn member(&self, member: usize, out: &mut dyn Write) -> Result<()> {
        let node = &self.view.graph.nodes[member];
        write!(out, "{:12} {} {:7}", "", self.times(node.shown_time, node.shown_child_time), node.calls)?;
        match node.self_calls {
            0 => write!(out, " {:7}", "")?,
            calls => write!(out, "+{calls:<7}")?,
        }
        writeln!(out, "     {}", self.view.name(member))
    }
}

/// Prints the index of functions, sorted by name, in three columns.
///
/// # Errors
/// Returns an error if writing to `out` fails.
pub(super) fn print_index(view: &View<'_>, out: &mut dyn Write) -> Result<()> {
    let graph = &view.graph;
    let traditional = view.options.traditional;
    let mut listed: Vec<usize> = (0..graph.nodes.len()).filter(|&index| view.is_listed(index)).collect();
    let name = |index: usize| view.table.symbols.get(index).map(|symbol| symbol.name.as_bytes());
    // Cycles come last. Without the first key `None` would sort first.
    listed.sort_by(|&left, &right| (name(left).is_none(), name(left)).cmp(&(name(right).is_none(), name(right))));
    write!(out, "Index by function name\n\n")?;
    let rows = listed.len().div_ceil(3);
    let width = view.options.width.saturating_sub(1) / 3 + if traditional { 0 } else { 2 };
    for row in 0..rows {
        let mut line = String::new();
        for (column, &index) in listed.iter().skip(row).step_by(rows.max(1)).enumerate() {
            let node = &graph.nodes[index];
            let number = if node.shown { format!("[{}]", node.index) } else { format!("({})", node.index) };
            let name = if index < graph.symbols { view.index_name(index) } else { format!("<cycle {}>", node.cycle) };
            if traditional {
                line += &format!("{number:>6} {name:<0$.0$}", width.saturating_sub(7));
            } else if column == 0 {
                line += &format!("{number:>6} {name}");
            } else {
                let gap = (width * column + 6).saturating_sub(line.chars().count() + number.len()).max(1);
                line += &format!("{:gap$}{number} {name}", "");
            }
        }
        writeln!(out, "{line}")?;
    }
    Ok(())
}

//! Flame graphs as SVG files with their own search and zoom, drawn by inferno. Two recordings make
//! a differential flame graph: its widths are those of the second, and its colors show the change
//! from the first.

use super::collapsed::{add, tree};
use super::tree::{Identity, Tree};
use super::{Error, Exporter, Measure, Needs, Out, Shape, Source, Totals, measure};
use crate::export::Impossible;
use crate::text::{bytes, count};
use inferno::flamegraph::{self, Options, color};
use std::str::FromStr;

/// The exporter of SVG flame graphs.
pub struct Export;

/// Frames narrower than this fraction of the graph are not drawn separately: a tenth of a pixel of
/// 1,200.
const NARROWEST: u64 = 12_000;

impl Exporter for Export {
    fn name(&self) -> &'static str {
        "svg"
    }

    fn extension(&self) -> &'static str {
        "svg"
    }

    fn summary(&self) -> &'static str {
        "flame graph for any browser; of two recordings, what changed"
    }

    fn needs(&self) -> Needs {
        Needs { events: false, shape: Shape::One }
    }

    fn write(&self, source: &mut Source<'_>, out: &mut Out) -> Result<(), Error> {
        let what = measure::one(source, out)?;
        let (tree, differs) = match source.recordings.len() {
            2 => (difference(source, what), true),
            _ => (tree(source, &[what], Identity::Function), false),
        };
        let totals: Vec<u64> = (0..tree.columns.len()).map(|column| tree.inclusive(column)[0]).collect();
        let total = totals.last().copied().unwrap_or(0);
        if totals.iter().all(|&total| total == 0) {
            return Err(Impossible::NothingToDraw(what.name()).into());
        }
        let least: Vec<u64> = totals.iter().map(|total| total / NARROWEST).collect();
        let mut lines = Vec::new();
        tree.folded(&least, |line| lines.push(line.to_string()));
        let amount = if what.is_bytes() { bytes(total) } else { count(total) };
        let graph = Graph {
            title: title(source, what),
            subtitle: format!("{}: {amount}", what.help()),
            count_name: if what.is_bytes() { "bytes" } else { "blocks" },
            differs,
        };
        let drawn = draw(&lines, graph)?;
        let mut file = out.stream()?;
        file.put(&drawn)?;
        file.finish()
    }

    fn is_read_back(&self) -> bool {
        false
    }

    fn totals(&self, source: &mut Source<'_>) -> Result<Totals, Error> {
        let what = measure::usual(source);
        measure::totals(source, &[what])
    }
}

/// What is written around a flame graph.
#[derive(Clone, Debug)]
pub struct Graph {
    pub title: String,
    pub subtitle: String,
    /// The unit of the counts.
    pub count_name: &'static str,
    /// Whether each stack has two counts, before and after.
    pub differs: bool,
}

/// Draws a flame graph of collapsed stacks, a line each.
///
/// # Errors
/// Returns an error if no line has a count.
pub fn draw(lines: &[String], graph: Graph) -> Result<Vec<u8>, Error> {
    let mut options = Options::default();
    options.title = graph.title;
    options.subtitle = Some(graph.subtitle);
    options.count_name = graph.count_name.into();
    options.min_width = 0.01;
    options.no_sort = false;
    if let (false, Ok(palette)) = (graph.differs, color::Palette::from_str("mem")) {
        options.colors = palette;
    }
    let mut drawn = Vec::new();
    flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), &mut drawn)
        .map_err(|error| Error::Write("flame graph".into(), error))?;
    Ok(drawn)
}

/// Returns a tree with two columns: the first recording and the second.
fn difference(source: &mut Source<'_>, what: Measure) -> Tree {
    let mut tree = Tree::new(Identity::Function, 2);
    for (column, recording) in source.recordings.iter().enumerate() {
        for process in source.processes_of(recording) {
            add(source, process, &[(column, what)], &mut tree);
        }
    }
    tree
}

fn title(source: &Source<'_>, what: Measure) -> String {
    let name = |recording: &crate::Recording| {
        let command = recording.about.as_ref().map(|about| about.command.join(" ")).unwrap_or_default();
        let name = if command.is_empty() { recording.path.display().to_string() } else { command };
        name.chars().take(80).collect::<String>()
    };
    let names: Vec<String> = source.recordings.iter().map(name).collect();
    let between = if names.len() == 2 { " → " } else { ", " };
    crate::text::clean(&format!("{} of {}", what.name(), names.join(between))).into_owned()
}

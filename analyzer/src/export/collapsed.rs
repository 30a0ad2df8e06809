//! Collapsed stacks: lines of text, `outer;inner amount`, as Brendan Gregg's `stackcollapse`
//! scripts write them, which every flame graph tool reads.

use super::tree::{Amount, Identity, Tree};
use super::{Error, Exporter, Measure, Needs, Out, Shape, Source, Totals, measure};
use crate::unpack;
use std::path::PathBuf;

/// The exporter of collapsed stacks.
pub struct Export;

impl Exporter for Export {
    fn name(&self) -> &'static str {
        "collapsed"
    }

    fn extension(&self) -> &'static str {
        "folded"
    }

    fn summary(&self) -> &'static str {
        "collapsed stacks, a line each: for flamegraph.pl, inferno, speedscope"
    }

    fn needs(&self) -> Needs {
        Needs { events: false, shape: Shape::One }
    }

    fn write(&self, source: &mut Source<'_>, out: &mut Out) -> Result<(), Error> {
        let what = measure::one(source, out)?;
        let tree = tree(source, &[what], Identity::Function);
        let mut file = out.stream()?;
        let mut failed = None;
        tree.folded(&[0], |line| {
            if failed.is_none() {
                failed = file.put(line.as_bytes()).and_then(|()| file.put(b"\n")).err();
            }
        });
        failed.map_or(Ok(()), Err)?;
        file.finish()
    }

    fn totals(&self, source: &mut Source<'_>) -> Result<Totals, Error> {
        let what = measure::usual(source);
        measure::totals(source, &[what])
    }

    fn held(&self, source: &Source<'_>, files: &[PathBuf]) -> Result<Totals, Error> {
        let mut totals = Totals::default();
        for path in files {
            let opened = unpack::open(path)?;
            let text = String::from_utf8_lossy(&opened.bytes);
            let sum = text.lines().filter_map(|line| line.rsplit(' ').next()?.parse::<u128>().ok()).sum();
            totals.add(measure::usual(source).name(), sum);
        }
        Ok(totals)
    }
}

/// Returns the tree of all processes with a column for each measure.
pub fn tree(source: &mut Source<'_>, measures: &[Measure], identity: Identity) -> Tree {
    let mut tree = Tree::new(identity, measures.len());
    let columns: Vec<(usize, Measure)> = measures.iter().copied().enumerate().collect();
    for process in source.processes.clone() {
        add(source, process, &columns, &mut tree);
    }
    tree
}

/// Adds the measures of a process to the given columns of a tree.
pub fn add(source: &mut Source<'_>, process: &crate::Process, columns: &[(usize, Measure)], tree: &mut Tree) {
    let sums = source.sums(process);
    let ended = process.has_ended();
    let amounts: Vec<Amount> = sums
        .sites
        .iter()
        .flat_map(|row| {
            columns.iter().map(move |&(column, what)| Amount { site: row.site, column, amount: what.of(row, ended) })
        })
        .filter(|sum| sum.amount > 0)
        .collect();
    tree.add(&mut source.symbols, process, &amounts);
}

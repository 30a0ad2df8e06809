//! gprof's gmon.out, one file for each ELF object: the histogram shows what was allocated where,
//! and the arcs are in the same unit.
//!
//! Samples are at the call of the allocator, so that the sum over all files is the sum over all
//! stacks. With `through`, each object also gets what others allocate on its behalf, at its own
//! innermost frame. Of a stack, the frames in the object count, each called by the next one in it,
//! regardless of the frames in between: gprof knows one object only.
//!
//! Inclusive sums: gprof assigns a function's sum to its callers in proportion to their arcs. So
//! the count of an arc is the amount of the stacks that pass through it, counted once for each
//! stack even if a recursion passes through it repeatedly. A function that is also called from
//! outside the object gets an arc for these calls from a function that no stack passes through
//! (`_init`). Otherwise, its callers in the object would be assigned all of its sum.

use super::object_table::Table;
use super::objects::{Object, Objects};
use super::stack_tree::{Gathering, Tree};
use super::{Error, Exporter, Measure, Needs, Out, Shape, Source, Totals};
use crate::export::Impossible;
use heaptape_formats::Abi;
use heaptape_formats::gmon;

/// The exporter of gmon.out files.
pub struct Export;

impl Exporter for Export {
    fn name(&self) -> &'static str {
        "gmon"
    }

    fn extension(&self) -> &'static str {
        "gmon"
    }

    fn summary(&self) -> &'static str {
        "gprof's gmon.out, a file for each program and library"
    }

    fn needs(&self) -> Needs {
        Needs { events: false, shape: Shape::Folder }
    }

    fn write(&self, source: &mut Source<'_>, out: &mut Out) -> Result<(), Error> {
        for measure in measures(source) {
            let tables = tables(source, measure);
            for ((object, table), label) in tables.objects.iter().zip(&tables.labels) {
                if table.is_empty() {
                    continue;
                }
                let gmon = table.gmon(measure, &object.path, Abi::LE64)?;
                if let Some(scale) = gmon.1 {
                    out.note(format!("{}: sums of 2^32 and more; counted in {scale}", object.path));
                }
                let bytes = gmon::write(&gmon.0).map_err(|error| Error::Format(object.path.clone(), error))?;
                let mut file = out.file(&format!("{label}.{}.{}", measure.name(), self.extension()))?;
                file.put(&bytes)?;
                file.finish()?;
            }
            if tables.outside > 0 {
                let unit = if measure.is_bytes() { "bytes" } else { "blocks" };
                out.note(format!(
                    "{} {unit} have no stack, or one that begins in no object: no file holds them",
                    tables.outside
                ));
            }
        }
        Ok(())
    }

    fn totals(&self, source: &mut Source<'_>) -> Result<Totals, Error> {
        if source.options.through {
            return Err(Impossible::NoTotals.into());
        }
        let mut totals = Totals::default();
        for measure in measures(source) {
            for process in source.processes.clone() {
                let ended = process.has_ended();
                let sum = source.sums(process).sites.iter().map(|row| u128::from(measure.of(row, ended))).sum();
                totals.add("samples", sum);
            }
        }
        Ok(totals)
    }
}

fn measures(source: &Source<'_>) -> Vec<Measure> {
    match &source.options.what[..] {
        [] => vec![Measure::AllocBytes],
        what => what.to_vec(),
    }
}

/// Samples and arcs of all objects.
#[derive(Debug, Default)]
pub struct Tables {
    /// Objects with their samples and arcs.
    pub objects: Vec<(Object, Table)>,
    /// Names for the files of the objects.
    pub labels: Vec<String>,
    /// Amount that has no stack, or whose stack begins in no object.
    pub outside: u64,
}

/// Returns the tables of all processes together.
pub fn tables(source: &mut Source<'_>, measure: Measure) -> Tables {
    let mut objects = Objects::default();
    let mut gathering = Gathering::new(source.options.through);
    for process in source.processes.clone() {
        let sums = source.sums(process);
        let (stacks, ended) = (process.stacks(), process.has_ended());
        let frames = objects.frames(&mut source.symbols, process);
        let tree =
            Tree { parents: (1..=stacks.len() as u32).map(|number| stacks.site(number).parent).collect(), frames };
        gathering.add(&tree, sums.sites.iter().map(|row| (row.site, measure.of(row, ended))));
    }
    let outside = gathering.outside;
    let labels = objects.labels();
    let mut tables = gathering.finish();
    tables.resize_with(objects.list.len(), Table::default);
    let mut objects: Vec<(Object, Table)> = objects.list.into_iter().zip(tables).collect();
    for (object, table) in &mut objects {
        table.enter(object.unused(&mut source.symbols, |start| table.has_met(start)));
    }
    Tables { objects, labels, outside }
}

#[cfg(test)]
#[path = "gmon/tests.rs"]
mod tests;

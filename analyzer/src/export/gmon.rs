//! gprof's gmon.out, a file for each ELF object: what was allocated where as the histogram, and arcs in the same unit.
//!
//! Samples fall where the allocator was called, so that the sum over all files is the sum over all stacks; with `through` each
//! object also gets what others allocate on its behalf, at its own innermost frame. Of a stack the frames in the object
//! count, each called by the next one in it, whatever lies between: gprof knows one object only.
//!
//! Inclusive sums. gprof gives a function's sum to its callers in proportion to their arcs. So an arc's count is the amount
//! of the stacks that pass through it, counted once a stack however often a recursion passes; and a function that is also
//! called from outside the object gets an arc for that from a function that no stack passes through (`_init`), or its inner
//! callers would be given everything.

use super::objects::{Frame, Object, Objects};
use super::{Error, Exporter, Measure, Needs, Out, Shape, Source, Totals};
use crate::load::Image;
use heaptape_formats::gmon::{self, Builder, Gmon, Unit};
use heaptape_formats::{Flavour, tape::SiteSums};
use rustc_hash::{FxHashMap, FxHashSet};

/// The exporter.
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
                let gmon = table.gmon(measure, &object.path, Flavour::LE64)?;
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
            let why =
                "--through counts a stack once in each object that it passes through: there is no sum to compare with";
            return Err(Error::Impossible(why.into()));
        }
        let mut totals = Totals::default();
        for measure in measures(source) {
            for image in source.images.clone() {
                let ended = image.has_ended();
                let sum = source.sums(image).sites.iter().map(|row| u128::from(measure.of(row, ended))).sum();
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
    /// Each object with its sums.
    pub objects: Vec<(Object, Table)>,
    /// Names for their files.
    pub labels: Vec<String>,
    /// What has no stack, or begins in no object.
    pub outside: u64,
}

/// Samples and arcs of one object.
#[derive(Debug, Default)]
pub struct Table {
    /// Link-time address of the call -> end of its function and amount.
    samples: FxHashMap<u64, (u64, u64)>,
    /// Call's address and callee's start -> amount.
    arcs: FxHashMap<(u64, u64), u64>,
    /// Callee's start -> amount that came from outside the object.
    entries: FxHashMap<u64, u64>,
    /// Starts of functions on stacks.
    met: FxHashSet<u64>,
    /// Starts of functions that others of the object called.
    called: FxHashSet<u64>,
}

/// The tables of all images together.
pub fn tables(source: &mut Source<'_>, measure: Measure) -> Tables {
    let mut objects = Objects::default();
    let mut tables = Gathering { through: source.options.through, ..Gathering::default() };
    for image in source.images.clone() {
        let sums = source.sums(image);
        let frames = objects.frames(&mut source.symbols, image);
        tables.image(image, &frames, &sums.sites, measure);
    }
    let Gathering { mut tables, outside, .. } = tables;
    let labels = objects.labels();
    tables.resize_with(objects.list.len(), Table::default);
    let mut objects: Vec<(Object, Table)> = objects.list.into_iter().zip(tables).collect();
    for (object, table) in &mut objects {
        table.enter(object.unused(&mut source.symbols, |start| table.met.contains(&start)));
    }
    Tables { objects, labels, outside }
}

/// Samples and arcs in the making.
#[derive(Default)]
pub struct Gathering {
    through: bool,
    tables: Vec<Table>,
    outside: u64,
    /// Of the stack at hand: its objects, and for each the nearest frame so far.
    below: FxHashMap<usize, Frame>,
    /// And which caller and callee were met.
    pairs: FxHashSet<(usize, u64, u64)>,
}

impl Gathering {
    fn image(&mut self, image: &Image, frames: &[Option<Frame>], sums: &[SiteSums], measure: Measure) {
        let ended = image.has_ended();
        let frame = |number: u32| frames.get((number as usize).wrapping_sub(1)).copied().flatten();
        for row in sums {
            let amount = measure.of(row, ended);
            if amount > 0 {
                self.stack(image.stacks().stack(row.site).map(|(number, _)| frame(number)), amount);
            }
        }
    }

    /// The tables of stacks that have all been given, by object, without arcs from outside.
    pub fn finish(self) -> Vec<Table> {
        self.tables
    }

    /// A stack, innermost frame first.
    pub fn stack(&mut self, frames: impl Iterator<Item = Option<Frame>>, amount: u64) {
        self.below.clear();
        self.pairs.clear();
        let mut own = None;
        let mut frames = frames.peekable();
        match frames.peek() {
            Some(Some(frame)) => own = Some(frame.object),
            _ => self.outside = self.outside.saturating_add(amount),
        }
        for frame in frames.flatten() {
            if !self.through && own != Some(frame.object) {
                continue;
            }
            let most = self.tables.len().max(frame.object + 1);
            self.tables.resize_with(most, Table::default);
            let table = &mut self.tables[frame.object];
            table.met.insert(frame.start);
            match self.below.insert(frame.object, frame) {
                None => table.sample(&frame, amount),
                Some(callee) => {
                    if self.pairs.insert((frame.object, frame.start, callee.start)) {
                        table.arc(&frame, &callee, amount);
                    }
                }
            }
        }
        for (object, outermost) in self.below.drain() {
            let sum = self.tables[object].entries.entry(outermost.start).or_default();
            *sum = sum.saturating_add(amount);
        }
    }
}

impl Table {
    /// Whether nothing fell into the object.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    fn sample(&mut self, frame: &Frame, amount: u64) {
        // gprof counts in units of 2 bytes, and gives one that two functions share to the second.
        let is_shared = frame.end > 0 && frame.address | 1 >= frame.end;
        let address = if is_shared { frame.address.saturating_sub(2).max(frame.start) } else { frame.address };
        let (end, sum) = self.samples.entry(address).or_default();
        (*end, *sum) = ((*end).max(frame.end), sum.saturating_add(amount));
    }

    fn arc(&mut self, caller: &Frame, callee: &Frame, amount: u64) {
        if caller.start != callee.start {
            self.called.insert(callee.start);
        }
        let sum = self.arcs.entry((caller.address, callee.start)).or_default();
        *sum = sum.saturating_add(amount);
    }

    /// Arcs for calls from outside, where callers inside would else be given their part.
    fn enter(&mut self, from: Option<u64>) {
        let Some(from) = from else { return };
        for (&start, &amount) in self.entries.iter().filter(|(start, _)| self.called.contains(start)) {
            self.arcs.insert((from, start), amount);
        }
    }

    /// The file, and its unit where it is not the measure's own: sums too large for gprof are counted in larger ones.
    ///
    /// # Errors
    /// When even the largest unit is too small.
    pub fn gmon(&self, measure: Measure, name: &str, flavour: Flavour) -> Result<(Gmon, Option<&'static str>), Error> {
        let units: &[(&'static str, u8, u32)] = match measure.is_bytes() {
            true => &[("bytes", b'b', 0), ("KiB", b'K', 10), ("MiB", b'M', 20)],
            false => &[("blocks", b'n', 0), ("1024 blocks", b'N', 10)],
        };
        let mut refused = None;
        for &(dimension, abbreviation, shift) in units {
            let mut builder = Builder::new(flavour, Unit::counted(dimension, abbreviation));
            let scaled = |amount: u64| (amount >> shift) + u64::from(shift > 0 && amount >> (shift - 1) & 1 == 1);
            for (&address, &(end, amount)) in &self.samples {
                builder.sample(address, end, scaled(amount));
            }
            for (&(from, to), &amount) in &self.arcs {
                builder.arc(from, to, scaled(amount));
            }
            match builder.finish() {
                Ok(gmon) => return Ok((gmon, (shift > 0).then_some(dimension))),
                Err(error) => refused = Some(error),
            }
        }
        Err(match refused {
            Some(error) => Error::Format(name.to_string(), error),
            None => Error::Impossible(format!("{name}: there is no unit to count in")),
        })
    }
}

#[cfg(test)]
#[path = "gmon/tests.rs"]
mod tests;

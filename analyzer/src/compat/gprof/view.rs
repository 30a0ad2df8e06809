//! What the listings share: the profile put together, units, and how a function is named in each place.

use super::graph::{Graph, Node};
use super::options::Options;
use super::samples::{Samples, units_per_bin};
use super::specs::Selection;
use super::symbols::Table;
use crate::compat::demangle::demangle;
use crate::text::clean;
use heaptape_formats::gmon::Union;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

/// A profile ready to be printed.
pub struct View<'a> {
    /// The command line.
    pub options: &'a Options,
    /// Functions or lines.
    pub table: Table,
    /// The files' sums.
    pub union: Union,
    /// Samples a unit.
    pub rate: f64,
    /// Samples of each symbol.
    pub samples: Samples,
    /// Calls, and time passed on.
    pub graph: Graph,
    /// `-p`.
    pub flat: Selection,
    /// `-P`.
    pub no_flat: Selection,
    /// Names made readable.
    pub names: Names,
}

/// Readable names by symbol, as a call graph prints each many times.
#[derive(Default)]
pub struct Names {
    known: RefCell<HashMap<usize, Rc<str>>>,
    bytes: Cell<usize>,
}

impl Names {
    /// As much is kept; names beyond it are made again.
    const MOST_BYTES: usize = 64 << 20;

    fn get(&self, index: usize, linked: &str) -> Rc<str> {
        if let Some(name) = self.known.borrow().get(&index) {
            return name.clone();
        }
        let name: Rc<str> = demangle(linked).into();
        if self.bytes.get() + name.len() < Names::MOST_BYTES {
            self.bytes.set(self.bytes.get() + name.len());
            self.known.borrow_mut().insert(index, name.clone());
        }
        name
    }
}

impl View<'_> {
    /// A symbol's node.
    pub fn node(&self, index: usize) -> &Node {
        &self.graph.nodes[index]
    }

    /// Samples -> units of the dimension.
    pub fn unit(&self, samples: f64) -> f64 {
        if samples == 0.0 { 0.0 } else { samples / self.rate }
    }

    /// The dimension, `seconds` without histogram.
    pub fn dimension(&self) -> String {
        match &self.union.unit {
            Some(unit) => clean(&String::from_utf8_lossy(unit.dimension())).into_owned(),
            None => "seconds".to_owned(),
        }
    }

    /// Its abbreviation.
    pub fn abbreviation(&self) -> char {
        let abbrev = self.union.unit.map_or('s', |unit| char::from(unit.abbrev));
        if abbrev.is_control() { char::REPLACEMENT_CHARACTER } else { abbrev }
    }

    /// Bytes that a sample covers, as gprof says it: whole units of 2.
    pub fn granularity(&self) -> u64 {
        let units = self.union.sums.first().map_or(0.0, units_per_bin);
        if units.is_finite() { 2 * units as u64 } else { 0 }
    }

    /// Whether a function or cycle stands in the index of functions.
    pub fn is_listed(&self, index: usize) -> bool {
        let node = &self.graph.nodes[index];
        self.options.unused || !node.members.is_empty() || node.calls != 0 || node.time != 0.0
    }

    /// The name, with its line where lines are profiled.
    pub fn plain_name(&self, index: usize) -> String {
        let symbol = &self.table.symbols[index];
        let name = self.bare_name(index);
        match symbol.source {
            Some((file, line)) if self.options.lines => {
                format!("{name} ({}:{line} @ {:x})", self.path(file), symbol.address)
            }
            Some((file, line)) if self.options.file_names => format!("{name} ({}:{line})", self.path(file)),
            _ => name,
        }
    }

    fn bare_name(&self, index: usize) -> String {
        let name = &self.table.symbols[index].name;
        let plain = self.options.demangle && !self.options.traditional;
        if plain { self.names.get(index, name).to_string() } else { name.clone() }
    }

    /// The same with cycle and index; these in parentheses when there is no entry. gprof numbers no function of a file without arcs.
    pub fn name(&self, index: usize) -> String {
        let node = &self.graph.nodes[index];
        let mut name = self.plain_name(index);
        if node.cycle != 0 {
            name += &format!(" <cycle {}>", node.cycle);
        }
        if node.index != 0 && !self.union.arcs.is_empty() {
            name += &if node.shown { format!(" [{}]", node.index) } else { format!(" ({})", node.index) };
        }
        name
    }

    /// The name in the index: a static function's with its file.
    pub fn index_name(&self, index: usize) -> String {
        let symbol = &self.table.symbols[index];
        match symbol.source {
            _ if self.options.traditional => symbol.name.clone(),
            Some((file, _)) if symbol.local && !self.options.lines => {
                format!("{} ({})", self.plain_name(index), self.path(file))
            }
            _ => self.plain_name(index),
        }
    }

    /// A source file as names show it.
    fn path(&self, file: usize) -> &str {
        let path = &*self.table.files[file];
        if self.options.paths { path } else { path.rsplit('/').next().unwrap_or(path) }
    }
}

/// A number as C's `%g` prints it.
pub fn g(value: f64) -> String {
    if !value.is_finite() || value == 0.0 {
        return format!("{value}");
    }
    let exponent = format!("{value:.5e}").rsplit('e').next().and_then(|text| text.parse().ok()).unwrap_or(0i32);
    let trim = |text: String| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    };
    if (-4..6).contains(&exponent) {
        return trim(format!("{value:.*}", usize::try_from(5 - exponent).unwrap_or(0)));
    }
    let text = format!("{value:.5e}");
    let mantissa = text.split('e').next().unwrap_or_default().to_owned();
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trim(mantissa), exponent.unsigned_abs())
}

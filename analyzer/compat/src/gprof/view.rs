//! Data and formats that the listings share: the complete profile, units, and the names of
//! functions.

use super::graph::{Graph, Node};
use super::options::Options;
use super::samples::{Samples, units_per_bin};
use super::specs::Selection;
use super::symbols::Table;
use heaptape_analyzer::symbols::{Style, demangle_in};
use heaptape_analyzer::text::clean;
use heaptape_formats::gmon::Union;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

/// A profile that is ready to be printed.
pub(super) struct View<'a> {
    /// Options of the command line.
    pub options: &'a Options,
    /// The functions or lines.
    pub table: Table,
    /// The sum of the profiles.
    pub union: Union,
    /// Whether there is a call graph, if only an empty one.
    pub has_arcs: bool,
    /// Number of samples per unit of the dimension.
    pub rate: f64,
    pub samples: Samples,
    /// The call graph of the profile.
    pub graph: Graph,
    /// Symbols selected for the flat profile (`-p`).
    pub flat: Selection,
    /// Symbols excluded from the flat profile (`-P`).
    pub no_flat: Selection,
    /// Cache of demangled names.
    pub names: Names,
}

/// A cache of demangled names by symbol, because a call graph prints each name many times.
#[derive(Default)]
pub(super) struct Names {
    known: RefCell<HashMap<usize, Rc<str>>>,
    bytes: Cell<usize>,
}

impl Names {
    /// Maximum total length of the names in the cache. Further names are demangled each time.
    const MAX_BYTES: usize = 64 << 20;

    fn get(&self, index: usize, linked: &str) -> Rc<str> {
        if let Some(name) = self.known.borrow().get(&index) {
            return name.clone();
        }
        let name: Rc<str> = demangle_in(Style::Binutils, linked).into();
        if self.bytes.get() + name.len() < Names::MAX_BYTES {
            self.bytes.set(self.bytes.get() + name.len());
            self.known.borrow_mut().insert(index, name.clone());
        }
        name
    }
}

impl View<'_> {
    /// Returns the node of a symbol.
    ///
    /// # Panics
    /// Panics if the index is out of range.
    pub(super) fn node(&self, index: usize) -> &Node {
        &self.graph.nodes[index]
    }

    /// Converts samples to units of the dimension.
    pub(super) fn unit(&self, samples: f64) -> f64 {
        if samples == 0.0 { 0.0 } else { samples / self.rate }
    }

    /// Returns the dimension of the histogram, or `seconds` if there is none.
    pub(super) fn dimension(&self) -> String {
        match &self.union.unit {
            Some(unit) => clean(&String::from_utf8_lossy(unit.dimension())).into_owned(),
            None => "seconds".to_owned(),
        }
    }

    /// Returns the abbreviation of the dimension.
    pub(super) fn abbreviation(&self) -> char {
        let abbrev = self.union.unit.map_or('s', |unit| char::from(unit.abbrev));
        if abbrev.is_control() { char::REPLACEMENT_CHARACTER } else { abbrev }
    }

    /// Returns the number of bytes that a sample covers, rounded down to units of 2 bytes as in
    /// gprof.
    pub(super) fn granularity(&self) -> u64 {
        let units = self.union.sums.first().map_or(0.0, units_per_bin);
        if units.is_finite() { 2 * units as u64 } else { 0 }
    }

    /// Returns whether a function or cycle is in the index of functions.
    pub(super) fn is_listed(&self, index: usize) -> bool {
        let node = &self.graph.nodes[index];
        self.options.unused || !node.members.is_empty() || node.calls != 0 || node.time != 0.0
    }

    /// Returns the name of a symbol, with its line if lines are profiled.
    pub(super) fn plain_name(&self, index: usize) -> String {
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
        let demangled = self.options.demangle && !self.options.traditional;
        if demangled {
            self.names.get(index, self.table.source_name(index)).to_string()
        } else {
            self.table.symbols[index].name.clone()
        }
    }

    /// Returns the name with cycle and index. The index is in parentheses if the symbol has no
    /// entry. As in gprof, there are no indexes if the profile has no arcs.
    pub(super) fn name(&self, index: usize) -> String {
        let node = &self.graph.nodes[index];
        let mut name = self.plain_name(index);
        if node.cycle != 0 {
            name += &format!(" <cycle {}>", node.cycle);
        }
        if node.index != 0 && self.has_arcs {
            name += &if node.shown { format!(" [{}]", node.index) } else { format!(" ({})", node.index) };
        }
        name
    }

    /// Returns the name for the index of functions, with the file if the function is local.
    pub(super) fn index_name(&self, index: usize) -> String {
        let symbol = &self.table.symbols[index];
        match symbol.source {
            _ if self.options.traditional => symbol.name.clone(),
            Some((file, _)) if symbol.is_local && !self.options.lines => {
                format!("{} ({})", self.plain_name(index), self.path(file))
            }
            _ => self.plain_name(index),
        }
    }

    /// Returns the path or name of a source file, depending on the options.
    fn path(&self, file: usize) -> &str {
        let path = &*self.table.files[file];
        if self.options.paths { path } else { path.rsplit('/').next().unwrap_or(path) }
    }
}

/// Formats a number like `%g` in C.
pub(super) fn g(value: f64) -> String {
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

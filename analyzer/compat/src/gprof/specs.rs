//! Symbol specifications of options such as `-p`, `-q`, `-A` and `-k`: `function`, `line`,
//! `file.c`, `file.c:function`, `file.c:line`.

use super::graph::Preference;
use super::symbols::Table;
use heaptape_analyzer::symbols::{Style, demangle_in};

/// The symbols that match a list of specifications.
#[derive(Debug, Default)]
pub(super) struct Selection {
    any: bool,
    chosen: Vec<bool>,
}

impl Selection {
    /// Selects all symbols that match one of the specifications.
    pub(super) fn new(names: &[String], table: &Table) -> Selection {
        let mut chosen = vec![false; table.symbols.len()];
        for name in names {
            // `a/b` means an arc. Where a function is expected, gprof uses the caller.
            let function = if is_demangled(name) { name } else { name.split('/').next().unwrap_or(name) };
            let pattern = Pattern::new(function, table);
            for (index, chosen) in chosen.iter_mut().enumerate() {
                *chosen |= pattern.is_match(table, index);
            }
        }
        Selection { any: chosen.contains(&true), chosen }
    }

    /// Returns whether a symbol is selected.
    pub(super) fn has(&self, index: usize) -> bool {
        self.chosen.get(index).copied().unwrap_or(false)
    }

    /// Returns whether no symbol is selected.
    pub(super) fn is_empty(&self) -> bool {
        !self.any
    }
}

/// Returns how a symbol is selected by a list of selected and a list of excluded symbols.
pub(super) fn preference(selected: &Selection, excluded: &Selection, index: usize) -> Preference {
    if selected.has(index) {
        Preference::Selected
    } else if excluded.has(index) {
        Preference::Excluded
    } else if selected.is_empty() {
        Preference::Any
    } else {
        Preference::Unselected
    }
}

/// A specification of symbols (symspec).
struct Pattern<'a> {
    /// Indexes of the files that match; `None` means any file.
    files: Option<Vec<usize>>,
    target: Target<'a>,
}

/// What a specification selects in its files.
enum Target<'a> {
    /// All symbols of the files.
    All,
    Line(u32),
    /// A function by its linker's or demangled name.
    Function(&'a str),
}

impl<'a> Pattern<'a> {
    fn new(name: &'a str, table: &Table) -> Pattern<'a> {
        let (file, rest) = match name.rsplit_once(':') {
            _ if is_demangled(name) => (None, name),
            Some((file, rest)) => (Some(file), rest),
            None if name.contains('.') => (Some(name), ""),
            _ => (None, name),
        };
        let is_file = |path: &str, name: &str| path == name || path.rsplit('/').next() == Some(name);
        let files = file
            .filter(|file| !file.is_empty())
            .map(|file| (0..table.files.len()).filter(|&index| is_file(&table.files[index], file)).collect());
        let target = match rest.parse() {
            _ if rest.is_empty() => Target::All,
            Ok(line) => Target::Line(line),
            Err(_) => Target::Function(rest),
        };
        Pattern { files, target }
    }

    fn is_match(&self, table: &Table, index: usize) -> bool {
        let symbol = &table.symbols[index];
        let in_file = |files: &Vec<usize>| symbol.source.is_some_and(|(file, _)| files.contains(&file));
        self.files.as_ref().is_none_or(in_file)
            && match self.target {
                Target::All => true,
                Target::Line(line) => symbol.source.is_some_and(|(_, number)| number == line),
                Target::Function(name) => {
                    table.source_name(index) == name
                        || is_demangled(name) && demangle_in(Style::Binutils, &symbol.name) == name
                }
            }
    }
}

/// Returns whether a name is a demangled C++ or Rust name. It must then be compared with demangled
/// names.
fn is_demangled(name: &str) -> bool {
    name.contains("::") || name.contains('(')
}

/// The arcs that match specifications `from/to` of `-k`, `-q` and `-Q`. An empty side matches every
/// symbol.
#[derive(Debug, Default)]
pub(super) struct ArcSelection(Vec<(Option<Selection>, Option<Selection>)>);

impl ArcSelection {
    /// Selects all arcs that match one of the specifications.
    pub(super) fn new(names: &[String], table: &Table) -> ArcSelection {
        let side = |name: &str| (!name.is_empty()).then(|| Selection::new(&[name.to_owned()], table));
        let pair = |name: &String| name.split_once('/').map(|(from, to)| (side(from), side(to)));
        ArcSelection(names.iter().filter_map(pair).collect())
    }

    /// Returns whether no symbol matches as caller.
    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|(from, _)| from.as_ref().is_some_and(Selection::is_empty))
    }

    /// Returns whether an arc is selected.
    pub(super) fn has(&self, caller: usize, callee: usize) -> bool {
        let side =
            |selection: &Option<Selection>, index| selection.as_ref().is_none_or(|selection| selection.has(index));
        self.0.iter().any(|(from, to)| side(from, caller) && side(to, callee))
    }
}

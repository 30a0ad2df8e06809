//! The names in options (`-p`, `-q`, `-A`, `-k` …): `function`, `line`, `file.c`, `file.c:function`, `file.c:line`.

use super::graph::Wish;
use super::symbols::Table;
use crate::compat::demangle::demangle;

/// Which symbols a list of names means.
#[derive(Debug, Default)]
pub struct Selection {
    any: bool,
    chosen: Vec<bool>,
}

impl Selection {
    /// All symbols that one of the names means.
    pub fn new(names: &[String], table: &Table) -> Selection {
        let mut chosen = vec![false; table.symbols.len()];
        for name in names {
            // `a/b` means a call; where a function is wanted gprof takes the caller.
            let function = if is_readable(name) { name } else { name.split('/').next().unwrap_or(name) };
            let pattern = Pattern::new(function, table);
            for (index, chosen) in chosen.iter_mut().enumerate() {
                *chosen |= pattern.is_match(table, index);
            }
        }
        Selection { any: chosen.contains(&true), chosen }
    }

    /// Whether a symbol is among them.
    pub fn has(&self, index: usize) -> bool {
        self.chosen.get(index).copied().unwrap_or(false)
    }

    /// Whether there are any.
    pub fn is_empty(&self) -> bool {
        !self.any
    }
}

/// What two lists say of a symbol: that of the wanted and that of the unwanted.
pub fn wish(wanted: &Selection, unwanted: &Selection, index: usize) -> Wish {
    if wanted.has(index) {
        Wish::Wanted
    } else if unwanted.has(index) {
        Wish::Unwanted
    } else if wanted.is_empty() {
        Wish::Any
    } else {
        Wish::Other
    }
}

struct Pattern<'a> {
    /// Files of that name; `None`: any file.
    files: Option<Vec<usize>>,
    rest: Rest<'a>,
}

enum Rest<'a> {
    Nothing,
    Line(u32),
    Function(&'a str),
}

impl<'a> Pattern<'a> {
    fn new(name: &'a str, table: &Table) -> Pattern<'a> {
        let (file, rest) = match name.rsplit_once(':') {
            _ if is_readable(name) => (None, name),
            Some((file, rest)) => (Some(file), rest),
            None if name.contains('.') => (Some(name), ""),
            _ => (None, name),
        };
        let is_file = |path: &str, name: &str| path == name || path.rsplit('/').next() == Some(name);
        let files = file
            .filter(|file| !file.is_empty())
            .map(|file| (0..table.files.len()).filter(|&index| is_file(&table.files[index], file)).collect());
        let rest = match rest.parse() {
            _ if rest.is_empty() => Rest::Nothing,
            Ok(line) => Rest::Line(line),
            Err(_) => Rest::Function(rest),
        };
        Pattern { files, rest }
    }

    fn is_match(&self, table: &Table, index: usize) -> bool {
        let symbol = &table.symbols[index];
        let in_file = |files: &Vec<usize>| symbol.source.is_some_and(|(file, _)| files.contains(&file));
        self.files.as_ref().is_none_or(in_file)
            && match self.rest {
                Rest::Nothing => true,
                Rest::Line(line) => symbol.source.is_some_and(|(_, at)| at == line),
                Rest::Function(name) => symbol.name == name || is_readable(name) && demangle(&symbol.name) == name,
            }
    }
}

/// Whether a name is written as no linker has it, in C++'s or Rust's own words: names must be made readable to be compared with it.
fn is_readable(name: &str) -> bool {
    name.contains("::") || name.contains('(')
}

/// The arcs that `from/to` means in `-k`, `-q` and `-Q`; an empty side means any.
#[derive(Debug, Default)]
pub struct ArcSelection(Vec<(Option<Selection>, Option<Selection>)>);

impl ArcSelection {
    /// All arcs that one of the names means.
    pub fn new(names: &[String], table: &Table) -> ArcSelection {
        let side = |name: &str| (!name.is_empty()).then(|| Selection::new(&[name.to_owned()], table));
        let pair = |name: &String| name.split_once('/').map(|(from, to)| (side(from), side(to)));
        ArcSelection(names.iter().filter_map(pair).collect())
    }

    /// Whether no function is called by what they mean.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|(from, _)| from.as_ref().is_some_and(Selection::is_empty))
    }

    /// Whether an arc is among them.
    pub fn has(&self, caller: usize, callee: usize) -> bool {
        let side =
            |selection: &Option<Selection>, index| selection.as_ref().is_none_or(|selection| selection.has(index));
        self.0.iter().any(|(from, to)| side(from, caller) && side(to, callee))
    }
}

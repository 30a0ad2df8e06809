//! The table of symbols to which samples and arcs are assigned: functions, or source lines where
//! they are known.

use super::image::Image;
use heaptape_analyzer::symbols::BinutilsSymbol;
use std::collections::HashMap;

/// A function, or a line of one.
#[derive(Clone, Debug)]
pub(super) struct Symbol {
    /// Address of the first byte.
    pub address: u64,
    /// Last address; 0 until the table is complete.
    pub last: u64,
    /// Name of the symbol as the linker sees it.
    pub name: String,
    /// Whether the symbol is the entry of a function. Calls are assigned to entries only.
    pub is_function: bool,
    /// Whether the symbol has local binding.
    pub is_local: bool,
    /// Source file, as an index in [`Table::files`], and line.
    pub source: Option<(usize, u32)>,
}

/// The symbols, at most one for each address.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// The symbols sorted by address.
    pub symbols: Vec<Symbol>,
    /// Paths of source files, in the order of their first appearance.
    pub files: Vec<String>,
    /// Whether names begin with an underscore that the source does not have. gprof leaves it out
    /// where it demangles, and nowhere else.
    pub has_underscores: bool,
}

/// The symbols to omit.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rules {
    /// Omits local functions (`-a`).
    pub no_static: bool,
    /// Omits local symbols that do not have the type of a function (`-D`).
    pub only_functions: bool,
}

/// The list of source files, with the index of each path.
struct Files<'a> {
    paths: &'a mut Vec<String>,
    known: HashMap<String, usize>,
}

impl Files<'_> {
    fn index(&mut self, path: String) -> usize {
        *self.known.entry(path).or_insert_with_key(|path| {
            self.paths.push(path.clone());
            self.paths.len() - 1
        })
    }
}

impl Table {
    pub(super) fn functions(image: &Image, rules: Rules) -> Table {
        Table::read(image, rules, false)
    }

    /// Creates a table of lines, and of functions without lines.
    pub(super) fn lines(image: &Image, rules: Rules) -> Table {
        Table::read(image, rules, true)
    }

    fn read(image: &Image, rules: Rules, lines: bool) -> Table {
        let mut paths = Vec::new();
        let mut files = Files { paths: &mut paths, known: HashMap::new() };
        let is_included = |symbol: &&BinutilsSymbol| {
            !(symbol.is_local && (rules.no_static || rules.only_functions && !symbol.is_function))
        };
        let mut function = |symbol: &BinutilsSymbol| Symbol {
            address: symbol.address,
            last: 0,
            name: symbol.name.clone(),
            is_function: symbol.is_function,
            is_local: symbol.is_local,
            source: image.location(symbol.address).map(|location| (files.index(location.file), location.line)),
        };
        let functions = image.symbols.iter().filter(is_included).map(&mut function).collect();
        let mut symbols = finish(functions, &image.text);
        if lines {
            // Lines have the names of their functions, also of those that are left out.
            let named = finish(image.symbols.iter().map(function).collect(), &image.text);
            let mut all = line_symbols(image, &symbols, &named, &mut files);
            // The last symbol ends with `.text`. gprof drops it, and with it an index number, if it
            // begins behind that, as `etext` and `data_start` do.
            symbols.retain(|symbol| symbol.address <= symbol.last);
            all.extend(symbols.into_iter().map(|symbol| Symbol { last: 0, ..symbol }));
            symbols = finish(all, &image.text);
        }
        Table { symbols, files: paths, has_underscores: image.has_underscores }
    }

    /// Returns the index of the symbol that contains an address.
    pub(super) fn at(&self, address: u64) -> Option<usize> {
        let index = self.symbols.partition_point(|symbol| symbol.address <= address).checked_sub(1)?;
        (address <= self.symbols[index].last).then_some(index)
    }

    /// Returns the name of a symbol without the underscore that the linker puts before it.
    pub(super) fn source_name(&self, index: usize) -> &str {
        let name = &*self.symbols[index].name;
        name.strip_prefix('_').filter(|_| self.has_underscores).unwrap_or(name)
    }

    /// Returns the path of a symbol's source file.
    ///
    /// # Panics
    /// Panics if the index is out of range.
    pub(super) fn file(&self, index: usize) -> Option<&str> {
        self.symbols[index].source.map(|(file, _)| &*self.files[file])
    }
}

/// Sorts the symbols, selects one for each address, and sets the last address of each to that
/// before the next symbol.
fn finish(mut symbols: Vec<Symbol>, text: &std::ops::Range<u64>) -> Vec<Symbol> {
    symbols.sort_by_key(|symbol| (symbol.address, !symbol.is_function));
    let mut chosen: Vec<Symbol> = Vec::with_capacity(symbols.len());
    for symbol in symbols {
        match chosen.last_mut() {
            Some(last) if last.address == symbol.address => {
                if is_better(&symbol, last) {
                    *last = symbol;
                }
            }
            Some(last) => {
                if last.last == 0 {
                    last.last = symbol.address - 1;
                }
                chosen.push(symbol);
            }
            None => chosen.push(symbol),
        }
    }
    if let Some(last) = chosen.last_mut().filter(|last| last.last == 0) {
        last.last = text.end.saturating_sub(1);
    }
    chosen
}

/// Returns whether a symbol is preferred to another one at the same address: global before local,
/// function before label, no leading underscores before leading underscores.
fn is_better(symbol: &Symbol, than: &Symbol) -> bool {
    if symbol.is_local != than.is_local {
        return than.is_local;
    }
    if symbol.is_function != than.is_function {
        return symbol.is_function;
    }
    let underscore = |symbol: &Symbol, index: usize| symbol.name.as_bytes().get(index) == Some(&b'_');
    (0..2).any(|index| !underscore(symbol, index) && underscore(than, index))
}

/// Returns a symbol for each address at which the line, file or function changes.
fn line_symbols(image: &Image, functions: &[Symbol], named: &[Symbol], files: &mut Files<'_>) -> Vec<Symbol> {
    fn containing(functions: &[Symbol], address: u64) -> Option<&Symbol> {
        let index = functions.partition_point(|symbol| symbol.address <= address).checked_sub(1)?;
        (address <= functions[index].last).then_some(&functions[index])
    }
    let mut symbols: Vec<Symbol> = Vec::new();
    for (address, location) in image.locations() {
        let function = containing(functions, address);
        let linked = || containing(named, address).map(|symbol| symbol.name.clone());
        let name = location.function.or_else(linked).unwrap_or_default();
        let source = Some((files.index(location.file), location.line));
        let is_same = symbols.last().is_some_and(|last| last.source == source && last.name == name);
        if !is_same {
            let is_local = function.is_some_and(|symbol| symbol.is_local);
            symbols.push(Symbol { address, last: 0, name, is_function: false, is_local, source });
        }
    }
    symbols
}

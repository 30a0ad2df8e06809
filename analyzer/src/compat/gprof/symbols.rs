//! The table of symbols that samples and arcs are charged to: functions, or source lines where they are known.

use super::image::{Image, ImageSymbol};
use std::collections::HashMap;

/// A function, or a line of one.
#[derive(Clone, Debug)]
pub struct Symbol {
    /// First address.
    pub address: u64,
    /// Last address; 0 until the table is finished.
    pub last: u64,
    /// The linker's name.
    pub name: String,
    /// Whether it is a function's entry. Calls are charged to entries only.
    pub function: bool,
    /// Whether only its own file can name it.
    pub local: bool,
    /// Source file (an index into [`Table::files`]) and line.
    pub source: Option<(usize, u32)>,
}

/// All symbols by address, no two at the same one.
#[derive(Debug, Default)]
pub struct Table {
    /// In ascending order.
    pub symbols: Vec<Symbol>,
    /// Paths of source files, in the order in which they appeared.
    pub files: Vec<String>,
}

/// What is left out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    /// `-a`: no functions that only their own file can name.
    pub no_static: bool,
    /// `-D`: no local symbols that are not marked as functions.
    pub only_functions: bool,
}

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
    /// Functions.
    pub fn functions(image: &Image, rules: Rules) -> Table {
        Table::read(image, rules, false)
    }

    /// Lines, and functions without lines.
    pub fn lines(image: &Image, rules: Rules) -> Table {
        Table::read(image, rules, true)
    }

    fn read(image: &Image, rules: Rules, lines: bool) -> Table {
        let mut paths = Vec::new();
        let mut files = Files { paths: &mut paths, known: HashMap::new() };
        let counts =
            |symbol: &&ImageSymbol| !(symbol.local && (rules.no_static || rules.only_functions && !symbol.function));
        let function = |symbol: &ImageSymbol| Symbol {
            address: symbol.address,
            last: 0,
            name: symbol.name.clone(),
            function: symbol.function,
            local: symbol.local,
            source: image.place(symbol.address).map(|place| (files.index(place.file), place.line)),
        };
        let functions = image.symbols.iter().filter(counts).map(function).collect();
        let mut symbols = finish(functions, &image.text);
        if lines {
            let mut all = line_symbols(image, &symbols, &mut files);
            // WHY: gprof loses the last function here, and with it an index number.
            symbols.pop();
            all.extend(symbols.into_iter().map(|symbol| Symbol { last: 0, ..symbol }));
            symbols = finish(all, &image.text);
        }
        Table { symbols, files: paths }
    }

    /// The symbol around an address.
    pub fn at(&self, address: u64) -> Option<usize> {
        let index = self.symbols.partition_point(|symbol| symbol.address <= address).checked_sub(1)?;
        (address <= self.symbols[index].last).then_some(index)
    }

    /// The path of a symbol's source file.
    pub fn file(&self, index: usize) -> Option<&str> {
        self.symbols[index].source.map(|(file, _)| &*self.files[file])
    }
}

/// Puts symbols in order, chooses one for each address, and gives each its last address: that before the next one.
fn finish(mut symbols: Vec<Symbol>, text: &std::ops::Range<u64>) -> Vec<Symbol> {
    symbols.sort_by_key(|symbol| (symbol.address, !symbol.function));
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

/// Of two symbols at one address: visible before local, function before label, and before names that begin with
/// underscores those that do not.
fn is_better(symbol: &Symbol, than: &Symbol) -> bool {
    if symbol.local != than.local {
        return than.local;
    }
    if symbol.function != than.function {
        return symbol.function;
    }
    let underscore = |symbol: &Symbol, place: usize| symbol.name.as_bytes().get(place) == Some(&b'_');
    (0..2).any(|place| !underscore(symbol, place) && underscore(than, place))
}

/// A symbol wherever line, file or function change.
fn line_symbols(image: &Image, functions: &[Symbol], files: &mut Files<'_>) -> Vec<Symbol> {
    let around = |address: u64| {
        let index = functions.partition_point(|symbol| symbol.address <= address).checked_sub(1)?;
        (address <= functions[index].last).then_some(&functions[index])
    };
    let mut symbols: Vec<Symbol> = Vec::new();
    for (address, place) in image.places() {
        let function = around(address);
        let name = place.function.or_else(|| function.map(|symbol| symbol.name.clone())).unwrap_or_default();
        let source = Some((files.index(place.file), place.line));
        let same = symbols.last().is_some_and(|last| last.source == source && last.name == name);
        if !same {
            let local = function.is_some_and(|symbol| symbol.local);
            symbols.push(Symbol { address, last: 0, name, function: false, local, source });
        }
    }
    symbols
}

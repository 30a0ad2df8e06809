//! Looks up the names that a recording keeps ([`crate::saved_names`] reads them): those of the
//! addresses at its call sites, and no others, so that they need little space.
//!
//! Symbol tables come first, because they are quick; lines and inlined functions follow. The caller
//! bounds time and memory, because the files are those of the recorded programs and may contain
//! anything.

use super::dwarf::Debug;
use super::elf::{Elf, Functions};
use super::exports::Exports;
use super::files::{Search, search_in};
use super::jumps::{Code, Jumps};
use super::saved_jumps::{self, Place};
use super::tail_calls::is_own;
use super::texts::Texts;
use super::{DEFAULT_SUPPRESSIONS, Origin, functions};
use crate::frame::FunctionSymbol;
use crate::program_frames::Roles;
use crate::stacks::Module;
use crate::symbols::returned_text::returned_text;
use heaptape_formats::tape::field::Added;
use heaptape_formats::tape::{
    LINES_NONE, LINES_READ, LINES_UNREAD, Record, SymbolAddress, SymbolFrame, SymbolFunction, SymbolQuery, SymbolTable,
    Symbols, Writer,
};
use rustc_hash::FxHashMap;
use std::path::{Path, PathBuf};

/// Maximum number of bytes of debug information that are read of a module.
const MOST_DEBUG: u64 = 512 << 20;
/// Maximum number of addresses of one table, so that it stays far below what a reader unpacks.
const ADDRESSES: usize = 1 << 16;

/// Maximum number of missing files that are named.
const MOST_MISSING: usize = 16;
/// Maximum number of bytes of names that are kept of all functions of a module.
const MOST_NAME_BYTES: usize = 32 << 20;

/// The key that distinguishes modules.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    path: Vec<u8>,
    /// The build-id, or what else identifies the file.
    identity: Vec<u8>,
    /// Path of the file that the recorder opened, if there is no build id.
    file: Option<PathBuf>,
}

/// Files of a module, which are read once for all processes with this module.
struct Known {
    files: Vec<(PathBuf, Elf)>,
    /// Whether the first file is the module's own.
    own: bool,
    functions: Functions,
    jumps: Jumps,
    of: Symbols,
    /// The addresses of all processes.
    wanted: Vec<u64>,
    debug: Option<Debug>,
}

/// Looks up what each process needs: `processes` are its modules with their files. A query without
/// addresses is about the names of all functions, without lines. Calls `emit`
/// with the index of each process and the bytes of its `symbols.tape`: first without lines, and
/// then completely, unless no module has lines.
pub fn save(processes: &[(&[SymbolQuery], &[PathBuf])], emit: &mut dyn FnMut(usize, &[u8])) {
    let mut known: FxHashMap<Key, Known> = FxHashMap::default();
    let mut key_of = FxHashMap::default();
    for round in [LINES_UNREAD, LINES_READ] {
        for (number, (queries, files)) in processes.iter().enumerate() {
            let (mut bytes, mut writer, mut has_lines) = (Vec::new(), Writer::default(), false);
            Writer::file_header(&mut bytes);
            for (index, query) in queries.iter().enumerate() {
                let key = key_of.entry((number, index)).or_insert_with(|| key(query, files));
                let module = known.entry(key.clone()).or_insert_with(|| Known::find(query, files));
                if module.files.is_empty() {
                    continue;
                }
                if round == LINES_UNREAD {
                    module.wanted.extend(&query.addresses);
                }
                let wants_lines = module.of.lines != LINES_NONE && !query.addresses.is_empty();
                has_lines |= wants_lines;
                if round == LINES_READ && wants_lines {
                    module.read_lines();
                }
                let some = query.addresses.chunks(ADDRESSES).map(|addresses| module.table(addresses));
                let all = if query.addresses.is_empty() { module.all_functions() } else { Vec::new() };
                for table in some.chain(all) {
                    module.write(&table, &mut writer, &mut bytes);
                }
            }
            if round == LINES_READ || !has_lines {
                let modules: Vec<&Known> =
                    (0..queries.len()).filter_map(|index| known.get(key_of.get(&(number, index))?)).collect();
                let places: Vec<Place> =
                    modules.iter().zip(queries.iter()).map(|(module, query)| module.place(query)).collect();
                for (module, table) in modules.iter().zip(saved_jumps::tables(&places)) {
                    if table != SymbolTable::default() {
                        module.write(&table, &mut writer, &mut bytes);
                    }
                }
            }
            // A process without lines has been passed on in the first round.
            if round == LINES_UNREAD || has_lines {
                emit(number, &bytes);
            }
        }
    }
}

/// Returns the key of a module of a process.
fn key(query: &SymbolQuery, files: &[PathBuf]) -> Key {
    let module = module(query);
    let file = file(files, query.file).map(Path::to_path_buf).filter(|_| module.build_id.is_empty());
    Key { identity: module.identity(), path: module.path, file }
}

fn module(query: &SymbolQuery) -> Module {
    let SymbolQuery { path, build_id, identity, since_unix_ns, .. } = query;
    Module {
        path: path.0.clone(),
        build_id: build_id.0.clone(),
        file: identity.clone(),
        since_unix_ns: *since_unix_ns,
        ..Module::default()
    }
}

fn file(files: &[PathBuf], number: u32) -> Option<&Path> {
    files.get((number as usize).checked_sub(1)?).map(PathBuf::as_path)
}

impl Known {
    fn find(query: &SymbolQuery, given: &[PathBuf]) -> Known {
        let path = query.path.lossy();
        let module = module(query);
        let (given_file, debug) = (file(given, query.file), file(given, query.debug_file));
        let Search { files, own, .. } = search_in(&path, &module, &Origin::default(), None, given_file, debug);
        let elf = files.first().map(|(_, elf)| elf);
        let (file_bytes, checksum) = elf.and_then(Elf::fingerprint).unwrap_or_default();
        let code = elf.and_then(Elf::code).unwrap_or_default();
        let functions = functions(&files);
        let suppressions = elf.and_then(|elf| {
            let address = Exports::of(elf).find(elf, DEFAULT_SUPPRESSIONS);
            returned_text(elf, address.or_else(|| functions.start_of(DEFAULT_SUPPRESSIONS))?).ok()
        });
        let is_readable = |(_, elf): &(PathBuf, Elf)| (1..=MOST_DEBUG).contains(&elf.section_size(".debug_info"));
        let of = Symbols {
            path: query.path.clone(),
            build_id: query.build_id.clone(),
            file_bytes,
            checksum,
            code_start: code.start,
            code_end: code.end,
            lines: if files.iter().any(is_readable) { LINES_UNREAD } else { LINES_NONE },
            suppressions: suppressions.map(|text| text.as_str().into()),
            file: Added(query.identity.clone()),
            ..Symbols::default()
        };
        Known { functions, files, own, jumps: Jumps::default(), of, wanted: Vec::new(), debug: None }
    }

    /// Adds the record of a table.
    fn write(&self, table: &SymbolTable, writer: &mut Writer, bytes: &mut Vec<u8>) {
        let missing = self.debug.iter().flat_map(Debug::missing);
        let missing = Added(missing.take(MOST_MISSING).map(|file| file.as_str().into()).collect());
        if let Ok(symbols) = table.pack(Symbols { missing, ..self.of.clone() }) {
            writer.record(&Record::Symbols(symbols), bytes);
        }
    }

    /// Returns where tail calls of the module are searched.
    fn place<'a>(&'a self, query: &'a SymbolQuery) -> Place<'a> {
        let elf = self.files.first().map(|(_, elf)| elf).filter(|_| self.own);
        Place {
            code: elf.map(|elf| Code { elf, functions: &self.functions, jumps: &self.jumps }),
            is_own: is_own(&query.path.lossy(), &Roles::default()),
            addresses: &query.addresses,
        }
    }

    fn read_lines(&mut self) {
        if self.of.lines == LINES_UNREAD {
            self.wanted.sort_unstable();
            let module = self.of.path.lossy();
            let read = |(path, elf): &(PathBuf, Elf)| Debug::read(elf, path, &module, MOST_DEBUG, &self.wanted);
            self.debug = self.files.iter().find_map(read);
            self.of.lines = if self.debug.is_some() { LINES_READ } else { LINES_NONE };
        }
    }

    /// Returns tables with the names of all functions, as many as are kept.
    fn all_functions(&self) -> Vec<SymbolTable> {
        let (mut all, mut text_bytes) = (Vec::new(), 0);
        let mut functions = self.functions.ranges().peekable();
        while functions.peek().is_some() && text_bytes < MOST_NAME_BYTES {
            let (mut table, mut texts, mut last) = (SymbolTable::default(), Texts::default(), 0);
            for FunctionSymbol { start, end, symbol } in functions.by_ref().take(ADDRESSES) {
                text_bytes += symbol.len();
                if text_bytes >= MOST_NAME_BYTES {
                    break;
                }
                let symbol = texts.number(symbol);
                table.functions.push(SymbolFunction { start: start - last, length: end - start, symbol });
                last = start;
            }
            table.texts = texts.all.into_iter().map(Into::into).collect();
            all.push(table);
        }
        all
    }

    fn table(&self, addresses: &[u64]) -> SymbolTable {
        let (mut table, mut texts) = (SymbolTable::default(), Texts::default());
        let (mut last_function, mut last_address) = (0, 0);
        for &address in addresses {
            if let Some(FunctionSymbol { start, end, symbol }) = self.functions.find(address)
                && (start > last_function || table.functions.is_empty())
            {
                let folded = self.functions.folded(start);
                let folded = folded.iter().rev().copied();
                for symbol in folded.chain([symbol]) {
                    let symbol = texts.number(symbol);
                    table.functions.push(SymbolFunction { start: start - last_function, length: end - start, symbol });
                    last_function = start;
                }
            }
            if let Some(debug) = &self.debug {
                let frames: Vec<SymbolFrame> = debug.find(address).iter().map(|frame| texts.frame(frame)).collect();
                // A reader may have the part that is missing here.
                if frames.is_empty() && !debug.missing().is_empty() {
                    continue;
                }
                table.addresses.push(SymbolAddress { address: address - last_address, frames });
                last_address = address;
            }
        }
        table.texts = texts.all.into_iter().map(Into::into).collect();
        table
    }
}

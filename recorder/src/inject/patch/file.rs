//! The allocator functions of one file, as they are before relocation.

use super::cache_flush::{self, Landmarks};
use super::families::{self, LIBRARY_MALLOC, MAPS_MEMORY, OWN_MALLOC, Shape};
use super::names::Names;
use super::separate;
use super::symbols::{self, ElfFile, Fault, Headers, Symbol};
use crate::os::processor::moved::{self, MAX_SCANNED, Refusal};
use rustc_hash::FxHashSet;
use std::fs::File;
use std::ops::Range;
use std::sync::OnceLock;
use std::time::Instant;
use wire::patches::{Action, MAX_MOVED};

/// Bytes of a function that are kept: `endbr64`, and what may be moved.
const KEPT_BYTES: usize = 2 * MAX_MOVED;

/// The functions that are replaced in a process that runs already. Programs that it executes are
/// not recorded.
const REPLACED_LATER: [&[u8]; 3] = [b"prctl", b"syscall", b"fork"];

/// The name of the function in which glibc empties the cache of a thread.
pub(crate) const CACHE_FLUSH: &str = "__malloc_arena_thread_freeres";

/// How the process of a file is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Reach {
    /// The library is in the process since its start, and calls by name come to it anyway.
    FromStart,
    /// The process runs already: all that its calls go to is hooked.
    Running,
}

/// Which file of a process it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Role {
    /// Whether it is the program, and not a library.
    pub is_program: bool,
    /// How the process is attached.
    pub reach: Reach,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileFunction {
    pub names: Vec<String>,
    pub allocator: String,
    /// What the function does.
    pub shape: Shape,
    /// Address of the function before relocation.
    pub address: u64,
    /// First bytes of the function.
    pub code: Vec<u8>,
    /// Why it cannot be hooked.
    pub refusal: Option<&'static str>,
}

/// What is known about a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileFunctions {
    pub functions: Vec<FileFunction>,
    /// Executable segments of the file.
    pub code: Vec<symbols::CodeSegment>,
    /// Whether the file defines `malloc` for other objects.
    pub exports_malloc: bool,
    /// Whether the file is a static program.
    pub is_static: bool,
    /// The functions are those of a library that heaptape's exports do not replace, and only those
    /// that another file of the process imports are to be hooked.
    pub is_by_import: bool,
    /// Names of such functions that the file takes from others.
    pub imports: Vec<String>,
    /// Addresses of the functions, before relocation, below which mapped memory is an allocator's.
    pub growth: Vec<Range<u64>>,
    /// Whether the file defines `mmap` itself.
    pub has_own_mmap: bool,
    /// Allocators in the file that have no symbols, once it was searched for them.
    pub nameless: OnceLock<Vec<&'static str>>,
}

impl FileFunctions {
    /// Returns whether the file has no function of an allocator that is known by its name.
    pub(crate) fn is_without_allocator(&self) -> bool {
        !self.exports_malloc && self.allocators().is_empty()
    }

    /// Returns the names of the allocators that have functions here, besides those that heaptape's
    /// exports replace.
    pub(super) fn allocators(&self) -> Vec<&str> {
        let is_event = |function: &&FileFunction| {
            !self.is_by_import && !matches!(function.shape.action, Action::Internal | Action::Replaced)
        };
        let mut names: Vec<&str> =
            self.functions.iter().filter(is_event).map(|function| &function.allocator[..]).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Returns the functions that the files of a process call by name. If not all of them can be
    /// hooked, none is: half of the events would be leaks that do not exist.
    pub(super) fn imported(&self, imports: &FxHashSet<&str>) -> FileFunctions {
        let is_imported = |function: &&FileFunction| function.names.iter().any(|name| imports.contains(&name[..]));
        let mut functions: Vec<FileFunction> = self.functions.iter().filter(is_imported).cloned().collect();
        if let Some(refusal) = functions.iter().find_map(|function| function.refusal) {
            functions.iter_mut().for_each(|function| function.refusal = Some(refusal));
        }
        FileFunctions { functions, imports: Vec::new(), ..self.clone() }
    }
}

#[derive(Debug)]
pub(super) struct Symbols {
    pub elf: ElfFile,
    /// Whether neither the file nor another one had all of them.
    pub is_stripped: bool,
}

/// Searches the symbols of a file, also in separate files.
pub(crate) fn find_symbols(file: &File, headers: &Headers, names: &Names, deadline: Instant) -> Result<Symbols, Fault> {
    let mut elf = headers.search(file, names, deadline)?;
    let mut is_stripped = !elf.has_all_names;
    if is_stripped {
        let separate = separate::symbols(file, &elf, names, deadline)?;
        is_stripped = !separate.has_all_names;
        elf.symbols.extend(separate.symbols);
        elf.symbols.sort();
        elf.symbols.dedup_by(|again, first| again.name == first.name && again.address == first.address);
    }
    Ok(Symbols { elf, is_stripped })
}

/// Returns the functions of a file with these symbols.
pub(super) fn functions(file: &File, mut elf: ElfFile, names: &Names, role: Role) -> FileFunctions {
    let Role { is_program, reach } = role;
    let mut out = FileFunctions { exports_malloc: defines_malloc(&elf), ..FileFunctions::default() };
    let own = families::own_allocator(|name| elf.symbols.iter().any(|symbol| symbol.name == name)).to_owned();
    out.is_static = is_program && elf.is_static;
    if out.is_static || hides_allocator(&out, &own) {
        drop_ambiguous(&mut elf.symbols);
    }
    // The calls of a library's `malloc` go to the preload library's, which calls this one.
    let is_by_import = !is_program && out.exports_malloc && reach == Reach::FromStart;
    for symbol in elf.symbols.iter().filter(|symbol| !is_by_import || names.is_unreplaced(&symbol.name)) {
        add(file, &elf, symbol, names, &own, reach, &mut out);
    }
    out.is_by_import = is_by_import;
    if is_by_import {
        refuse_replaced(&elf, names, &mut out.functions);
    }
    let is_growth = |symbol: &&Symbol| names.meaning(&symbol.name).is_some_and(|meaning| meaning.is_growth);
    let range = |symbol: &Symbol| symbol.address..symbol.address.saturating_add(symbol.size);
    out.growth = elf.symbols.iter().filter(is_growth).map(range).collect();
    out.has_own_mmap = elf.symbols.iter().any(|symbol| symbol.is_global && symbol.name == MAPS_MEMORY.as_bytes());
    let imports = elf.imports.iter().filter(|name| names.is_unreplaced(name));
    out.imports = imports.map(|name| String::from_utf8_lossy(name).into_owned()).collect();
    if reach == Reach::Running && out.exports_malloc && !out.is_static {
        add_cache_flush(file, &elf, &mut out);
    }
    if !is_program {
        let own = out.functions.iter_mut().filter(|function| function.allocator == OWN_MALLOC);
        own.for_each(|function| function.allocator = LIBRARY_MALLOC.into());
    }
    out.functions.sort_by_key(|function| function.address);
    out.code = elf.code;
    out
}

/// Adds the function in which glibc empties the cache of a thread, which has no name there.
fn add_cache_flush(file: &File, elf: &ElfFile, out: &mut FileFunctions) {
    let address = |name: &[u8]| {
        let symbol = elf.symbols.iter().find(|symbol| symbol.is_global && symbol.name == name);
        symbol.map(|symbol| symbol.address)
    };
    let (Some(malloc), Some(free)) = (address(b"malloc"), address(b"free")) else { return };
    let named: Vec<u64> = out.functions.iter().map(|function| function.address).collect();
    let functions = cache_flush::functions_near(file, malloc);
    let size = |function: &Range<u64>| (function.end - function.start) as usize;
    let code = |function: &Range<u64>| symbols::code(file, &elf.code, function.start, size(function));
    let found = cache_flush::find(&functions, &Landmarks { malloc, free, named: &named }, code);
    for function in functions.iter().filter(|function| found.contains(&function.start)) {
        let code = code(function);
        let refusal = moved::start(&code, function.start, size(function)).err().map(Refusal::text);
        out.functions.push(FileFunction {
            names: vec![CACHE_FLUSH.into()],
            allocator: OWN_MALLOC.into(),
            shape: families::INTERNAL,
            address: function.start,
            code: code.into_iter().take(KEPT_BYTES).collect(),
            refusal,
        });
    }
}

/// Drops the symbols of a static program whose name does not say which function is meant: local
/// ones, if another function has the same name.
fn drop_ambiguous(symbols: &mut Vec<Symbol>) {
    let all = symbols.clone();
    let is_other = |symbol: &Symbol, other: &Symbol| other.name == symbol.name && other.address != symbol.address;
    symbols.retain(|symbol| symbol.is_global || !all.iter().any(|other| is_other(symbol, other)));
}

/// Refuses functions that are at the address of one that heaptape's exports replace: its hook calls
/// that one, and the call would count twice.
fn refuse_replaced(elf: &ElfFile, names: &Names, functions: &mut [FileFunction]) {
    let replaced: FxHashSet<u64> = elf
        .symbols
        .iter()
        .filter(|symbol| symbol.is_global && names.is_replaced(&symbol.name))
        .map(|symbol| symbol.address)
        .collect();
    for function in functions.iter_mut().filter(|function| replaced.contains(&function.address)) {
        function.refusal = Some("it is the library's malloc or free, too, and their calls would count twice");
    }
}

/// Returns whether a known allocator may be inside of a file that has the names of the C library and
/// is seen by nobody else: `--exclude-libs`, or hidden visibility.
fn hides_allocator(functions: &FileFunctions, own: &str) -> bool {
    own != OWN_MALLOC && !functions.exports_malloc && !functions.is_static
}

fn defines_malloc(elf: &ElfFile) -> bool {
    elf.symbols.iter().any(|symbol| symbol.is_global && symbol.name == b"malloc")
}

fn add(file: &File, elf: &ElfFile, symbol: &Symbol, names: &Names, own: &str, reach: Reach, out: &mut FileFunctions) {
    let Some(meaning) = names.meaning(&symbol.name) else { return };
    let Some(shape) = meaning.shape else { return };
    let is_later = reach == Reach::Running && REPLACED_LATER.contains(&&symbol.name[..]);
    let is_for_static = matches!(shape.action, Action::Internal | Action::Replaced) && !is_later;
    let is_exported = out.exports_malloc && symbol.is_global && !is_for_static;
    let is_hidden = hides_allocator(out, own) && !symbol.is_global && !is_for_static;
    if meaning.is_common && !out.is_static && !is_exported && !is_hidden {
        return;
    }
    let allocator = if meaning.allocator == OWN_MALLOC { own } else { &meaning.allocator };
    let is_standalone = out.is_static || reach == Reach::Running;
    let is_operator = is_standalone && families::is_operator(&symbol.name);
    if is_operator && own == OWN_MALLOC {
        // The C++ run-time's operators call `malloc`.
        return;
    }
    let name = String::from_utf8_lossy(&symbol.name).into_owned();
    if let Some(known) = out.functions.iter_mut().find(|known| known.address == symbol.address) {
        if known.shape != shape {
            known.refusal.get_or_insert("functions with other arguments are at the same address");
        }
        if !known.names.contains(&name) {
            known.names.push(name);
        }
        return;
    }
    let size = usize::try_from(symbol.size).unwrap_or(usize::MAX);
    let code = symbols::code(file, &elf.code, symbol.address, size.clamp(KEPT_BYTES, MAX_SCANNED));
    let refusal = if symbol.is_indirect {
        Some("the loader chooses it at run time")
    } else if is_operator {
        Some(match reach {
            Reach::FromStart => "an exception could not pass through its hook in a static program",
            Reach::Running => "an exception could not pass through its hook in a program that runs already",
        })
    } else {
        moved::start(&code, symbol.address, size).err().map(Refusal::text)
    };
    out.functions.push(FileFunction {
        names: vec![name],
        allocator: allocator.to_owned(),
        shape,
        address: symbol.address,
        code: code.into_iter().take(KEPT_BYTES).collect(),
        refusal,
    });
}

//! The allocator functions of one file, as they are before relocation.

use super::families::{self, Names, OWN_MALLOC, Shape};
use super::moved::{self, MAX_SCANNED, Refusal};
use super::symbols::{self, ElfFile, Fault, Symbol};
use std::fs::File;
use std::time::Instant;
use wire::patches::{Action, MAX_MOVED};

/// Bytes of a function that are kept: `endbr64`, and what may be moved.
const KEPT_BYTES: usize = 2 * MAX_MOVED;

/// A function of an allocator in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFunction {
    /// The names, which are aliases.
    pub names: Vec<String>,
    /// Name of the allocator.
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
pub struct FileFunctions {
    /// The functions by address.
    pub functions: Vec<FileFunction>,
    /// Executable segments of the file.
    pub code: Vec<symbols::CodeSegment>,
    /// Whether the file defines `malloc` for other objects.
    pub exports_malloc: bool,
    /// Whether the file is a static program.
    pub is_static: bool,
}

/// Reads the functions of a file. `is_program` is whether it is the program, and not a library.
///
/// # Errors
/// Why the file was not searched.
pub fn functions(file: &File, names: &Names, is_program: bool, deadline: Instant) -> Result<FileFunctions, Fault> {
    let mut elf = symbols::find(file, names, deadline)?;
    if !elf.has_all_names
        && let Some(debug) = debug_file(&elf.build_id)
        && let Ok(all) = symbols::find(&debug, names, deadline)
        && all.build_id == elf.build_id
    {
        elf.symbols.extend(all.symbols);
        elf.symbols.sort();
        elf.symbols.dedup_by(|again, first| again.name == first.name && again.address == first.address);
    }
    let mut out = FileFunctions { exports_malloc: defines_malloc(&elf), ..FileFunctions::default() };
    if is_program && elf.is_static {
        out.is_static = true;
        drop_ambiguous(&mut elf.symbols);
    }
    // The calls of a library's `malloc` go to the preload library's, which calls this one.
    if is_program || !out.exports_malloc {
        let own = families::own_allocator(|name| elf.symbols.iter().any(|symbol| symbol.name == name));
        for symbol in &elf.symbols {
            add(file, &elf, symbol, names, own, &mut out);
        }
    }
    out.functions.sort_by_key(|function| function.address);
    out.code = elf.code;
    Ok(out)
}

/// Drops the symbols of a static program whose name does not say which function is meant: local
/// ones, if another function has the same name.
fn drop_ambiguous(symbols: &mut Vec<Symbol>) {
    let all = symbols.clone();
    let is_other = |symbol: &Symbol, other: &Symbol| other.name == symbol.name && other.address != symbol.address;
    symbols.retain(|symbol| symbol.is_global || !all.iter().any(|other| is_other(symbol, other)));
}

fn defines_malloc(elf: &ElfFile) -> bool {
    elf.symbols.iter().any(|symbol| symbol.is_global && symbol.name == b"malloc")
}

fn add(file: &File, elf: &ElfFile, symbol: &Symbol, names: &Names, own: &str, out: &mut FileFunctions) {
    let Some(meaning) = names.meaning(&symbol.name) else { return };
    let Some(shape) = meaning.shape else { return };
    let is_for_static = matches!(shape.action, Action::Internal | Action::Replaced);
    let is_exported = out.exports_malloc && symbol.is_global && !is_for_static;
    if meaning.is_common && !out.is_static && !is_exported {
        return;
    }
    let allocator = if meaning.allocator == OWN_MALLOC { own } else { &meaning.allocator };
    let is_operator = out.is_static && families::is_operator(&symbol.name);
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
        Some("an exception could not pass through its hook in a static program")
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

/// Opens the separate debug information of a build-id, where distributions install it.
fn debug_file(build_id: &[u8]) -> Option<File> {
    let (first, rest) = build_id.split_first()?;
    let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    let file = File::open(format!("/usr/lib/debug/.build-id/{first:02x}/{rest}.debug")).ok()?;
    let is_regular =
        nix::sys::stat::fstat(&file).is_ok_and(|status| status.st_mode & nix::libc::S_IFMT == nix::libc::S_IFREG);
    is_regular.then_some(file)
}

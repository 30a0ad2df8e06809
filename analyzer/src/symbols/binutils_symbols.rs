//! The symbols of an ELF file that GNU gprof 2.40 regards as functions. The selection follows its
//! observed behavior.

use object::read::elf::{ElfFile, FileHeader, SectionHeader, Sym};
use object::{Endianness, elf};
use std::cell::Cell;

/// Maximum total length of the names, as a multiple of the file size. Names may overlap, so few
/// bytes could encode any amount of text. In real files the total is less than the file size.
pub(super) const NAME_BUDGET: usize = 16;

/// A symbol that may name code.
pub struct BinutilsSymbol {
    pub address: u64,
    /// Name of the symbol as the linker sees it.
    pub name: String,
    /// Whether the symbol has the type of a function. Labels in assembly often do not.
    pub is_function: bool,
    /// Whether the symbol has local binding.
    pub is_local: bool,
}

/// Returns the symbols that gprof regards as functions, in the order of the symbol table. Returns
/// `None` if their names are much longer than the file.
pub(super) fn read<E: FileHeader<Endian = Endianness>>(
    file: &ElfFile<'_, E>,
    size: usize,
) -> Option<Vec<BinutilsSymbol>> {
    let budget = Cell::new(Some(size.saturating_mul(NAME_BUDGET)));
    let endian = file.endian();
    // gprof rejects a stripped file. Its dynamic symbols still name the exported functions.
    let table =
        if file.elf_symbol_table().is_empty() { file.elf_dynamic_symbol_table() } else { file.elf_symbol_table() };
    let strings = table.strings();
    let mut found = Vec::new();
    for (index, symbol) in table.enumerate() {
        let kind = symbol.st_type();
        let bind = symbol.st_bind();
        let section = symbol.st_shndx(endian);
        if matches!(kind, elf::STT_SECTION | elf::STT_FILE | elf::STT_GNU_IFUNC) || section == elf::SHN_UNDEF {
            continue;
        }
        let flags = table.symbol_section(endian, symbol, index).ok().flatten();
        let flags = flags
            .and_then(|index| file.elf_section_table().section(index).ok())
            .map(|section| section.sh_flags(endian));
        let code = flags.is_some_and(|flags| flags.contains(elf::SHF_EXECINSTR));
        // Weak symbols count in any section, unless they have the type of an object.
        let counts = match bind {
            elf::STB_WEAK => kind != elf::STT_OBJECT,
            elf::STB_GLOBAL | elf::STB_LOCAL => code,
            _ => false,
        };
        let offset = symbol.st_name(endian);
        let string = |offset: u32| {
            let name = strings.get(offset).unwrap_or_default();
            budget.set(budget.get().and_then(|left| left.checked_sub(name.len())));
            name
        };
        let name = string(offset);
        let is_local = bind == elf::STB_LOCAL;
        if !counts || name.is_empty() || (is_local && !is_function_name(offset, string)) {
            continue;
        }
        budget.get()?;
        found.push(BinutilsSymbol {
            address: symbol.st_value(endian).into(),
            name: String::from_utf8_lossy(name).into_owned(),
            is_function: kind == elf::STT_FUNC,
            is_local,
        });
    }
    Some(found)
}

/// Returns whether the name of a local symbol is that of a function: no `$`, and a `.` only before
/// a number (`f.1`, `f.constprop.0`, `f.clone.2`).
///
/// After an accepted suffix, gprof 2.40 continues past the end of the name into the next string of
/// the table. So whether `f.constprop.0` counts depends on the next string. The numbers are equal
/// to gprof's only if this is repeated here.
pub(super) fn is_function_name<'a>(offset: u32, string: impl Fn(u32) -> &'a [u8]) -> bool {
    let mut start = offset;
    loop {
        let name = string(start);
        if start == offset && [&b"__gnu_compiled"[..], b"___gnu_compiled"].iter().any(|start| name.starts_with(start)) {
            return false;
        }
        let Some(has_suffix) = scan(name) else { return false };
        match start.checked_add(name.len() as u32 + 1) {
            Some(next) if has_suffix => start = next,
            _ => return true,
        }
    }
}

/// Returns `None` if a name is not that of a function, else whether it ends in an accepted suffix.
fn scan(name: &[u8]) -> Option<bool> {
    let mut index = 0;
    let mut suffix = false;
    while index < name.len() {
        match name[index] {
            b'$' => return None,
            b'.' => {
                let prefixes = [&b".clone."[..], b".constprop."];
                let prefix = prefixes
                    .into_iter()
                    .find(|prefix| name[index..].starts_with(prefix) && name.len() - index > prefix.len());
                index += prefix.map_or(1, <[u8]>::len);
                let digits = name[index..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                index += digits;
                if index < name.len() && (digits == 0 || name[index] != b'.') {
                    return None;
                }
                suffix = true;
            }
            _ => index += 1,
        }
    }
    Some(suffix)
}

//! The symbols of a Windows program that GNU gprof 2.40 regards as functions. The rules are those
//! for ELF files, seen through what a COFF symbol has: a storage class and a section.

use super::binutils_symbols::{BinutilsSymbol, NAME_BUDGET, is_function_name};
use object::pe::{
    IMAGE_SCN_CNT_CODE, IMAGE_SYM_CLASS_EXTERNAL, IMAGE_SYM_CLASS_LABEL, IMAGE_SYM_CLASS_STATIC,
    IMAGE_SYM_CLASS_WEAK_EXTERNAL, IMAGE_SYM_DTYPE_FUNCTION,
};
use object::read::coff::Symbol;
use object::read::pe::{ImageNtHeaders, ImageOptionalHeader, PeFile};
use object::{LittleEndian, Object};

/// Returns the functions in the order of the symbol table, or `None` if their names are much longer
/// than the file.
pub(super) fn read<Pe: ImageNtHeaders>(file: &PeFile<'_, Pe>, size: usize) -> Option<Vec<BinutilsSymbol>> {
    let mut budget = size.saturating_mul(NAME_BUDGET);
    let base = file.nt_headers().optional_header().image_base();
    let has_underscores = has_underscores(file);
    let Ok(table) = file.nt_headers().symbols(file.data()) else { return Some(Vec::new()) };
    let sections = file.section_table();
    let mut found = Vec::new();
    for (_, symbol) in table.iter() {
        let class = symbol.storage_class();
        let is_local = matches!(class, IMAGE_SYM_CLASS_STATIC | IMAGE_SYM_CLASS_LABEL);
        let is_weak = class == IMAGE_SYM_CLASS_WEAK_EXTERNAL;
        if !is_local && !is_weak && class != IMAGE_SYM_CLASS_EXTERNAL {
            continue;
        }
        let Some(section) = symbol.section().and_then(|index| sections.section(index).ok()) else { continue };
        let is_code = section.characteristics.get(LittleEndian).contains(IMAGE_SCN_CNT_CODE);
        let Ok(name) = symbol.name(table.strings()) else { continue };
        budget = budget.checked_sub(name.len())?;
        if name.is_empty() || !(is_code || is_weak) {
            continue;
        }
        if is_local && (!is_function_name(0, |_| name) || has_underscores && name[0] != b'_') {
            continue;
        }
        let address =
            base.wrapping_add(section.virtual_address.get(LittleEndian).into()).wrapping_add(symbol.value().into());
        found.push(BinutilsSymbol {
            address,
            name: String::from_utf8_lossy(name).into_owned(),
            // The binutils mark only external symbols as functions, so calls of a static function
            // count for the external one before it.
            is_function: !is_local && symbol.derived_type() == IMAGE_SYM_DTYPE_FUNCTION,
            is_local,
        });
    }
    Some(found)
}

/// Whether the compiler puts an underscore before each name, as on i386. Labels in assembly have
/// none.
pub(super) fn has_underscores<'data>(file: &impl Object<'data>) -> bool {
    file.architecture() == object::Architecture::I386
}

//! Source lines of an ELF file in memory, as the binutils print them: without inlined callers.

use addr2line::Context;
use gimli::{EndianArcSlice, RunTimeEndian};
use rustc_hash::FxHashSet;
use std::cell::Cell;
use std::ops::Range;

/// The line numbers of a file.
pub struct Lines {
    context: Context<EndianArcSlice<RunTimeEndian>>,
    /// Number of bytes of names that may still be read from the debug information.
    name_budget: Cell<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourceLine {
    /// Path of the source file, including the compilation directory.
    pub file: String,
    /// Line number, from 1.
    pub line: u32,
}

/// The line of the instructions from an address on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineStart {
    /// Address of the first instruction.
    pub address: u64,
    pub line: SourceLine,
}

fn source_line(location: &addr2line::Location<'_>) -> Option<SourceLine> {
    Some(SourceLine { file: location.file?.to_string(), line: location.line? })
}

impl Lines {
    /// Returns the lines of a context. Names of functions are read up to `name_budget` bytes.
    pub(super) fn new(context: Context<EndianArcSlice<RunTimeEndian>>, name_budget: usize) -> Lines {
        Lines { context, name_budget: Cell::new(name_budget) }
    }

    pub fn at(&self, address: u64) -> Option<SourceLine> {
        source_line(&self.context.find_location(address).ok()??)
    }

    /// Returns the source lines of a range of addresses in ascending order. Addresses without a
    /// line are left out.
    pub fn within(&self, range: Range<u64>) -> Vec<LineStart> {
        let Ok(found) = self.context.find_location_range(range.start, range.end) else { return Vec::new() };
        let start = |(address, _, location): (u64, u64, addr2line::Location<'_>)| {
            Some(LineStart { address: address.max(range.start), line: source_line(&location)? })
        };
        found.filter_map(start).collect()
    }

    /// Returns the addresses in a range where a function begins or ends, inlined ones included, in
    /// ascending order.
    pub fn function_bounds(&self, range: Range<u64>) -> Vec<u64> {
        let (mut units, mut bounds) = (FxHashSet::default(), Vec::new());
        let Ok(rows) = self.context.find_location_range(range.start, range.end) else { return bounds };
        for (address, ..) in rows {
            let Some(unit) = self.context.find_dwarf_and_unit(address).skip_all_loads() else { continue };
            if units.insert(unit.header.offset()) {
                let _ = add_bounds(unit, &range, &mut bounds);
            }
        }
        bounds.sort_unstable();
        bounds.dedup();
        bounds
    }

    /// Returns whether the debug information has a function at an address.
    pub fn has_function(&self, address: u64) -> bool {
        let frame =
            self.context.find_frames(address).skip_all_loads().ok().and_then(|mut frames| frames.next().ok()?);
        frame.is_some_and(|frame| frame.function.is_some())
    }

    /// Returns the name of the innermost function at an address, which may be inlined, if it is the
    /// name in the symbol table.
    pub fn linker_name(&self, address: u64) -> Option<String> {
        let function = self.context.find_frames(address).skip_all_loads().ok()?.next().ok()??.function?;
        let name = function.raw_name().ok()?;
        // Where the linker's name differs from the name in the source, only the linker's name
        // matches the symbol table.
        let is_linker_name = ["_Z", "_R", "_D"].iter().any(|start| name.starts_with(start))
            || function.language.is_some_and(|language| FORTRAN.contains(&language)) && is_fortran_symbol(&name);
        let is_plain = function.language.is_none_or(|language| PLAIN_LANGUAGES.contains(&language));
        let left = self.name_budget.get().checked_sub(name.len()).filter(|_| is_linker_name || is_plain)?;
        self.name_budget.set(left);
        Some(name.into_owned())
    }
}

/// Returns whether a name is what gfortran gives the linker: `__module_MOD_name`, `name_`,
/// `MAIN__`. No name in a source begins with an underscore.
fn is_fortran_symbol(name: &str) -> bool {
    name.starts_with("__") || name.ends_with('_')
}

const FORTRAN: [gimli::DwLang; 5] = [
    gimli::DW_LANG_Fortran90,
    gimli::DW_LANG_Fortran95,
    gimli::DW_LANG_Fortran03,
    gimli::DW_LANG_Fortran08,
    gimli::DW_LANG_Fortran18,
];

/// Maximum number of bounds of functions. Entries of a damaged file may share one long list of
/// ranges.
const MOST_BOUNDS: usize = 1 << 22;

/// Adds the bounds of the functions of a unit.
fn add_bounds(
    unit: gimli::UnitRef<'_, EndianArcSlice<RunTimeEndian>>,
    within: &Range<u64>,
    bounds: &mut Vec<u64>,
) -> gimli::Result<()> {
    let mut entries = unit.entries();
    while let Some(entry) = entries.next_dfs()? {
        if !matches!(entry.tag(), gimli::DW_TAG_subprogram | gimli::DW_TAG_inlined_subroutine) {
            continue;
        }
        let mut ranges = unit.die_ranges(entry)?;
        while let Some(range) = ranges.next()?
            && bounds.len() < MOST_BOUNDS
        {
            bounds.extend([range.begin, range.end].into_iter().filter(|bound| within.contains(bound)));
        }
    }
    Ok(())
}

/// Languages whose functions have the same name in the source and in the symbol table.
const PLAIN_LANGUAGES: [gimli::DwLang; 10] = [
    gimli::DW_LANG_C89,
    gimli::DW_LANG_C,
    gimli::DW_LANG_C99,
    gimli::DW_LANG_C11,
    gimli::DW_LANG_C17,
    gimli::DW_LANG_Fortran77,
    gimli::DW_LANG_Pascal83,
    gimli::DW_LANG_ObjC,
    gimli::DW_LANG_UPC,
    gimli::DW_LANG_Mips_Assembler,
];

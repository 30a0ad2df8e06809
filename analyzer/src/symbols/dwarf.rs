//! Source lines and inlined functions from DWARF, by addr2line. Debug information is read only for
//! modules of which a frame is printed.

use super::elf::Elf;
use super::files::package;
use super::scopes::Scopes;
use crate::frame::{MOST_INLINED, SourceFrame};
use addr2line::{Context, LookupContinuation, LookupResult, SplitDwarfLoad};
use gimli::{Dwarf, DwarfPackage, EndianArcSlice, RunTimeEndian};
use std::path::{Path, PathBuf};
use std::sync::Arc;

type Slice = EndianArcSlice<RunTimeEndian>;

/// The debug information of one file.
pub(super) struct Debug {
    context: Context<Slice>,
    scopes: Scopes,
    /// Package of split units.
    package: Option<DwarfPackage<Slice>>,
}

/// Maximum number of bytes of debug information that are read of all split units together.
const MOST_SPLIT: u64 = 2 << 30;

impl Debug {
    /// Reads the debug sections of a file, with at most `most` bytes of `.debug_info`.
    pub(super) fn read(elf: &Elf, path: &Path, most: u64) -> Option<Debug> {
        let size = elf.section_size(".debug_info");
        if size == 0 || size > most {
            return None;
        }
        let mut dwarf = Dwarf::load(|id| load(elf, id.name())).ok()?;
        if let Some(shared) = elf.alternative_link().and_then(|link| Elf::open(&resolve_link(path, &link))) {
            dwarf.load_sup(|id| load(&shared, id.name())).ok()?;
        }
        let context = Context::from_dwarf(dwarf).ok()?;
        let package = Elf::open(&package(path)).and_then(|packed| {
            let fits = packed.section_size(".debug_info.dwo") <= MOST_SPLIT;
            let empty = EndianArcSlice::new(Arc::from([]), endian(&packed));
            let sections = |id: gimli::SectionId| load(&packed, id.dwo_name().unwrap_or_default());
            fits.then(|| DwarfPackage::load(sections, empty).ok())?
        });
        Some(Debug { context, scopes: Scopes::default(), package })
    }

    /// Returns a split unit from the package, or from the file that its skeleton names.
    fn unit(&self, wanted: &SplitDwarfLoad<Slice>) -> Option<Arc<Dwarf<Slice>>> {
        if let Some(package) = &self.package {
            return package.find_cu(wanted.dwo_id, &wanted.parent).ok()?.map(Arc::new);
        }
        let text = |slice: &Option<Slice>| slice.as_ref().map(|slice| String::from_utf8_lossy(slice).into_owned());
        let folder = text(&wanted.comp_dir).unwrap_or_default();
        let elf = Elf::open(&Path::new(&folder).join(text(&wanted.path)?))?;
        if elf.section_size(".debug_info.dwo") > MOST_SPLIT {
            return None;
        }
        let mut unit = Dwarf::load(|id| load(&elf, id.dwo_name().unwrap_or_default())).ok()?;
        unit.make_dwo(&wanted.parent);
        Some(Arc::new(unit))
    }

    /// Returns the name of a C++ function with its scopes, by the offset of its entry in the unit
    /// of an address.
    fn whole_name(&self, address: u64, offset: gimli::UnitOffset<usize>) -> Option<String> {
        let mut lookup = self.context.find_dwarf_and_unit(address);
        let unit = loop {
            match lookup {
                LookupResult::Output(unit) => break unit?,
                LookupResult::Load { load, continuation } => lookup = continuation.resume(self.unit(&load)),
            }
        };
        self.scopes.name(unit, offset)
    }

    /// Returns the frames of a link-time address, innermost (most deeply inlined) first.
    pub(super) fn find(&self, address: u64) -> Vec<SourceFrame> {
        let mut lookup = self.context.find_frames(address);
        let found = loop {
            match lookup {
                LookupResult::Output(found) => break found,
                LookupResult::Load { load, continuation } => lookup = continuation.resume(self.unit(&load)),
            }
        };
        let Ok(mut frames) = found else { return Vec::new() };
        let mut found = Vec::new();
        while let Ok(Some(frame)) = frames.next() {
            let mut symbol =
                frame.function.as_ref().and_then(|name| name.raw_name().ok().map(|name| name.into_owned()));
            if is_bare(frame.function.as_ref(), symbol.as_deref())
                && let Some(offset) = frame.dw_die_offset
                && let Some(whole) = self.whole_name(address, offset)
            {
                symbol = Some(whole);
            }
            let (file, line) = match &frame.location {
                Some(location) => (location.file.map(str::to_string), location.line.filter(|&line| line > 0)),
                None => (None, None),
            };
            found.push(SourceFrame { symbol, file, line });
            if found.len() == MOST_INLINED {
                break;
            }
        }
        found
    }
}

/// Returns whether this is the name of a C++ function without its scopes.
fn is_bare(function: Option<&addr2line::FunctionName<Slice>>, symbol: Option<&str>) -> bool {
    let language = function.and_then(|function| function.language);
    let is_cpp = language.is_some_and(|language| {
        matches!(
            language,
            gimli::DW_LANG_C_plus_plus
                | gimli::DW_LANG_C_plus_plus_03
                | gimli::DW_LANG_C_plus_plus_11
                | gimli::DW_LANG_C_plus_plus_14
                | gimli::DW_LANG_C_plus_plus_17
                | gimli::DW_LANG_C_plus_plus_20
        )
    });
    is_cpp && symbol.is_some_and(|symbol| !symbol.starts_with("_Z"))
}

fn load(elf: &Elf, name: &str) -> Result<Slice, gimli::Error> {
    let bytes = if name.is_empty() { Vec::new() } else { elf.section(name) };
    Ok(EndianArcSlice::new(Arc::from(bytes), endian(elf)))
}

fn endian(elf: &Elf) -> RunTimeEndian {
    if elf.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big }
}

/// Returns the path of a link that is relative to the file that contains it.
fn resolve_link(path: &Path, link: &str) -> PathBuf {
    path.parent().map_or_else(|| PathBuf::from(link), |folder| folder.join(link))
}

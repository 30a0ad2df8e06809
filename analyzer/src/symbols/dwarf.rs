//! Source lines and inlined functions from DWARF, by addr2line. Debug information is read only for
//! modules of which a frame is printed.

use super::elf::Elf;
use super::files::{self, package};
use super::rust_names::is_legacy;
use super::scopes::{Scopes, Slice, has_scopes};
use super::wanted_units;
use crate::frame::{MOST_INLINED, SourceFrame};
use addr2line::{Context, LookupContinuation, LookupResult, SplitDwarfLoad};
use gimli::{Dwarf, DwarfPackage, EndianArcSlice, RunTimeEndian, UnitRef};
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The debug information of one file.
pub(super) struct Debug {
    context: Context<Slice>,
    scopes: Scopes,
    /// Package of split units.
    package: Option<DwarfPackage<Slice>>,
    folder: PathBuf,
    /// Files with parts of the debug information that were needed and are missing.
    missing: RefCell<BTreeSet<String>>,
}

/// Maximum number of bytes of debug information that are read of all split units together.
const MOST_SPLIT: u64 = 2 << 30;

impl Debug {
    /// Reads the debug sections of a file, with at most `most` bytes of `.debug_info`. `module` is
    /// the path of the module, beside which further files are if the file was opened by another
    /// process. If `wanted` is not empty, only these addresses, which are sorted, are asked for.
    pub(super) fn read(elf: &Elf, path: &Path, module: &str, most: u64, wanted: &[u64]) -> Option<Debug> {
        let size = elf.section_size(".debug_info");
        if size == 0 || size > most {
            return None;
        }
        let real = real_path(path, module);
        let path = &*real;
        let mut missing = BTreeSet::new();
        let mut dwarf = Dwarf::load(|id| load(elf, id.name())).ok()?;
        if let Some((link, build_id)) = elf.alternative_link() {
            let candidates = shared_files(path, &link, &build_id);
            let fits = |shared: &Elf| build_id.is_empty() || shared.build_id == build_id;
            match candidates.iter().find_map(|candidate| Elf::open(candidate).filter(fits)) {
                Some(shared) => dwarf.load_sup(|id| load(&shared, id.name())).ok()?,
                None => drop(missing.insert(shown(&candidates[0]))),
            }
        }
        if !wanted.is_empty()
            && let Some(units) = wanted_units::of(&dwarf, wanted)
        {
            dwarf.debug_info = units.into();
            // It has offsets in the whole section.
            dwarf.debug_aranges = EndianArcSlice::new(Arc::from([]), endian(elf)).into();
        }
        let context = Context::from_dwarf(dwarf).ok()?;
        let package = Elf::open(&package(path)).and_then(|packed| {
            let fits = packed.section_size(".debug_info.dwo") <= MOST_SPLIT;
            let empty = EndianArcSlice::new(Arc::from([]), endian(&packed));
            let sections = |id: gimli::SectionId| load(&packed, id.dwo_name().unwrap_or_default());
            fits.then(|| DwarfPackage::load(sections, empty).ok())?
        });
        let folder = path.parent().unwrap_or(Path::new("/")).to_path_buf();
        Some(Debug { context, scopes: Scopes::default(), package, folder, missing: missing.into() })
    }

    /// Returns the files that were needed and are missing.
    pub(super) fn missing(&self) -> Vec<String> {
        self.missing.borrow().iter().cloned().collect()
    }

    /// Returns a split unit from the package, or from the file that its skeleton names.
    fn unit(&self, wanted: &SplitDwarfLoad<Slice>) -> Option<Arc<Dwarf<Slice>>> {
        let packed = self.package.as_ref().and_then(|package| package.find_cu(wanted.dwo_id, &wanted.parent).ok()?);
        if let Some(packed) = packed {
            return Some(Arc::new(packed));
        }
        let text = |slice: &Option<Slice>| slice.as_ref().map(|slice| String::from_utf8_lossy(slice).into_owned());
        let named = PathBuf::from(text(&wanted.path)?);
        let compiled_in = PathBuf::from(text(&wanted.comp_dir).unwrap_or_default()).join(&named);
        // The folder may have been moved since it was compiled, with the program or without it.
        let beside = named.file_name().map(|name| self.folder.join(name));
        let candidates = [Some(compiled_in.clone()), Some(self.folder.join(&named)), beside];
        let found = candidates.iter().flatten().find_map(|candidate| split_unit(candidate, wanted));
        if found.is_none() {
            self.missing.borrow_mut().insert(shown(&compiled_in));
        }
        found.map(Arc::new)
    }

    fn unit_of(&self, address: u64) -> Option<UnitRef<'_, Slice>> {
        let mut lookup = self.context.find_dwarf_and_unit(address);
        loop {
            match lookup {
                LookupResult::Output(unit) => return unit,
                LookupResult::Load { load, continuation } => lookup = continuation.resume(self.unit(&load)),
            }
        }
    }

    /// Returns whether the functions at an address are in a split unit that is missing.
    fn lacks_functions(&self, address: u64) -> bool {
        let is_skeleton =
            |unit: UnitRef<'_, Slice>| unit.dwo_id.is_some() && unit.dwarf.file_type == gimli::DwarfFileType::Main;
        self.unit_of(address).is_some_and(is_skeleton)
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
            let is_less =
                is_bare(frame.function.as_ref(), symbol.as_deref()) || symbol.as_deref().is_some_and(is_legacy);
            if is_less
                && let Some(offset) = frame.dw_die_offset
                && let Some(whole) = self.unit_of(address).and_then(|unit| self.scopes.name(unit, offset))
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
        // The line of an inlined function without a name would be read as a line of its caller.
        let outermost = found.len().saturating_sub(1);
        let mut number = 0..;
        found.retain(|frame| frame.symbol.is_some() || number.next() >= Some(outermost));
        match &found[..] {
            [SourceFrame { symbol: None, .. }] if self.lacks_functions(address) => Vec::new(),
            _ => found,
        }
    }
}

/// Returns whether this may be the name of a C++ or Rust function without its scopes. The language
/// of a split unit is not known here, and the link-time optimizer writes that of C.
fn is_bare(function: Option<&addr2line::FunctionName<Slice>>, symbol: Option<&str>) -> bool {
    let language = function.and_then(|function| function.language);
    let is_other = language.is_some_and(|language| !has_scopes(language) && !OPTIMIZER.contains(&language));
    !is_other && symbol.is_some_and(|symbol| !symbol.starts_with("_Z") && !symbol.starts_with("_R"))
}

/// Languages that GCC's link-time optimizer writes.
const OPTIMIZER: [gimli::DwLang; 3] = [gimli::DW_LANG_C, gimli::DW_LANG_C99, gimli::DW_LANG_C11];

/// Reads a file with one split unit; `None` if it is not the one that the skeleton refers to.
fn split_unit(path: &Path, wanted: &SplitDwarfLoad<Slice>) -> Option<Dwarf<Slice>> {
    let elf = Elf::open(path)?;
    if elf.section_size(".debug_info.dwo") > MOST_SPLIT {
        return None;
    }
    let mut dwarf = Dwarf::load(|id| load(&elf, id.dwo_name().unwrap_or_default())).ok()?;
    dwarf.make_dwo(&wanted.parent);
    // The file may be of a later build.
    let header = dwarf.units().next().ok()??;
    (dwarf.unit(header).ok()?.dwo_id == Some(wanted.dwo_id)).then_some(dwarf)
}

/// Returns the paths at which the file that dwz has made may be, the one that is linked first.
fn shared_files(path: &Path, link: &str, build_id: &[u8]) -> Vec<PathBuf> {
    let mut candidates = vec![resolve_link(path, link)];
    candidates.extend(files::by_build_id(Path::new(files::DEBUG_ROOT), build_id));
    candidates
}

/// Returns a path without `..`, for people.
fn shown(path: &Path) -> String {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => drop(plain.pop()),
            part => plain.push(part),
        }
    }
    plain.display().to_string()
}

/// Sections that say where variables are, what macros mean, and which unit has a name. Nothing here
/// asks for that, and the first are a third of what a compressed file of libc unpacks to. Those of
/// split units are read: in a package, a unit's part of each section must be there.
const UNUSED: [&str; 5] = [".debug_loc", ".debug_loclists", ".debug_macinfo", ".debug_macro", ".debug_names"];

fn load(elf: &Elf, name: &str) -> Result<Slice, gimli::Error> {
    let is_unused = name.is_empty() || UNUSED.contains(&name);
    let bytes = if is_unused { Arc::from([]) } else { elf.section(name) };
    Ok(EndianArcSlice::new(bytes, endian(elf)))
}

fn endian(elf: &Elf) -> RunTimeEndian {
    if elf.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big }
}

/// Returns the path of a file of which only a descriptor is known, as links of the file mean it.
/// What was copied into memory was at the path of its module.
fn real_path<'a>(path: &'a Path, module: &'a str) -> Cow<'a, Path> {
    if !path.starts_with("/proc/self/fd") {
        return path.into();
    }
    let found = std::fs::read_link(path)
        .ok()
        .filter(|real| real.is_absolute() && !real.as_os_str().as_encoded_bytes().starts_with(b"/memfd:"));
    found.filter(|real| real.parent().is_some_and(Path::is_dir)).map_or_else(|| Path::new(module).into(), Into::into)
}

/// Returns the path of a link that may be relative to the file that contains it.
fn resolve_link(path: &Path, link: &str) -> PathBuf {
    path.parent().map_or_else(|| PathBuf::from(link), |folder| folder.join(link))
}

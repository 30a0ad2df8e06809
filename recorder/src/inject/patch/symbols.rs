//! Finds a few names in the symbol tables of an ELF file, however large these are.
//!
//! The file belongs to a program that may be hostile. It is read by `pread`, so that a file that
//! shrinks is an error and not a signal. Memory is bounded by [`CHUNK`] and [`MAX_CANDIDATES`], and
//! time by a deadline.

use super::families::MAX_NAME;
use super::names::Names;
use crate::os::processor::MACHINE;
use object::elf::{self, FileHeader64, ProgramHeader64, SectionHeader64, Sym64};
use object::endian::LittleEndian;
use object::pod::{Pod, slice_from_all_bytes};
use rustc_hash::{FxHashMap, FxHashSet};
use std::ffi::CStr;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Instant;

const ORDER: LittleEndian = LittleEndian;
/// Number of bytes that are read at once.
const CHUNK: usize = 1 << 20;
/// The most places in a string table at which a wanted name may begin.
const MAX_CANDIDATES: usize = 1 << 16;
/// The most symbols that are returned.
const MAX_FOUND: usize = 4096;
/// The most sections, or segments, that are read.
const MAX_HEADERS: usize = 1 << 16;
/// Maximum number of sections with constants that are kept.
const MAX_CONSTANTS: usize = 64;

/// A function that was found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Symbol {
    /// Name in the symbol table.
    pub name: Vec<u8>,
    /// The address before relocation.
    pub address: u64,
    /// Size in bytes; 0 if it is not known.
    pub size: u64,
    /// Whether other objects can refer to it.
    pub is_global: bool,
    /// Whether the loader chooses the function by calling this symbol (IFUNC).
    pub is_indirect: bool,
}

/// A segment that is mapped with the right to execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CodeSegment {
    pub offset: u64,
    /// Address of its first byte before relocation.
    pub address: u64,
    pub bytes: u64,
}

/// Why symbols could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is not a 64-bit ELF file for this processor, or its tables are not valid.
    Invalid,
    /// The deadline has passed.
    Late,
}

/// What a file says about its symbols.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ElfFile {
    /// Executable segments of the file.
    pub code: Vec<CodeSegment>,
    /// The wanted functions, sorted, each once.
    pub symbols: Vec<Symbol>,
    /// The wanted functions that the file takes from others, sorted.
    pub imports: Vec<Vec<u8>>,
    /// Whether there is a full symbol table, and not only names for the loader.
    pub has_all_names: bool,
    /// Whether it is a static program: nothing loads it but the kernel.
    pub is_static: bool,
    /// The build-id; empty if there is none.
    pub build_id: Vec<u8>,
    /// The section `.gnu_debugdata`, with packed symbols.
    pub debug_data: Option<Section>,
    /// The section `.gnu_debuglink`, with the name of a separate file.
    pub debug_link: Option<Section>,
    /// The sections of a file without a full symbol table that may have its constants.
    pub constants: Vec<Section>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Section {
    pub offset: u64,
    pub bytes: u64,
}

impl Section {
    /// Returns the section that a header describes.
    fn of(header: &SectionHeader64<LittleEndian>) -> Section {
        Section { offset: header.sh_offset.get(ORDER), bytes: header.sh_size.get(ORDER) }
    }

    /// Reads the section; `None` if the file is shorter. The caller limits its size.
    pub(crate) fn read(&self, file: &File) -> Option<Vec<u8>> {
        // The size is that of the file at most, so that a hostile header reserves no memory.
        let end = self.offset.checked_add(self.bytes)?;
        (end <= file.metadata().ok()?.len()).then_some(())?;
        let mut out = vec![0; usize::try_from(self.bytes).ok()?];
        file.read_exact_at(&mut out, self.offset).ok()?;
        Some(out)
    }
}

/// Reads an array of at most `CHUNK` bytes.
fn read_array<T: Pod>(file: &File, offset: u64, count: usize) -> Result<Vec<T>, Fault> {
    let bytes = read(file, offset, count.checked_mul(size_of::<T>()).ok_or(Fault::Invalid)?)?;
    slice_from_all_bytes::<T>(&bytes).map(<[T]>::to_vec).map_err(|()| Fault::Invalid)
}

fn read(file: &File, offset: u64, bytes: usize) -> Result<Vec<u8>, Fault> {
    let mut out = vec![0; bytes.min(MAX_HEADERS * size_of::<SectionHeader64<LittleEndian>>())];
    file.read_exact_at(&mut out, offset).map_err(|_| Fault::Invalid)?;
    Ok(out)
}

/// What a file says about itself before its symbol tables are read.
#[derive(Clone, Debug)]
pub(crate) struct Headers {
    /// The file without symbols.
    pub file: ElfFile,
    sections: Vec<SectionHeader64<LittleEndian>>,
}

/// Reads the executable segments and the build-id of a file.
///
/// # Errors
/// [`Fault::Invalid`] for a file that is not understood.
pub(crate) fn headers(file: &File) -> Result<Headers, Fault> {
    let head = read_array::<FileHeader64<LittleEndian>>(file, 0, 1)?;
    let head = head.first().ok_or(Fault::Invalid)?;
    let ident = &head.e_ident;
    if ident.magic != elf::ELFMAG
        || ident.class != elf::ELFCLASS64
        || ident.data != elf::ELFDATA2LSB
        || head.e_machine.get(ORDER) != MACHINE
    {
        return Err(Fault::Invalid);
    }
    let mut found = ElfFile::default();
    let segments: Vec<ProgramHeader64<LittleEndian>> =
        read_array(file, head.e_phoff.get(ORDER), usize::from(head.e_phnum.get(ORDER)))?;
    for segment in &segments {
        let (offset, bytes) = (segment.p_offset.get(ORDER), segment.p_filesz.get(ORDER));
        if segment.p_type.get(ORDER) == elf::PT_LOAD && segment.p_flags.get(ORDER).0 & elf::PF_X.0 != 0 {
            found.code.push(CodeSegment { offset, address: segment.p_vaddr.get(ORDER), bytes });
        } else if segment.p_type.get(ORDER) == elf::PT_NOTE && found.build_id.is_empty() && bytes <= 4096 {
            // A separate file has the header, and not always the notes.
            found.build_id = read(file, offset, bytes as usize).map(|notes| build_id(&notes)).unwrap_or_default();
        }
    }
    found.is_static = is_static(file, head, &segments);
    let sections: Vec<SectionHeader64<LittleEndian>> =
        read_array(file, head.e_shoff.get(ORDER), usize::from(head.e_shnum.get(ORDER)))?;
    found.has_all_names = sections.iter().any(|section| section.sh_type.get(ORDER) == elf::SHT_SYMTAB);
    if !found.has_all_names {
        let names = sections.get(usize::from(head.e_shstrndx.get(ORDER).0));
        found.debug_data = section(file, &sections, names, b".gnu_debugdata\0");
        found.debug_link = section(file, &sections, names, b".gnu_debuglink\0");
        // Not by their names, since a program's layout may have been optimized afterwards (BOLT).
        let constants = sections.iter().filter(|section| is_constant(section)).take(MAX_CONSTANTS);
        found.constants = constants.map(Section::of).collect();
    }
    Ok(Headers { file: found, sections })
}

/// Reads the executable segments, the build-id, and the wanted symbols of a file.
///
/// # Errors
/// [`Fault::Invalid`] for a file that is not understood, [`Fault::Late`] if the deadline passed.
pub(crate) fn find(file: &File, names: &Names, deadline: Instant) -> Result<ElfFile, Fault> {
    headers(file)?.search(file, names, deadline)
}

impl Headers {
    /// Returns the bytes of the symbol tables and of their names, as the headers say.
    pub(crate) fn table_bytes(&self) -> u64 {
        let bytes = |section: &SectionHeader64<LittleEndian>| section.sh_size.get(ORDER);
        let names = |table: &SectionHeader64<LittleEndian>| self.sections.get(table.sh_link.get(ORDER) as usize);
        let sizes = self.tables().map(|table| bytes(table).saturating_add(names(table).map_or(0, bytes)));
        sizes.fold(0, u64::saturating_add)
    }

    fn tables(&self) -> impl Iterator<Item = &SectionHeader64<LittleEndian>> {
        let is_table = |kind| kind == elf::SHT_SYMTAB || kind == elf::SHT_DYNSYM;
        self.sections.iter().filter(move |section| is_table(section.sh_type.get(ORDER)))
    }

    /// Searches the symbol tables of the file.
    ///
    /// # Errors
    /// [`Fault::Invalid`] for tables that are not valid, [`Fault::Late`] if the deadline passed.
    pub(crate) fn search(&self, file: &File, names: &Names, deadline: Instant) -> Result<ElfFile, Fault> {
        let mut found = self.file.clone();
        for section in self.tables() {
            let strings = self.sections.get(section.sh_link.get(ORDER) as usize).ok_or(Fault::Invalid)?;
            if strings.sh_type.get(ORDER) != elf::SHT_STRTAB {
                return Err(Fault::Invalid);
            }
            let range =
                |section: &SectionHeader64<LittleEndian>| (section.sh_offset.get(ORDER), section.sh_size.get(ORDER));
            let candidates = candidates(file, range(strings), names, deadline)?;
            if !candidates.is_empty() {
                symbols(file, range(section), &candidates, deadline, &mut found)?;
            }
        }
        found.symbols.sort();
        found.symbols.dedup_by(|again, first| again.name == first.name && again.address == first.address);
        found.imports.sort();
        found.imports.dedup();
        Ok(found)
    }
}

/// Returns whether a section is loaded, and can neither be written nor executed.
fn is_constant(section: &SectionHeader64<LittleEndian>) -> bool {
    let flags = section.sh_flags.get(ORDER).0;
    let is_loaded = flags & elf::SHF_ALLOC.0 != 0;
    let is_changed = flags & (elf::SHF_WRITE.0 | elf::SHF_EXECINSTR.0) != 0;
    section.sh_type.get(ORDER) == elf::SHT_PROGBITS && is_loaded && !is_changed
}

/// Finds a section by its name, which ends with a 0.
fn section(
    file: &File,
    sections: &[SectionHeader64<LittleEndian>],
    names: Option<&SectionHeader64<LittleEndian>>,
    wanted: &[u8; 15],
) -> Option<Section> {
    let names = names?.sh_offset.get(ORDER);
    let has_name = |section: &&SectionHeader64<LittleEndian>| {
        let mut name = [0; 15];
        let at = names.checked_add(u64::from(section.sh_name.get(ORDER)));
        at.is_some_and(|at| file.read_exact_at(&mut name, at).is_ok()) && name == *wanted
    };
    let found = sections.iter().filter(|section| section.sh_type.get(ORDER) == elf::SHT_PROGBITS).find(has_name)?;
    Some(Section::of(found))
}

/// Returns whether a file is a static program. A file that can be loaded anywhere and names no
/// loader is one if its dynamic section says that it is a program. Otherwise it is a library that
/// can be run, as the loader itself is.
pub(crate) fn is_static(
    file: &File,
    head: &FileHeader64<LittleEndian>,
    segments: &[ProgramHeader64<LittleEndian>],
) -> bool {
    const DT_FLAGS_1: u64 = 0x6fff_fffb;
    const DF_1_PIE: u64 = 0x0800_0000;
    let of_kind = |kind| segments.iter().find(|segment| segment.p_type.get(ORDER) == kind);
    let is_marked = || {
        of_kind(elf::PT_DYNAMIC).is_some_and(|section| {
            let count = (section.p_filesz.get(ORDER) / 16).min(MAX_HEADERS as u64) as usize;
            let entries = read_array::<[u8; 16]>(file, section.p_offset.get(ORDER), count).unwrap_or_default();
            let mut entries = entries.iter().map(|entry| u128::from_le_bytes(*entry));
            entries.any(|entry| entry as u64 == DT_FLAGS_1 && (entry >> 64) as u64 & DF_1_PIE != 0)
        })
    };
    of_kind(elf::PT_INTERP).is_none() && (head.e_type.get(ORDER) == elf::ET_EXEC || is_marked())
}

/// Returns the build-id in the bytes of a note segment.
fn build_id(mut notes: &[u8]) -> Vec<u8> {
    const NT_GNU_BUILD_ID: u32 = 3;
    while let Some((head, rest)) = notes.split_at_checked(12) {
        let number = |at: usize| {
            head.get(at..at + 4)
                .map_or(0, |bytes| bytes.iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte)))
        };
        let (name_bytes, bytes, kind) = (number(0) as usize, number(4) as usize, number(8));
        let Some((name, rest)) = rest.split_at_checked(name_bytes.next_multiple_of(4)) else { break };
        let Some((id, rest)) = rest.split_at_checked(bytes.next_multiple_of(4)) else { break };
        if kind == NT_GNU_BUILD_ID && name == b"GNU\0" {
            return id.get(..bytes.min(64)).unwrap_or_default().to_vec();
        }
        notes = rest;
    }
    Vec::new()
}

/// Returns the offsets in a string table at which a wanted name begins, with the name. A linker
/// stores a name that another one ends with only once, so a name may begin inside of a string.
fn candidates(
    file: &File,
    (offset, bytes): (u64, u64),
    names: &Names,
    deadline: Instant,
) -> Result<FxHashMap<u32, Vec<u8>>, Fault> {
    let mut found = FxHashMap::default();
    let mut window = Vec::with_capacity(bytes.min(CHUNK as u64) as usize + MAX_NAME);
    let mut at = 0;
    // The first string begins after an empty one.
    while at < bytes {
        if Instant::now() > deadline {
            return Err(Fault::Late);
        }
        // The last bytes of the chunk before are kept, since a name may begin there.
        let kept = window.len().min(MAX_NAME);
        window.drain(..window.len() - kept);
        let count = (bytes - at).min(CHUNK as u64) as usize;
        window.resize(kept + count, 0);
        let target = window.get_mut(kept..).unwrap_or_default();
        file.read_exact_at(target, offset.checked_add(at).ok_or(Fault::Invalid)?).map_err(|_| Fault::Invalid)?;
        let mut next = kept;
        // The library's search for a zero is fast, also in a build without optimization.
        while let Ok(text) = CStr::from_bytes_until_nul(window.get(next..).unwrap_or_default()) {
            let end = next + text.count_bytes();
            next = end + 1;
            let text = window.get(..end).unwrap_or_default();
            for name in names.by_end(text).filter(|name| text.ends_with(name)) {
                let start = at + (end - kept) as u64;
                let Some(start) = start.checked_sub(name.len() as u64) else { continue };
                let Ok(start) = u32::try_from(start) else { continue };
                found.insert(start, name.to_vec());
                if found.len() > MAX_CANDIDATES {
                    return Err(Fault::Invalid);
                }
            }
        }
        at += count as u64;
    }
    Ok(found)
}

/// Finds the functions in a symbol table whose names begin at one of the candidates.
fn symbols(
    file: &File,
    (offset, bytes): (u64, u64),
    candidates: &FxHashMap<u32, Vec<u8>>,
    deadline: Instant,
    out: &mut ElfFile,
) -> Result<(), Fault> {
    const ENTRY: usize = size_of::<Sym64<LittleEndian>>();
    let starts: FxHashSet<u32> = candidates.keys().copied().collect();
    let mut chunk = vec![0; (CHUNK / ENTRY * ENTRY).min(usize::try_from(bytes).unwrap_or(usize::MAX))];
    let mut at = 0;
    while at < bytes {
        if Instant::now() > deadline {
            return Err(Fault::Late);
        }
        let count = (bytes - at).min(chunk.len() as u64) as usize / ENTRY * ENTRY;
        let target = chunk.get_mut(..count).unwrap_or_default();
        if target.is_empty() {
            break;
        }
        file.read_exact_at(target, offset.checked_add(at).ok_or(Fault::Invalid)?).map_err(|_| Fault::Invalid)?;
        let symbols = slice_from_all_bytes::<Sym64<LittleEndian>>(target).map_err(|()| Fault::Invalid)?;
        for symbol in symbols.iter().filter(|symbol| starts.contains(&symbol.st_name.get(ORDER))) {
            let kind = symbol.st_info.0 & 15;
            let is_code = kind == elf::STT_FUNC.0 || kind == elf::STT_GNU_IFUNC.0;
            let address = symbol.st_value.get(ORDER);
            let Some(name) = candidates.get(&symbol.st_name.get(ORDER)) else { continue };
            if out.symbols.len() + out.imports.len() >= MAX_FOUND {
                return Err(Fault::Invalid);
            }
            if symbol.st_shndx.get(ORDER) == elf::SHN_UNDEF {
                out.imports.push(name.clone());
                continue;
            }
            if !is_code || address == 0 {
                continue;
            }
            out.symbols.push(Symbol {
                name: name.clone(),
                address,
                size: symbol.st_size.get(ORDER),
                is_global: symbol.st_info.0 >> 4 != elf::STB_LOCAL.0,
                is_indirect: kind == elf::STT_GNU_IFUNC.0,
            });
        }
        at += count as u64;
    }
    Ok(())
}

/// Reads the code at an address before relocation, at most `bytes`.
pub(crate) fn code(file: &File, segments: &[CodeSegment], address: u64, bytes: usize) -> Vec<u8> {
    for segment in segments {
        let Some(inside) = address.checked_sub(segment.address).filter(|inside| *inside < segment.bytes) else {
            continue;
        };
        let count = (segment.bytes - inside).min(bytes as u64) as usize;
        let mut out = vec![0; count];
        let Some(offset) = segment.offset.checked_add(inside) else { continue };
        return if file.read_exact_at(&mut out, offset).is_ok() { out } else { Vec::new() };
    }
    Vec::new()
}

//! ELF files of any class and byte order, and Windows programs, in memory as the binutils read
//! them: for the views that print what gprof and DCPI print.

use super::binutils_symbols::{self, BinutilsSymbol, NAME_BUDGET};
use super::coff_symbols;
use super::lines::Lines;
use super::section::unpacked;
use gimli::{EndianArcSlice, RunTimeEndian};
use heaptape_formats::Abi;
use object::{Architecture, File, Object, ObjectSection, ObjectSymbol, SectionFlags, SymbolKind};
use std::ops::Range;

/// An ELF or PE file in memory.
pub struct ObjectFile<'data> {
    file: File<'data>,
    length: usize,
}

/// A machine whose call instructions are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// The 32-bit and 64-bit x86 architectures.
    X86,
    /// The 64-bit ARM architecture.
    Aarch64,
}

#[derive(Clone, Debug)]
pub struct TextSection {
    /// Address of the first byte.
    pub start: u64,
    /// Address after the last byte.
    pub end: u64,
    /// Content of the section.
    pub bytes: Vec<u8>,
}

/// A function symbol with its address range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionRange {
    /// The name in the symbol table.
    pub symbol: String,
    /// Address of the first byte.
    pub start: u64,
    /// Address after the last byte.
    pub end: u64,
}

/// The error of a file that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// The bytes are neither an ELF nor a PE file, or it is damaged.
    #[error(transparent)]
    Damaged(#[from] object::Error),
    /// The bytes are an object file of another format.
    #[error("neither an ELF file nor a Windows program")]
    Unknown,
    /// A Windows program where only ELF files are of use.
    #[error("a Windows program")]
    Windows,
    /// The names of the symbols overlap, so that they are much longer than the file.
    #[error("its symbols' names overlap to more than {NAME_BUDGET} times the file")]
    Names,
}

impl<'data> ObjectFile<'data> {
    /// Parses the bytes of a file.
    ///
    /// # Errors
    /// Returns [`ObjectError::Damaged`] if the bytes are not a readable object file.
    pub fn parse(bytes: &'data [u8]) -> Result<ObjectFile<'data>, ObjectError> {
        Ok(ObjectFile { file: File::parse(bytes)?, length: bytes.len() })
    }

    /// Parses the bytes of an ELF file.
    ///
    /// # Errors
    /// Returns [`ObjectError::Windows`] for a Windows program, and [`ObjectError::Damaged`] if the
    /// bytes are not a readable object file.
    pub fn parse_elf(bytes: &'data [u8]) -> Result<ObjectFile<'data>, ObjectError> {
        let parsed = ObjectFile::parse(bytes)?;
        if matches!(parsed.file, File::Elf32(_) | File::Elf64(_)) { Ok(parsed) } else { Err(ObjectError::Windows) }
    }

    /// Returns the byte order and pointer size of the target.
    pub fn abi(&self) -> Abi {
        Abi { big_endian: !self.file.is_little_endian(), word_size: if self.file.is_64() { 8 } else { 4 } }
    }

    /// Returns whether the file is a Windows program.
    pub fn is_windows(&self) -> bool {
        matches!(self.file, File::Pe32(_) | File::Pe64(_))
    }

    /// Returns the build ID, if the file has one.
    ///
    /// # Errors
    /// Returns [`ObjectError::Damaged`] if the note with the build ID is damaged.
    pub fn build_id(&self) -> Result<Option<Vec<u8>>, ObjectError> {
        Ok(self.file.build_id()?.map(<[u8]>::to_vec))
    }

    /// Returns the machine, if its call instructions are known.
    pub fn machine(&self) -> Option<Machine> {
        match self.file.architecture() {
            Architecture::I386 | Architecture::X86_64 => Some(Machine::X86),
            Architecture::Aarch64 => Some(Machine::Aarch64),
            _ => None,
        }
    }

    /// Returns the address range of `.text`; empty if there is none.
    pub fn text(&self) -> Range<u64> {
        let Some(text) = self.file.section_by_name(".text") else { return 0..0 };
        // On disk, the sections of a Windows program are filled up with zeros, and in memory with
        // nothing. The binutils use the smaller size.
        let stored = text.file_range().map_or(0, |(_, size)| size);
        let size = if self.is_windows() { stored } else { text.size() };
        text.address()..text.address().saturating_add(size)
    }

    /// Returns the bytes of `.text`.
    pub fn text_bytes(&self) -> Option<&'data [u8]> {
        self.file.section_by_name(".text")?.data().ok()
    }

    /// Returns all sections with instructions, sorted by address.
    pub fn text_sections(&self) -> Vec<TextSection> {
        let mut sections: Vec<TextSection> =
            self.file.sections().filter_map(|section| text_section(&section)).collect();
        sections.sort_by_key(|text| text.start);
        sections
    }

    /// Returns the symbols that gprof regards as functions, in the order of the symbol table.
    ///
    /// # Errors
    /// Returns [`ObjectError::Unknown`] for another format, and [`ObjectError::Names`] if the names
    /// are much longer than the file.
    pub fn binutils_symbols(&self) -> Result<Vec<BinutilsSymbol>, ObjectError> {
        let found = match &self.file {
            File::Elf32(file) => binutils_symbols::read(file, self.length),
            File::Elf64(file) => binutils_symbols::read(file, self.length),
            File::Pe32(file) => coff_symbols::read(file, self.length),
            File::Pe64(file) => coff_symbols::read(file, self.length),
            _ => return Err(ObjectError::Unknown),
        };
        found.ok_or(ObjectError::Names)
    }

    /// Returns whether the linker's names begin with an underscore that the source does not have.
    pub fn has_underscores(&self) -> bool {
        matches!(&self.file, File::Pe32(file) if coff_symbols::has_underscores(file))
    }

    /// Returns the functions sorted by address, without overlaps. Of several functions at an
    /// address, the one with the longest range is used, then the first name. A function without
    /// size extends to the next one.
    pub fn functions(&self, text_sections: &[TextSection]) -> Vec<FunctionRange> {
        let function = |symbol: object::Symbol<'_, '_>| {
            let is_function = symbol.kind() == SymbolKind::Text && symbol.is_definition();
            let symbol = is_function.then_some(symbol)?;
            let name = String::from_utf8_lossy(symbol.name_bytes().ok()?).into_owned();
            let end = symbol.address().saturating_add(symbol.size());
            (!name.is_empty()).then_some(FunctionRange { symbol: name, start: symbol.address(), end })
        };
        let mut found: Vec<FunctionRange> = self.file.symbols().filter_map(function).collect();
        if found.is_empty() {
            found = self.file.dynamic_symbols().filter_map(function).collect();
        }
        found.sort_by(|a, b| (a.start, b.end, &a.symbol).cmp(&(b.start, a.end, &b.symbol)));
        found.dedup_by_key(|function| function.start);
        for index in 0..found.len() {
            let start = found[index].start;
            let next = found.get(index + 1).map_or(u64::MAX, |next| next.start);
            let section = text_sections.iter().find(|text| text.start <= start && start < text.end);
            let furthest = section.map_or(start, |text| text.end).min(next);
            let function = &mut found[index];
            function.end = if function.end == start { furthest } else { function.end.min(next) };
        }
        found
    }

    /// Loads the line numbers of the debug information. Returns `None` if it cannot be read.
    pub fn lines(&self) -> Option<Lines> {
        let endian = if self.file.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big };
        let section = |id: gimli::SectionId| -> Result<EndianArcSlice<RunTimeEndian>, gimli::Error> {
            let found = self.file.section_by_name(id.name());
            let bytes = found.and_then(|section| {
                let data = section.compressed_data().ok()?;
                unpacked(data.format, || data.data, data.data.len() as u64, data.uncompressed_size)
            });
            Ok(EndianArcSlice::new(bytes.unwrap_or_else(|| [].into()), endian))
        };
        let context = addr2line::Context::from_dwarf(gimli::Dwarf::load(section).ok()?).ok()?;
        Some(Lines::new(context, self.length.saturating_mul(NAME_BUDGET)))
    }
}

/// Returns the content of a section if it contains instructions.
fn text_section<'data>(section: &impl ObjectSection<'data>) -> Option<TextSection> {
    let SectionFlags::Elf { sh_flags, .. } = section.flags() else { return None };
    let is_text = sh_flags.contains(object::elf::SHF_EXECINSTR);
    let end = section.address().checked_add(section.size())?;
    (is_text && section.size() > 0).then(|| TextSection {
        start: section.address(),
        end,
        bytes: section.data().unwrap_or_default().to_vec(),
    })
}

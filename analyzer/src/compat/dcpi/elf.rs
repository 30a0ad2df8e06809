//! Procedures, source lines and bytes of an ELF file.

use crate::compat::demangle::demangle;
use addr2line::Context;
use gimli::{EndianArcSlice, RunTimeEndian};
use object::{Object, ObjectSection, ObjectSymbol, SectionFlags, SymbolKind};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

type Reader = EndianArcSlice<RunTimeEndian>;

/// Maximum size in bytes of a decompressed debug section.
const MAX_SECTION_SIZE: u64 = 4 << 30;

/// An ELF file. All addresses are those in the file.
pub struct Elf {
    /// Path from which the file was read.
    pub path: PathBuf,
    /// Build ID in hexadecimal digits.
    pub build_id: Option<String>,
    procedures: Vec<Procedure>,
    text_sections: Vec<TextSection>,
    lines: Option<Context<Reader>>,
}

/// A function symbol of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Procedure {
    /// The name in the symbol table.
    pub symbol: String,
    /// Address of the first byte.
    pub start: u64,
    /// Address after the last byte.
    pub end: u64,
}

impl Procedure {
    /// Returns the demangled name.
    pub fn name(&self) -> String {
        demangle(&self.symbol)
    }
}

/// A section that holds instructions.
#[derive(Clone, Debug)]
struct TextSection {
    start: u64,
    end: u64,
    bytes: Vec<u8>,
}

/// A line of a source file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourceLine {
    /// The source file's path.
    pub file: String,
    /// The line number, from 1.
    pub line: u32,
}

impl Elf {
    /// Parses the bytes of an ELF file.
    ///
    /// # Errors
    /// Returns an error if the bytes are not a readable ELF file.
    pub fn parse(path: &Path, bytes: &[u8]) -> object::Result<Elf> {
        let file = object::File::parse(bytes)?;
        let build_id = file.build_id()?.map(|id| id.iter().map(|byte| format!("{byte:02x}")).collect());
        let mut text_sections: Vec<TextSection> =
            file.sections().filter_map(|section| text_section(&section)).collect();
        text_sections.sort_by_key(|text| text.start);
        Ok(Elf {
            path: path.to_path_buf(),
            build_id,
            procedures: procedures(&file, &text_sections),
            text_sections,
            lines: lines(&file),
        })
    }

    /// Returns the number to add to an address of a profile to get the address in the file.
    /// `tstart` and `tsize` are the text range that the profile states. Profiles by heaptape state
    /// addresses of the file. Other profiles may state the range in the memory of the process.
    pub fn shift(&self, tstart: u64, tsize: u64) -> u64 {
        let (Some(first), Some(last)) = (self.text_sections.first(), self.text_sections.last()) else { return 0 };
        if tstart < last.end && tstart.saturating_add(tsize.max(1)) > first.start {
            return 0;
        }
        // A section with the same offset in its page is the one that was mapped. Otherwise it is
        // the first page of the text.
        let page = 0xfff;
        let section = self.text_sections.iter().find(|text| text.start & page == tstart & page);
        section.map_or(first.start & !page, |text| text.start).wrapping_sub(tstart)
    }

    /// Returns the procedure that contains an address.
    pub fn procedure(&self, address: u64) -> Option<&Procedure> {
        let index = self.procedures.partition_point(|procedure| procedure.start <= address);
        self.procedures[..index].last().filter(|procedure| address < procedure.end)
    }

    /// Returns the procedures with a mangled or demangled name. If there are none, it returns those
    /// whose demangled name without parameters matches.
    pub fn procedures_named(&self, name: &str) -> Vec<&Procedure> {
        let all = |is_named: &dyn Fn(&Procedure) -> bool| -> Vec<&Procedure> {
            self.procedures.iter().filter(|procedure| is_named(procedure)).collect()
        };
        let found = all(&|procedure| procedure.symbol == name || procedure.name() == name);
        if !found.is_empty() || name.is_empty() {
            return found;
        }
        all(&|procedure| procedure.name().strip_prefix(name).is_some_and(|parameters| parameters.starts_with('(')))
    }

    /// Returns the source line of an address.
    pub fn source_line(&self, address: u64) -> Option<SourceLine> {
        let location = self.lines.as_ref()?.find_location(address).ok()??;
        Some(SourceLine { file: location.file?.to_string(), line: location.line? })
    }

    /// Returns all source lines that have instructions in a range, sorted and without duplicates.
    pub fn source_lines(&self, start: u64, end: u64) -> Vec<SourceLine> {
        let Some(ranges) = self.lines.as_ref().and_then(|lines| lines.find_location_range(start, end).ok()) else {
            return Vec::new();
        };
        let line = |(_, _, location): (u64, u64, addr2line::Location<'_>)| {
            Some(SourceLine { file: location.file?.to_string(), line: location.line? })
        };
        let mut lines: Vec<SourceLine> = ranges.filter_map(line).collect();
        lines.sort();
        lines.dedup();
        lines
    }

    /// Returns the bytes of a range, up to the end of its section. The result is empty if no
    /// section contains `start`.
    pub fn bytes(&self, start: u64, end: u64) -> &[u8] {
        let text = self.text_sections.iter().find(|text| text.start <= start && start < text.end);
        let Some(text) = text else { return &[] };
        let from = usize::try_from(start - text.start).unwrap_or(usize::MAX);
        let to = usize::try_from(end.max(start) - text.start).unwrap_or(usize::MAX).min(text.bytes.len());
        text.bytes.get(from..to).unwrap_or_default()
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

/// Returns the functions sorted by address, without overlaps. Of several functions at an address,
/// the one with the longest range wins, then the first name. A function without size extends to the
/// next one.
fn procedures(file: &object::File<'_>, text_sections: &[TextSection]) -> Vec<Procedure> {
    let function = |symbol: object::Symbol<'_, '_>| {
        let is_function = symbol.kind() == SymbolKind::Text && symbol.is_definition();
        let symbol = is_function.then_some(symbol)?;
        let name = String::from_utf8_lossy(symbol.name_bytes().ok()?).into_owned();
        let end = symbol.address().saturating_add(symbol.size());
        (!name.is_empty()).then_some(Procedure { symbol: name, start: symbol.address(), end })
    };
    let mut found: Vec<Procedure> = file.symbols().filter_map(function).collect();
    if found.is_empty() {
        found = file.dynamic_symbols().filter_map(function).collect();
    }
    found.sort_by(|a, b| (a.start, b.end, &a.symbol).cmp(&(b.start, a.end, &b.symbol)));
    found.dedup_by_key(|procedure| procedure.start);
    for index in 0..found.len() {
        let start = found[index].start;
        let next = found.get(index + 1).map_or(u64::MAX, |next| next.start);
        let section = text_sections.iter().find(|text| text.start <= start && start < text.end);
        let furthest = section.map_or(start, |text| text.end).min(next);
        let procedure = &mut found[index];
        procedure.end = if procedure.end == start { furthest } else { procedure.end.min(next) };
    }
    found
}

/// Loads the debug information. Returns `None` if it cannot be read.
fn lines(file: &object::File<'_>) -> Option<Context<Reader>> {
    let endian = if file.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big };
    let load = |id: gimli::SectionId| -> Result<Reader, gimli::Error> {
        let bytes = file.section_by_name(id.name()).and_then(|section| decompressed(&section)).unwrap_or_default();
        Ok(Reader::new(Arc::from(bytes), endian))
    };
    Context::from_dwarf(gimli::Dwarf::load(load).ok()?).ok()
}

/// Returns the decompressed bytes of a section.
fn decompressed<'data>(section: &impl ObjectSection<'data>) -> Option<Vec<u8>> {
    let data = section.compressed_data().ok()?;
    let limit = data.uncompressed_size.min(MAX_SECTION_SIZE);
    let mut bytes = Vec::new();
    match data.format {
        object::CompressionFormat::None => bytes.extend_from_slice(data.data),
        object::CompressionFormat::Zlib => {
            flate2::read::ZlibDecoder::new(data.data).take(limit).read_to_end(&mut bytes).ok()?;
        }
        object::CompressionFormat::Zstandard => {
            zstd::stream::read::Decoder::new(data.data).ok()?.take(limit).read_to_end(&mut bytes).ok()?;
        }
        _ => return None,
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn procedures_are_found_without_their_parameters() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/gmon/exe/names64");
        let elf = Elf::parse(&path, &std::fs::read(&path).expect("the sample")).expect("an ELF file");
        let named = |name: &str| elf.procedures_named(name).iter().map(|found| found.name()).collect::<Vec<_>>();
        let full = "shop::Item::stock(shop::Item*, int)";
        for name in [full, "shop::Item::stock", "_ZN4shop4Item5stockEPS0_i"] {
            assert_eq!(named(name), [full], "{name}");
        }
        for name in ["shop::Item::st", "stock", ""] {
            assert!(named(name).is_empty(), "{name}");
        }
    }
}

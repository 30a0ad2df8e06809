//! An image: procedures, source lines and bytes of an ELF file.

use crate::compat::demangle::demangle;
use addr2line::Context;
use gimli::{EndianArcSlice, RunTimeEndian};
use object::{Object, ObjectSection, ObjectSymbol, SectionFlags, SymbolKind};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

type Reader = EndianArcSlice<RunTimeEndian>;

/// Bytes that one compressed debug section may unfold to.
const LONGEST_SECTION: u64 = 4 << 30;

/// An ELF file, by the addresses that stand in it.
pub struct Elf {
    /// Where it was read.
    pub path: PathBuf,
    /// Its build-id, hexadecimal.
    pub build_id: Option<String>,
    procedures: Vec<Procedure>,
    texts: Vec<Text>,
    lines: Option<Context<Reader>>,
}

/// A function symbol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Procedure {
    /// The name as it stands in the symbol table.
    pub symbol: String,
    /// Address of its first byte.
    pub start: u64,
    /// Address behind its last byte.
    pub end: u64,
}

impl Procedure {
    /// The name for people: Rust and C++ names in their own form.
    pub fn name(&self) -> String {
        demangle(&self.symbol)
    }
}

/// A section that holds instructions.
#[derive(Clone, Debug)]
struct Text {
    start: u64,
    end: u64,
    bytes: Vec<u8>,
}

/// File and line of an address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The source file's path.
    pub file: String,
    /// Its line, from 1.
    pub line: u32,
}

impl Elf {
    /// Reads the bytes of an ELF file.
    pub fn parse(path: &Path, bytes: &[u8]) -> object::Result<Elf> {
        let file = object::File::parse(bytes)?;
        let build_id = file.build_id()?.map(|id| id.iter().map(|byte| format!("{byte:02x}")).collect());
        let mut texts: Vec<Text> = file.sections().filter_map(|section| text(&section)).collect();
        texts.sort_by_key(|text| text.start);
        Ok(Elf {
            path: path.to_path_buf(),
            build_id,
            procedures: procedures(&file, &texts),
            texts,
            lines: lines(&file),
        })
    }

    /// What must be added to an address of a profile with this text to have an address of the file. Profiles of ours
    /// state the file's own addresses; one that states where the text lay in memory begins elsewhere.
    pub fn shift(&self, tstart: u64, tsize: u64) -> u64 {
        let (Some(first), Some(last)) = (self.texts.first(), self.texts.last()) else { return 0 };
        if tstart < last.end && tstart.saturating_add(tsize.max(1)) > first.start {
            return 0;
        }
        // Same place in the page: it is that section that was mapped, else the page that it begins in.
        let page = 0xfff;
        let section = self.texts.iter().find(|text| text.start & page == tstart & page);
        section.map_or(first.start & !page, |text| text.start).wrapping_sub(tstart)
    }

    /// The procedure that holds an address.
    pub fn procedure(&self, address: u64) -> Option<&Procedure> {
        let place = self.procedures.partition_point(|procedure| procedure.start <= address);
        self.procedures[..place].last().filter(|procedure| address < procedure.end)
    }

    /// The procedures of this name: mangled, readable, or, when there is none, readable without parameters.
    pub fn named(&self, name: &str) -> Vec<&Procedure> {
        let all = |is_named: &dyn Fn(&Procedure) -> bool| -> Vec<&Procedure> {
            self.procedures.iter().filter(|procedure| is_named(procedure)).collect()
        };
        let found = all(&|procedure| procedure.symbol == name || procedure.name() == name);
        if !found.is_empty() || name.is_empty() {
            return found;
        }
        all(&|procedure| procedure.name().strip_prefix(name).is_some_and(|parameters| parameters.starts_with('(')))
    }

    /// Source file and line of an address.
    pub fn place(&self, address: u64) -> Option<Place> {
        let location = self.lines.as_ref()?.find_location(address).ok()??;
        Some(Place { file: location.file?.to_string(), line: location.line? })
    }

    /// All source lines that have instructions in a range, each once, in the order of file and line.
    pub fn places(&self, start: u64, end: u64) -> Vec<Place> {
        let Some(ranges) = self.lines.as_ref().and_then(|lines| lines.find_location_range(start, end).ok()) else {
            return Vec::new();
        };
        let place = |(_, _, location): (u64, u64, addr2line::Location<'_>)| {
            Some(Place { file: location.file?.to_string(), line: location.line? })
        };
        let mut places: Vec<Place> = ranges.filter_map(place).collect();
        places.sort();
        places.dedup();
        places
    }

    /// The bytes of a range, as many as the file has from its beginning on.
    pub fn bytes(&self, start: u64, end: u64) -> &[u8] {
        let text = self.texts.iter().find(|text| text.start <= start && start < text.end);
        let Some(text) = text else { return &[] };
        let from = usize::try_from(start - text.start).unwrap_or(usize::MAX);
        let to = usize::try_from(end.max(start) - text.start).unwrap_or(usize::MAX).min(text.bytes.len());
        text.bytes.get(from..to).unwrap_or_default()
    }
}

fn text<'data>(section: &impl ObjectSection<'data>) -> Option<Text> {
    let SectionFlags::Elf { sh_flags, .. } = section.flags() else { return None };
    let is_text = sh_flags.contains(object::elf::SHF_EXECINSTR);
    let end = section.address().checked_add(section.size())?;
    (is_text && section.size() > 0).then(|| Text {
        start: section.address(),
        end,
        bytes: section.data().unwrap_or_default().to_vec(),
    })
}

/// Functions by rising address, no two overlapping: where several names share an address the longest range wins, then
/// the first name; what has no size reaches to the next.
fn procedures(file: &object::File<'_>, texts: &[Text]) -> Vec<Procedure> {
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
    for place in 0..found.len() {
        let start = found[place].start;
        let next = found.get(place + 1).map_or(u64::MAX, |next| next.start);
        let section = texts.iter().find(|text| text.start <= start && start < text.end);
        let furthest = section.map_or(start, |text| text.end).min(next);
        let procedure = &mut found[place];
        procedure.end = if procedure.end == start { furthest } else { procedure.end.min(next) };
    }
    found
}

fn lines(file: &object::File<'_>) -> Option<Context<Reader>> {
    let endian = if file.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big };
    let load = |id: gimli::SectionId| -> Result<Reader, gimli::Error> {
        let bytes = file.section_by_name(id.name()).and_then(|section| unfolded(&section)).unwrap_or_default();
        Ok(Reader::new(Arc::from(bytes), endian))
    };
    Context::from_dwarf(gimli::Dwarf::load(load).ok()?).ok()
}

/// A section's bytes, decompressed.
fn unfolded<'data>(section: &impl ObjectSection<'data>) -> Option<Vec<u8>> {
    let data = section.compressed_data().ok()?;
    let limit = data.uncompressed_size.min(LONGEST_SECTION);
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
        let named = |name: &str| elf.named(name).iter().map(|found| found.name()).collect::<Vec<_>>();
        let whole = "shop::Item::stock(shop::Item*, int)";
        for name in [whole, "shop::Item::stock", "_ZN4shop4Item5stockEPS0_i"] {
            assert_eq!(named(name), [whole], "{name}");
        }
        for name in ["shop::Item::st", "stock", ""] {
            assert!(named(name).is_empty(), "{name}");
        }
    }
}

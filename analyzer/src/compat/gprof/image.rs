//! Reads function symbols and source lines of an executable or shared object. This is the only file
//! of the view that parses ELF and DWARF.
//!
//! The selection of symbols and the names of lines follow the observed behavior of GNU gprof 2.40.

use crate::text::clean;
use gimli::{EndianArcSlice, RunTimeEndian};
use heaptape_formats::Abi;
use heaptape_formats::tape::Codec;
use object::read::elf::{ElfFile, FileHeader, SectionHeader, Sym};
use object::{Architecture, CompressedData, CompressionFormat, Endianness, File, Object, ObjectSection, elf};
use std::cell::Cell;
use std::io::Read;
use std::ops::Range;

type Reader = EndianArcSlice<RunTimeEndian>;

/// The data of an object file that the view needs.
pub struct Image {
    /// Byte order and pointer size of the target.
    pub abi: Abi,
    /// Build ID, if the file has one.
    pub build_id: Option<Vec<u8>>,
    /// Address range of `.text`.
    pub text: Range<u64>,
    /// Function symbols in the order of the symbol table.
    pub symbols: Vec<ImageSymbol>,
    lines: Option<addr2line::Context<Reader>>,
    /// Number of bytes of names that may still be read from the debug information.
    name_budget: Cell<usize>,
    code: Option<Code>,
}

/// The machine and the bytes of `.text`, in which direct calls are searched.
struct Code {
    machine: Machine,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy)]
enum Machine {
    X86,
    Aarch64,
}

/// Maximum total length of the names, as a multiple of the file size. Names may overlap, so few
/// bytes could encode any amount of text. In real files the total is less than the file size.
const NAME_BUDGET: usize = 16;

/// A symbol that may stand for code.
pub struct ImageSymbol {
    /// Address of the symbol.
    pub address: u64,
    /// Name of the symbol as the linker sees it.
    pub name: String,
    /// Whether the symbol has the type of a function. Labels in assembly often do not.
    pub is_function: bool,
    /// Whether the symbol has local binding.
    pub is_local: bool,
}

/// The source location of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// Path of the source file, including the compilation directory.
    pub file: String,
    /// Line number, from 1.
    pub line: u32,
    /// The innermost function, which may be inlined, if the debug information has its name.
    pub function: Option<String>,
}

impl Image {
    /// Parses the bytes of an ELF file.
    ///
    /// # Errors
    /// Returns a message if the bytes are not a readable ELF file, or if the names of its symbols
    /// are too long.
    pub fn read(bytes: &[u8]) -> Result<Image, String> {
        let not_elf = |error: object::read::Error| format!("not an ELF file that can be read: {error}");
        let file = File::parse(bytes).map_err(not_elf)?;
        let symbols = match &file {
            File::Elf32(file) => symbols(file, bytes.len()),
            File::Elf64(file) => symbols(file, bytes.len()),
            _ => Err("not an ELF file".to_owned()),
        }?;
        let section = file.section_by_name(".text");
        let text = section.as_ref().map_or(0..0, |text| text.address()..text.address().saturating_add(text.size()));
        let abi = Abi { big_endian: !file.is_little_endian(), word_size: if file.is_64() { 8 } else { 4 } };
        let machine = match file.architecture() {
            Architecture::I386 | Architecture::X86_64 => Some(Machine::X86),
            Architecture::Aarch64 => Some(Machine::Aarch64),
            _ => None,
        };
        let code = section.and_then(|text| text.data().ok()).zip(machine);
        let code = code.map(|(bytes, machine)| Code { machine, bytes: bytes.to_vec() });
        let name_budget = Cell::new(bytes.len().saturating_mul(NAME_BUDGET));
        let build_id = file.build_id().ok().flatten().map(<[u8]>::to_vec);
        Ok(Image { abi, build_id, text, symbols, lines: lines(&file), name_budget, code })
    }

    /// Returns the targets of the direct calls between two addresses, including the last one. All
    /// byte sequences that look like a call are decoded, so only targets that are entries of
    /// functions are meaningful.
    pub fn calls(&self, first: u64, last: u64) -> Vec<u64> {
        let Some(code) = &self.code else { return Vec::new() };
        let offset =
            |address: u64| address.checked_sub(self.text.start).and_then(|offset| usize::try_from(offset).ok());
        let (Some(start), Some(end)) = (offset(first), offset(last)) else { return Vec::new() };
        let truncate = |target: u64| if self.abi.word_size == 4 { target & u64::from(u32::MAX) } else { target };
        let call = |offset: usize| {
            let address = self.text.start.wrapping_add(offset as u64);
            let word = |offset: usize| {
                code.bytes.get(offset..offset + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes)
            };
            match code.machine {
                Machine::X86 if code.bytes[offset] == 0xe8 => {
                    let distance = i64::from(word(offset + 1)?.cast_signed());
                    Some(truncate(address.wrapping_add(5).wrapping_add_signed(distance)))
                }
                Machine::X86 => None,
                Machine::Aarch64 => {
                    let word = word(offset).filter(|word| offset.is_multiple_of(4) && word >> 26 == 0b10_0101)?;
                    Some(address.wrapping_add_signed(i64::from((word << 6).cast_signed() >> 6) * 4))
                }
            }
        };
        (start..code.bytes.len().min(end.saturating_add(1))).filter_map(call).collect()
    }

    /// Returns the source location of an address.
    pub fn location(&self, address: u64) -> Option<Location> {
        let lines = self.lines.as_ref()?;
        let location = lines.find_location(address).ok()??;
        Some(Location {
            file: clean(location.file?).into_owned(),
            line: location.line?,
            function: self.function(address),
        })
    }

    /// Returns the name of the innermost function at an address from the debug information.
    fn function(&self, address: u64) -> Option<String> {
        let lines = self.lines.as_ref()?;
        let function = lines.find_frames(address).skip_all_loads().ok()?.next().ok()??.function?;
        let name = function.raw_name().ok()?;
        // Where the linker's name differs from the name in the source, only the linker's name
        // matches the symbol table.
        let is_linker_name = ["_Z", "_R", "_D"].iter().any(|start| name.starts_with(start));
        let is_plain = function.language.is_none_or(|language| PLAIN_LANGUAGES.contains(&language));
        let left = self.name_budget.get().checked_sub(name.len()).filter(|_| is_linker_name || is_plain)?;
        self.name_budget.set(left);
        Some(clean(&name).into_owned())
    }

    /// Returns the source locations of `.text` in ascending order, each with the address where it
    /// starts.
    pub fn locations(&self) -> Vec<(u64, Location)> {
        let Some(lines) = &self.lines else { return Vec::new() };
        let Ok(ranges) = lines.find_location_range(self.text.start, self.text.end) else { return Vec::new() };
        let mut locations = Vec::new();
        for (start, _, location) in ranges {
            let start = start.max(self.text.start);
            if let (Some(file), Some(line)) = (location.file, location.line) {
                locations
                    .push((start, Location { file: clean(file).into_owned(), line, function: self.function(start) }));
            }
        }
        locations
    }
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

/// Loads the debug information. Returns `None` if it cannot be read. gprof then prints functions
/// without lines.
fn lines(file: &File<'_>) -> Option<addr2line::Context<Reader>> {
    let endian = if file.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big };
    let section = |id: gimli::SectionId| -> Result<Reader, gimli::Error> {
        let bytes = file.section_by_name(id.name()).and_then(|section| decompressed(section.compressed_data().ok()?));
        Ok(EndianArcSlice::new(bytes.unwrap_or_default().into(), endian))
    };
    addr2line::Context::from_dwarf(gimli::Dwarf::load(section).ok()?).ok()
}

/// Returns the decompressed bytes of a section. A section with a compression ratio above 256 is
/// rejected; real ratios are less than 10.
fn decompressed(data: CompressedData<'_>) -> Option<Vec<u8>> {
    let size = data.uncompressed_size;
    if size / 256 > data.data.len() as u64 {
        return None;
    }
    match data.format {
        CompressionFormat::None => Some(data.data.to_vec()),
        CompressionFormat::Zlib => {
            let mut bytes = Vec::new();
            flate2::read::ZlibDecoder::new(data.data).take(size).read_to_end(&mut bytes).ok()?;
            Some(bytes)
        }
        CompressionFormat::Zstandard => Codec::Zstd.unpack(data.data, usize::try_from(size).ok()?).ok(),
        _ => None,
    }
}

/// Returns the symbols that gprof regards as functions, in the order of the symbol table.
fn symbols<E: FileHeader<Endian = Endianness>>(file: &ElfFile<'_, E>, size: usize) -> Result<Vec<ImageSymbol>, String> {
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
        if budget.get().is_none() {
            return Err(format!("its symbols' names overlap to more than {NAME_BUDGET} times the file"));
        }
        found.push(ImageSymbol {
            address: symbol.st_value(endian).into(),
            name: clean(&String::from_utf8_lossy(name)).into_owned(),
            is_function: kind == elf::STT_FUNC,
            is_local,
        });
    }
    Ok(found)
}

/// Returns whether the name of a local symbol is that of a function: no `$`, and a `.` only before
/// a number (`f.1`, `f.constprop.0`, `f.clone.2`).
///
/// After an accepted suffix, gprof 2.40 continues past the end of the name into the next string of
/// the table. So whether `f.constprop.0` counts depends on the next string. The numbers are equal
/// to gprof's only if this is repeated here.
fn is_function_name<'a>(offset: u32, string: impl Fn(u32) -> &'a [u8]) -> bool {
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

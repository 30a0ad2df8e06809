//! An executable or shared object: its function symbols, its source lines, names made readable. The only file of this view
//! that knows ELF and DWARF.
//!
//! Which symbols count, and the names of lines, follow what GNU gprof 2.40 was seen to do.

use crate::text::clean;
use gimli::{EndianArcSlice, RunTimeEndian};
use heaptape_formats::Flavour;
use heaptape_formats::tape::Codec;
use object::read::elf::{ElfFile, FileHeader, SectionHeader, Sym};
use object::{Architecture, CompressedData, CompressionFormat, Endianness, File, Object, ObjectSection, elf};
use std::cell::Cell;
use std::io::Read;
use std::ops::Range;

type Reader = EndianArcSlice<RunTimeEndian>;

/// What this view needs of an object file.
pub struct Image {
    /// Byte order and pointer size of its target.
    pub flavour: Flavour,
    /// Its build-id, if it has one.
    pub build_id: Option<Vec<u8>>,
    /// The addresses of `.text`.
    pub text: Range<u64>,
    /// Function symbols in the order of the symbol table.
    pub symbols: Vec<ImageSymbol>,
    lines: Option<addr2line::Context<Reader>>,
    /// Bytes of names that may still be taken from the debug information.
    names: Cell<usize>,
    code: Option<Code>,
}

/// How the machine writes a direct call, and the bytes of `.text`.
struct Code {
    machine: Machine,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy)]
enum Machine {
    X86,
    Aarch64,
}

/// Names may overlap in a file, so that few bytes could stand for any amount of text; in real files their sum is less than
/// the file. This many times its size are taken.
const NAME_BUDGET: usize = 16;

/// A symbol that may stand for code.
pub struct ImageSymbol {
    /// Its value.
    pub address: u64,
    /// Its name as the linker knows it.
    pub name: String,
    /// Whether it is marked as a function; labels in assembly often are not.
    pub function: bool,
    /// Whether only its own file can name it.
    pub local: bool,
}

/// Where an address comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Path of the source file, with the directory that it was compiled in.
    pub file: String,
    /// Line, from 1.
    pub line: u32,
    /// The innermost function, inlined ones included, when the debug information names it.
    pub function: Option<String>,
}

impl Image {
    /// Reads an ELF file.
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
        let flavour = Flavour { big_endian: !file.is_little_endian(), word: if file.is_64() { 8 } else { 4 } };
        let machine = match file.architecture() {
            Architecture::I386 | Architecture::X86_64 => Some(Machine::X86),
            Architecture::Aarch64 => Some(Machine::Aarch64),
            _ => None,
        };
        let code = section.and_then(|text| text.data().ok()).zip(machine);
        let code = code.map(|(bytes, machine)| Code { machine, bytes: bytes.to_vec() });
        let names = Cell::new(bytes.len().saturating_mul(NAME_BUDGET));
        let build_id = file.build_id().ok().flatten().map(<[u8]>::to_vec);
        Ok(Image { flavour, build_id, text, symbols, lines: lines(&file), names, code })
    }

    /// The targets of the direct calls between two addresses (the last one included), as the bytes read; what is no
    /// instruction may look like one, so only targets that are functions' entries mean something.
    pub fn calls(&self, first: u64, last: u64) -> Vec<u64> {
        let Some(code) = &self.code else { return Vec::new() };
        let place = |address: u64| address.checked_sub(self.text.start).and_then(|at| usize::try_from(at).ok());
        let (Some(start), Some(end)) = (place(first), place(last)) else { return Vec::new() };
        let narrow = |target: u64| if self.flavour.word == 4 { target & u64::from(u32::MAX) } else { target };
        let call = |at: usize| {
            let address = self.text.start.wrapping_add(at as u64);
            let word =
                |at: usize| code.bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes);
            match code.machine {
                Machine::X86 if code.bytes[at] == 0xe8 => {
                    let distance = i64::from(word(at + 1)?.cast_signed());
                    Some(narrow(address.wrapping_add(5).wrapping_add_signed(distance)))
                }
                Machine::X86 => None,
                Machine::Aarch64 => {
                    let word = word(at).filter(|word| at.is_multiple_of(4) && word >> 26 == 0b10_0101)?;
                    Some(address.wrapping_add_signed(i64::from((word << 6).cast_signed() >> 6) * 4))
                }
            }
        };
        (start..code.bytes.len().min(end.saturating_add(1))).filter_map(call).collect()
    }

    /// The source line of an address.
    pub fn place(&self, address: u64) -> Option<Place> {
        let lines = self.lines.as_ref()?;
        let location = lines.find_location(address).ok()??;
        Some(Place { file: clean(location.file?).into_owned(), line: location.line?, function: self.function(address) })
    }

    /// The name of the innermost function at an address, as the debug information has it.
    fn function(&self, address: u64) -> Option<String> {
        let lines = self.lines.as_ref()?;
        let function = lines.find_frames(address).skip_all_loads().ok()?.next().ok()??.function?;
        let name = function.raw_name().ok()?;
        // Where the linker's name differs from the source's, only the linker's will do; the symbol table has it.
        let linked = ["_Z", "_R", "_D"].iter().any(|start| name.starts_with(start));
        let plain = function.language.is_none_or(|language| PLAIN_LANGUAGES.contains(&language));
        let left = self.names.get().checked_sub(name.len()).filter(|_| linked || plain)?;
        self.names.set(left);
        Some(clean(&name).into_owned())
    }

    /// The places in `.text` with the address where each begins, in order; `None` where no line is known.
    pub fn places(&self) -> Vec<(u64, Place)> {
        let Some(lines) = &self.lines else { return Vec::new() };
        let Ok(ranges) = lines.find_location_range(self.text.start, self.text.end) else { return Vec::new() };
        let mut places = Vec::new();
        for (start, _, location) in ranges {
            let start = start.max(self.text.start);
            if let (Some(file), Some(line)) = (location.file, location.line) {
                places.push((start, Place { file: clean(file).into_owned(), line, function: self.function(start) }));
            }
        }
        places
    }
}

/// Languages whose functions have the same name in the source and for the linker.
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

/// Debug information that cannot be read is as good as none: gprof then prints functions without lines.
fn lines(file: &File<'_>) -> Option<addr2line::Context<Reader>> {
    let endian = if file.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big };
    let section = |id: gimli::SectionId| -> Result<Reader, gimli::Error> {
        let bytes = file.section_by_name(id.name()).and_then(|section| unpacked(section.compressed_data().ok()?));
        Ok(EndianArcSlice::new(bytes.unwrap_or_default().into(), endian))
    };
    addr2line::Context::from_dwarf(gimli::Dwarf::load(section).ok()?).ok()
}

/// A section's bytes. One that claims to be more than 256 times as large as it is stored is none: real ones are a few times.
fn unpacked(data: CompressedData<'_>) -> Option<Vec<u8>> {
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

/// The symbols that gprof takes for functions, in the order of the symbol table.
fn symbols<E: FileHeader<Endian = Endianness>>(file: &ElfFile<'_, E>, size: usize) -> Result<Vec<ImageSymbol>, String> {
    let budget = Cell::new(Some(size.saturating_mul(NAME_BUDGET)));
    let endian = file.endian();
    // gprof refuses a stripped file; its dynamic symbols still name what others may call.
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
        // Weak symbols count wherever they are, unless they are marked as data.
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
        let local = bind == elf::STB_LOCAL;
        if !counts || name.is_empty() || (local && !is_function_name(offset, string)) {
            continue;
        }
        if budget.get().is_none() {
            return Err(format!("its symbols' names overlap to more than {NAME_BUDGET} times the file"));
        }
        found.push(ImageSymbol {
            address: symbol.st_value(endian).into(),
            name: clean(&String::from_utf8_lossy(name)).into_owned(),
            function: kind == elf::STT_FUNC,
            local,
        });
    }
    Ok(found)
}

/// Whether the name of a local symbol is a function's: no `$`, and a `.` only before a number (`f.1`, `f.constprop.0`,
/// `f.clone.2`).
///
/// WHY the following strings matter: gprof 2.40 goes on behind the end of a name whose last part it has accepted, into the
/// next string of the table, so whether `f.constprop.0` counts depends on its neighbour. Its numbers are only met by
/// doing the same.
fn is_function_name<'a>(offset: u32, string: impl Fn(u32) -> &'a [u8]) -> bool {
    let mut start = offset;
    loop {
        let name = string(start);
        if start == offset && [&b"__gnu_compiled"[..], b"___gnu_compiled"].iter().any(|start| name.starts_with(start)) {
            return false;
        }
        let Some(ran_over) = scan(name) else { return false };
        match start.checked_add(name.len() as u32 + 1) {
            Some(next) if ran_over => start = next,
            _ => return true,
        }
    }
}

/// `None`: no function's name. Else whether the name ends in an accepted suffix.
fn scan(name: &[u8]) -> Option<bool> {
    let mut at = 0;
    let mut suffix = false;
    while at < name.len() {
        match name[at] {
            b'$' => return None,
            b'.' => {
                let marks = [&b".clone."[..], b".constprop."];
                let mark = marks.into_iter().find(|mark| name[at..].starts_with(mark) && name.len() - at > mark.len());
                at += mark.map_or(1, <[u8]>::len);
                let digits = name[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                at += digits;
                if at < name.len() && (digits == 0 || name[at] != b'.') {
                    return None;
                }
                suffix = true;
            }
            _ => at += 1,
        }
    }
    Some(suffix)
}

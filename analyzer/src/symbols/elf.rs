//! ELF files on disk: build id, function symbols and sections, each read only when needed. Any
//! fault in a file has the result "nothing found", because names are an aid and never a condition.

use super::section::{Place, Stored};
use crate::frame::FunctionSymbol;
use crate::kept_file::{Cursor, KeptFile};
use heaptape_formats::tape::{Source, head};
use memchr::memmem;
use object::elf::{self, FileHeader64, ProgramHeader64, Rela64, SectionHeader64, SectionType, Sym64};
use object::read::elf::{CompressionHeader, FileHeader, NoteIterator, ProgramHeader, SectionHeader, SectionTable, Sym};
use object::{CompressionFormat, Endianness, ReadCache, ReadRef};
use rustc_hash::FxHashMap;
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

/// Maximum number of bytes of symbol tables and names that are read.
const MOST_SYMBOL_BYTES: u64 = 1 << 30;
/// Maximum size of build id and debug link sections in bytes.
const MOST_NOTE_BYTES: u64 = 64 * 1024;

type Header = FileHeader64<Endianness>;
pub(super) type Symbol = Sym64<Endianness>;
type Sections<'a> = SectionTable<'a, Header, &'a ReadCache<Cursor>>;

/// An open ELF file.
pub(super) struct Elf {
    file: Arc<KeptFile>,
    cache: ReadCache<Cursor>,
    /// The build id; empty if the file has none.
    pub build_id: Vec<u8>,
}

/// A function with its address range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Function {
    pub start: u64,
    end: u64,
    pub name: u32,
}

/// Functions ordered by address.
#[derive(Debug, Default)]
pub(super) struct Functions {
    rows: Vec<Function>,
    names: Vec<u8>,
    /// Start and name of further functions at the start of one, by start, where the linker may have
    /// folded functions.
    folded: Vec<(u64, u32)>,
}

impl Functions {
    /// Returns the function at a link-time address.
    pub(super) fn find(&self, address: u64) -> Option<FunctionSymbol<'_>> {
        let after = self.rows.partition_point(|row| row.start <= address);
        let row = self.rows.get(after.checked_sub(1)?)?;
        let symbol = until_nul(self.names.get(row.name as usize..)?);
        (address < row.end).then_some(FunctionSymbol { start: row.start, end: row.end, symbol })
    }

    /// Returns the symbols of other functions whose code is that of the function at `start`.
    pub(super) fn folded(&self, start: u64) -> Vec<&[u8]> {
        let Some(of) = self.find(start) else { return Vec::new() };
        let first = self.folded.partition_point(|(at, _)| *at < start);
        let mut different: Vec<&[u8]> = vec![of.symbol];
        for (_, name) in self.folded[first..].iter().take_while(|(at, _)| *at == start).take(MOST_FOLDED) {
            let symbol = until_nul(self.names.get(*name as usize..).unwrap_or_default());
            if !different.iter().any(|known| same_function(known, symbol)) {
                different.push(symbol);
            }
        }
        different.split_off(1)
    }

    /// Returns the start of the function with this symbol.
    pub(super) fn start_of(&self, symbol: &[u8]) -> Option<u64> {
        // A search of all names at once takes a hundredth of one for each function.
        memmem::find(&self.names, &[symbol, b"\0"].concat())?;
        self.iter().find(|(_, other)| *other == symbol).map(|(start, _)| start)
    }

    /// Returns the start and symbol of each function, ordered by address.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.rows.iter().filter_map(|row| Some((row.start, until_nul(self.names.get(row.name as usize..)?))))
    }

    /// Returns the functions, ordered by address.
    pub(super) fn ranges(&self) -> impl Iterator<Item = FunctionSymbol<'_>> {
        self.rows.iter().filter_map(|row| {
            let symbol = until_nul(self.names.get(row.name as usize..)?);
            (row.start < row.end).then_some(FunctionSymbol { start: row.start, end: row.end, symbol })
        })
    }

    /// Returns whether there are no functions.
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the functions of both tables. If both name a function, the first table's name is
    /// kept.
    #[must_use]
    pub(super) fn with(mut self, other: Functions) -> Functions {
        let shift = self.names.len() as u32;
        self.names.extend_from_slice(&other.names);
        let moved = |row: Function| row.name.checked_add(shift).map(|name| Function { name, ..row });
        let folded = |(start, name): (u64, u32)| name.checked_add(shift).map(|name| (start, name));
        self.folded.extend(other.folded.into_iter().filter_map(folded));
        self.folded.sort_by_key(|(start, _)| *start);
        self.rows.extend(other.rows.into_iter().filter_map(moved));
        // The sort is stable: of equal starts, those of the first table come first.
        self.rows.sort_by_key(|row| row.start);
        self.rows.dedup_by_key(|row| row.start);
        self
    }
}

/// Global variables, vtables and other data, ordered by address.
#[derive(Debug, Default)]
pub(super) struct Objects {
    rows: Vec<Function>,
    names: Vec<u8>,
}

impl Objects {
    /// Returns the start and the symbol of what a link-time address is in.
    pub(super) fn find(&self, address: u64) -> Option<(u64, &[u8])> {
        let after = self.rows.partition_point(|row| row.start <= address);
        let row = self.rows.get(after.checked_sub(1)?)?;
        (address < row.end).then_some((row.start, until_nul(self.names.get(row.name as usize..)?)))
    }

    /// Returns the data of both.
    #[must_use]
    pub(super) fn with(mut self, other: Objects) -> Objects {
        let shift = self.names.len() as u32;
        self.names.extend_from_slice(&other.names);
        let moved = |row: Function| row.name.checked_add(shift).map(|name| Function { name, ..row });
        self.rows.extend(other.rows.into_iter().filter_map(moved));
        self.rows.sort_by_key(|row| row.start);
        self.rows.dedup_by_key(|row| row.start);
        self
    }
}

/// Maximum number of symbols of one address that are compared.
const MOST_FOLDED: usize = 64;

fn is_mangled(symbol: &[u8]) -> bool {
    symbol.starts_with(b"_Z") || symbol.starts_with(b"_R")
}

/// Returns whether two symbols of one address are names of one function: versions, constructors of
/// complete and of base objects, or a name inside of the library and one for its users.
fn same_function(a: &[u8], b: &[u8]) -> bool {
    let plain = |symbol: &'_ [u8]| {
        let end = symbol.iter().position(|byte| matches!(byte, b'@' | b'.')).unwrap_or(symbol.len());
        symbol[..end].to_vec()
    };
    let (a, b) = (plain(a), plain(b));
    if is_mangled(&a) || is_mangled(&b) {
        return super::demangle(&a) == super::demangle(&b);
    }
    let trimmed = |symbol: &[u8]| symbol.trim_ascii().iter().copied().skip_while(|byte| *byte == b'_').collect();
    let (a, b): (Vec<u8>, Vec<u8>) = (trimmed(&a), trimmed(&b));
    a.ends_with(&b) || b.ends_with(&a)
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|&byte| byte == 0).next().unwrap_or_default()
}

impl Elf {
    /// Opens a file; returns `None` if it is not a regular 64-bit ELF file.
    pub(super) fn open(path: &Path) -> Option<Elf> {
        Elf::of(KeptFile::open(path).ok()?)
    }

    /// Returns the ELF file of an open file; `None` if it is not one.
    pub(super) fn of(file: KeptFile) -> Option<Elf> {
        let file = Arc::new(file);
        let cache = ReadCache::new(Cursor { file: Arc::clone(&file), at: 0 });
        let mut elf = Elf { cache, file, build_id: Vec::new() };
        elf.build_id = elf.find_build_id()?;
        Some(elf)
    }

    fn sections(&self) -> Option<(Endianness, Sections<'_>)> {
        let header = Header::parse(&self.cache).ok()?;
        let endian = header.endian().ok()?;
        Some((endian, header.sections(endian, &self.cache).ok()?))
    }

    /// Returns the link-time addresses of the code: from the start of the first executable segment
    /// to the end of the last one.
    pub(super) fn code(&self) -> Option<Range<u64>> {
        let header = Header::parse(&self.cache).ok()?;
        let endian = header.endian().ok()?;
        let segments = header.program_headers(endian, &self.cache).ok()?;
        let code = segments
            .iter()
            .filter(|segment| segment.p_type(endian) == elf::PT_LOAD && segment.p_flags(endian).contains(elf::PF_X));
        let range = |segment: &ProgramHeader64<Endianness>| {
            let start = segment.p_vaddr(endian);
            start..start.saturating_add(segment.p_memsz(endian))
        };
        code.map(range).reduce(|all, one| all.start.min(one.start)..all.end.max(one.end))
    }

    /// Returns the build id, which is empty if the file has none; `None` if it is not an ELF file.
    fn find_build_id(&self) -> Option<Vec<u8>> {
        let header = Header::parse(&self.cache).ok()?;
        let endian = header.endian().ok()?;
        let in_notes = |notes: object::Result<Option<NoteIterator<'_, Header>>>| {
            let mut notes = notes.ok()??;
            while let Ok(Some(note)) = notes.next() {
                if note.name() == elf::ELF_NOTE_GNU && note.n_type(endian) == elf::NT_GNU_BUILD_ID {
                    return Some(note.desc().to_vec());
                }
            }
            None
        };
        // A file of debug information has the segments of the program, but not their bytes.
        let in_sections = || {
            let sections = header.sections(endian, &self.cache).ok()?;
            let small = sections.iter().filter(|section| section.sh_size(endian) <= MOST_NOTE_BYTES);
            small.into_iter().find_map(|section| in_notes(section.notes(endian, &self.cache)))
        };
        // `sstrip` and some packers leave no sections.
        let in_segments = || {
            let segments = header.program_headers(endian, &self.cache).ok()?;
            let small = segments.iter().filter(|segment| segment.p_filesz(endian) <= MOST_NOTE_BYTES);
            small.into_iter().find_map(|segment| in_notes(segment.notes(endian, &self.cache)))
        };
        Some(in_sections().or_else(in_segments).unwrap_or_default())
    }

    /// Returns the size of the file, and the CRC-32 of its headers and symbol tables, from which
    /// addresses are named. This distinguishes builds without a build id.
    pub(super) fn fingerprint(&self) -> Option<(u64, u32)> {
        let header = Header::parse(&self.cache).ok()?;
        let endian = header.endian().ok()?;
        let count = u64::from(header.e_shnum(endian)) * u64::from(header.e_shentsize(endian));
        let mut ranges = vec![(0, size_of::<Header>() as u64), (header.e_shoff(endian), count)];
        for section in header.sections(endian, &self.cache).ok()?.iter() {
            let kind = section.sh_type(endian);
            if kind == elf::SHT_SYMTAB || kind == elf::SHT_DYNSYM {
                ranges.push((section.sh_offset(endian), section.sh_size(endian)));
            }
        }
        let mut hasher = crc32fast::Hasher::new();
        for (offset, length) in ranges {
            hasher.update((&self.cache).read_bytes_at(offset, length.min(MOST_SYMBOL_BYTES)).ok()?);
        }
        Some(((&self.cache).len().ok()?, hasher.finalize()))
    }

    /// Returns the hash of the first bytes by which a process distinguishes files without build-id.
    pub(super) fn head(&self) -> u32 {
        let length = (&self.cache).len().unwrap_or(0).min(4096);
        (&self.cache).read_bytes_at(0, length).map_or(0, head)
    }

    /// Returns the functions of `.symtab`, or of `.dynsym` if `dynamic` is set.
    pub(super) fn functions(&self, dynamic: bool) -> Functions {
        self.read_functions(if dynamic { elf::SHT_DYNSYM } else { elf::SHT_SYMTAB }).unwrap_or_default()
    }

    /// Returns bytes of the file, of which no copy stays with it.
    pub(super) fn read(&self, Place { offset, bytes }: Place) -> Option<Vec<u8>> {
        let end = offset.checked_add(bytes)?;
        if end > (&self.cache).len().ok()? {
            return None;
        }
        let (count, mut read) = (usize::try_from(bytes).ok()?, Vec::new());
        self.file.read_up_to(offset, count, &mut read).ok()?;
        (read.len() == count).then_some(read)
    }

    /// Returns the places of a symbol table and of its names.
    fn symbol_places(&self, endian: Endianness, sections: &Sections<'_>, kind: SectionType) -> Option<[Place; 2]> {
        let section = sections.iter().find(|section| section.sh_type(endian) == kind)?;
        let strings = sections.section(section.link(endian)).ok()?;
        let places = [section, strings].map(|section| {
            let (offset, bytes) = (section.sh_offset(endian), section.sh_size(endian));
            Place { offset, bytes: if section.sh_type(endian) == elf::SHT_NOBITS { 0 } else { bytes } }
        });
        places.iter().all(|place| place.bytes <= MOST_SYMBOL_BYTES).then_some(places)
    }

    /// Returns a symbol table, and the place of its names.
    fn symbols(&self, endian: Endianness, sections: &Sections<'_>, kind: SectionType) -> Option<(&[Symbol], Place)> {
        let [rows, names] = self.symbol_places(endian, sections, kind)?;
        let bytes = (&self.cache).read_bytes_at(rows.offset, rows.bytes).ok()?;
        let count = bytes.len() / size_of::<Symbol>();
        Some((object::slice_from_bytes(bytes, count).ok()?.0, names))
    }

    fn read_functions(&self, kind: SectionType) -> Option<Functions> {
        let (endian, sections) = self.sections()?;
        let (symbols, names) = self.symbols(endian, &sections, kind)?;
        let names = self.read(names)?;
        let mut rows: Vec<(Function, u8)> = symbols.iter().filter_map(|symbol| function(endian, symbol)).collect();
        // Of several names of one address: global before weak before local, then the one without
        // leading underscores.
        rows.sort_unstable_by(|(a, rank), (b, other)| {
            let plain = |row: &Function| names.get(row.name as usize).is_some_and(|&byte| byte == b'_');
            // Few functions share an address, and the names of the others need not be looked at.
            let of_names = || (rank, plain(a), a.name).cmp(&(other, plain(b), b.name));
            a.start.cmp(&b.start).then_with(of_names)
        });
        let mut folded = Vec::new();
        if self.may_fold() {
            // A weak function of C is another name of a global one.
            let is_folded = |(a, rank): &(Function, u8), (b, other): &(Function, u8)| {
                let is_mangled = |row: &Function| names.get(row.name as usize..).is_some_and(is_mangled);
                (a.start, a.end) == (b.start, b.end)
                    && a.end > a.start
                    && (rank == other || is_mangled(a) && is_mangled(b))
            };
            for functions in rows.chunk_by(|(a, _), (b, _)| a.start == b.start) {
                let [first, others @ ..] = functions else { continue };
                folded.extend(
                    others.iter().filter(|other| is_folded(first, other)).map(|(row, _)| (row.start, row.name)),
                );
            }
        }
        rows.dedup_by_key(|(row, _)| row.start);
        let mut rows: Vec<Function> = rows.into_iter().map(|(row, _)| row).collect();
        // Functions written in assembly may have no size. They extend to the next one.
        for at in 0..rows.len() {
            if rows[at].end == rows[at].start {
                rows[at].end = rows.get(at + 1).map_or(rows[at].start + 1, |next| next.start);
            }
        }
        Some(Functions { rows, names, folded })
    }

    /// Returns the global variables and vtables of both symbol tables.
    pub(super) fn objects(&self) -> Objects {
        let read = |kind| self.read_objects(kind).unwrap_or_default();
        read(elf::SHT_SYMTAB).with(read(elf::SHT_DYNSYM))
    }

    fn read_objects(&self, kind: SectionType) -> Option<Objects> {
        let (endian, sections) = self.sections()?;
        let (symbols, names) = self.symbols(endian, &sections, kind)?;
        let names = self.read(names)?;
        let is_data = |symbol: &&Sym64<Endianness>| {
            symbol.st_type() == elf::STT_OBJECT && symbol.st_shndx(endian) != elf::SHN_UNDEF
        };
        let row = |symbol: &Sym64<Endianness>| {
            let start = symbol.st_value(endian);
            let end = start.saturating_add(symbol.st_size(endian).max(1));
            (Function { start, end, name: symbol.st_name(endian) }, symbol.st_bind() == elf::STB_LOCAL)
        };
        let mut rows: Vec<(Function, bool)> = symbols.iter().filter(is_data).map(row).collect();
        // Of several names of one address: the global one, and the larger one.
        rows.sort_by_key(|(row, is_local)| (row.start, *is_local, std::cmp::Reverse(row.end)));
        rows.dedup_by_key(|(row, _)| row.start);
        Some(Objects { rows: rows.into_iter().map(|(row, _)| row).collect(), names })
    }

    /// Returns the bytes of the hash table of exports, and the places of the symbols and names that it
    /// is about.
    pub(super) fn hash_table(&self) -> Option<(Vec<u8>, [Place; 2])> {
        let (endian, sections) = self.sections()?;
        let places = self.symbol_places(endian, &sections, elf::SHT_DYNSYM)?;
        let table = sections.iter().find(|section| section.sh_type(endian) == elf::SHT_GNU_HASH)?;
        let place = Place { offset: table.sh_offset(endian), bytes: table.sh_size(endian) };
        let is_usual = endian == Endianness::Little && place.bytes <= MOST_SYMBOL_BYTES;
        Some((is_usual.then(|| self.read(place))??, places))
    }

    /// Returns the link-time addresses of these functions, by symbol.
    pub(super) fn listed_exports(&self) -> FxHashMap<Rc<[u8]>, u64> {
        let found = || {
            let (endian, sections) = self.sections()?;
            let (symbols, names) = self.symbols(endian, &sections, elf::SHT_DYNSYM)?;
            let names = self.read(names)?;
            let named = |symbol| {
                let (function, _) = function(endian, symbol)?;
                Some((Rc::from(until_nul(names.get(function.name as usize..)?)), function.start))
            };
            Some(symbols.iter().filter_map(named).collect())
        };
        found().unwrap_or_default()
    }

    /// Returns the symbols of the functions and objects whose addresses the loader writes into the
    /// file's memory, by the link-time address of each.
    pub(super) fn imports(&self) -> FxHashMap<u64, Rc<[u8]>> {
        self.read_imports().unwrap_or_default()
    }

    fn read_imports(&self) -> Option<FxHashMap<u64, Rc<[u8]>>> {
        let slot_kinds = if self.is_aarch64() {
            [elf::R_AARCH64_JUMP_SLOT, elf::R_AARCH64_GLOB_DAT]
        } else {
            [elf::R_X86_64_JUMP_SLOT, elf::R_X86_64_GLOB_DAT]
        };
        let (endian, sections) = self.sections()?;
        let (symbols, names) = self.symbols(endian, &sections, elf::SHT_DYNSYM)?;
        let mut slots = Vec::new();
        let tables = sections.iter().filter(|section| section.sh_type(endian) == elf::SHT_RELA);
        for table in tables.filter(|table| table.sh_size(endian) <= MOST_SYMBOL_BYTES) {
            let Ok(rows) = table.data_as_array::<Rela64<Endianness>, _>(endian, &self.cache) else { continue };
            for row in rows {
                let (symbol, kind) = (row.r_sym(endian, false), row.r_type(endian, false));
                if slot_kinds.contains(&kind) {
                    let name = symbols.get(symbol as usize).map(|symbol| u64::from(symbol.st_name(endian)));
                    slots.extend(name.map(|name| (row.r_offset.get(endian), name)));
                }
            }
        }
        /// So many names are read one by one, not with those of all exports.
        const FEW: usize = 2048;
        /// Most names are shorter.
        const USUAL: u64 = 128;
        let all = if slots.len() <= FEW && names.bytes > 64 * USUAL { Vec::new() } else { self.read(names)? };
        let name = |at: u64| {
            let whole = |bytes: &[u8]| bytes.contains(&0).then(|| Rc::from(until_nul(bytes)));
            if let Some(known) = all.get(at as usize..) {
                return whole(known);
            }
            let rest = Place { offset: names.offset.checked_add(at)?, bytes: names.bytes.checked_sub(at)? };
            let first = self.read(Place { bytes: rest.bytes.min(USUAL), ..rest })?;
            whole(&first).or_else(|| whole(&self.read(rest)?))
        };
        Some(slots.into_iter().filter_map(|(slot, at)| Some((slot, name(at)?))).collect())
    }

    /// Returns the bytes at a link-time address, as they are in the file: at most `most`, and none
    /// after the end of their segment.
    pub(super) fn bytes_at(&self, address: u64, most: u64) -> Option<Vec<u8>> {
        let header = Header::parse(&self.cache).ok()?;
        let endian = header.endian().ok()?;
        let segments = header.program_headers(endian, &self.cache).ok()?;
        let inside = |segment: &&ProgramHeader64<Endianness>| {
            let start = segment.p_vaddr(endian);
            segment.p_type(endian) == elf::PT_LOAD && address >= start && address - start < segment.p_filesz(endian)
        };
        let segment = segments.iter().find(inside)?;
        let within = address - segment.p_vaddr(endian);
        let length = (segment.p_filesz(endian) - within).min(most);
        let offset = segment.p_offset(endian).checked_add(within)?;
        self.read(Place { offset, bytes: length })
    }

    /// Returns whether the code is for 64-bit ARM.
    pub(super) fn is_aarch64(&self) -> bool {
        let header = Header::parse(&self.cache).ok();
        header.and_then(|header| Some(header.e_machine(header.endian().ok()?))) == Some(elf::EM_AARCH64)
    }

    /// Returns the name and the CRC-32 of the separate debug file, from `.gnu_debuglink`.
    pub(super) fn debug_link(&self) -> Option<(String, u32)> {
        let bytes = self.small_section(".gnu_debuglink")?;
        let name = String::from_utf8(until_nul(&bytes).to_vec()).ok()?;
        let crc = bytes.last_chunk().copied();
        let crc = crc.map(if self.is_little_endian() { u32::from_le_bytes } else { u32::from_be_bytes })?;
        (!name.is_empty() && !name.contains('/')).then_some((name, crc))
    }

    /// Returns the path and the build-id of the file with shared debug information, from
    /// `.gnu_debugaltlink`.
    pub(super) fn alternative_link(&self) -> Option<(String, Vec<u8>)> {
        let bytes = self.small_section(".gnu_debugaltlink")?;
        let path = until_nul(&bytes);
        let build_id = bytes.get(path.len() + 1..).unwrap_or_default().to_vec();
        String::from_utf8(path.to_vec()).ok().map(|path| (path, build_id))
    }

    /// Returns whether the linker may have folded functions with the same code into one.
    fn may_fold(&self) -> bool {
        let comment = self.small_section(".comment").unwrap_or_default();
        let is_by = |linker: &[u8]| comment.windows(linker.len()).any(|part| part == linker);
        is_by(b"LLD") || is_by(b"mold") || self.small_section(".note.gnu.gold-version").is_some()
    }

    fn small_section(&self, name: &str) -> Option<Vec<u8>> {
        let (endian, sections) = self.sections()?;
        let (_, section) = sections.section_by_name(endian, name.as_bytes())?;
        (section.sh_size(endian) <= MOST_NOTE_BYTES)
            .then(|| section.data(endian, &self.cache).ok().map(<[u8]>::to_vec))?
    }

    /// Returns the size of a section in the file; 0 if there is none.
    pub(super) fn section_size(&self, name: &str) -> u64 {
        let size = |name: &str| {
            let (endian, sections) = self.sections()?;
            let (_, section) = sections.section_by_name(endian, name.as_bytes())?;
            (section.sh_type(endian) != elf::SHT_NOBITS).then(|| section.sh_size(endian))
        };
        size(name).or_else(|| size(&old_compressed(name)?)).unwrap_or(0)
    }

    /// Returns whether the byte order of the file is little-endian.
    pub(super) fn is_little_endian(&self) -> bool {
        self.sections().is_none_or(|(endian, _)| endian == Endianness::Little)
    }

    /// Returns the uncompressed bytes of a section; empty if there is none or if it is invalid.
    pub(super) fn section(&self, name: &str) -> Arc<[u8]> {
        let stored = self.stored(name).or_else(|| self.old_stored(name));
        stored.and_then(|stored| stored.unpacked(&self.file)).unwrap_or_else(|| Arc::from([]))
    }

    fn stored(&self, name: &str) -> Option<Stored> {
        let (endian, sections) = self.sections()?;
        let (_, section): (_, &SectionHeader64<Endianness>) = sections.section_by_name(endian, name.as_bytes())?;
        if section.sh_type(endian) == elf::SHT_NOBITS {
            return None;
        }
        let (offset, bytes) = (section.sh_offset(endian), section.sh_size(endian));
        let Some((header, offset, bytes)) = section.compression(endian, &self.cache).ok()? else {
            return self.inside(Stored {
                format: CompressionFormat::None,
                place: Place { offset, bytes },
                size: bytes,
            });
        };
        let format = match header.ch_type(endian) {
            elf::ELFCOMPRESS_ZLIB => CompressionFormat::Zlib,
            elf::ELFCOMPRESS_ZSTD => CompressionFormat::Zstandard,
            _ => return None,
        };
        self.inside(Stored { format, place: Place { offset, bytes }, size: header.ch_size(endian) })
    }

    /// Returns where a section in the old compressed form is, of which the linker knows nothing.
    fn old_stored(&self, name: &str) -> Option<Stored> {
        const HEAD: u64 = 12;
        let Place { offset, bytes } = self.stored(&old_compressed(name)?)?.place;
        let head = self.read(Place { offset, bytes: HEAD.min(bytes) })?;
        let size = u64::from_be_bytes(head.strip_prefix(b"ZLIB")?.try_into().ok()?);
        let place = Place { offset: offset + HEAD, bytes: bytes - HEAD };
        Some(Stored { format: CompressionFormat::Zlib, place, size })
    }

    fn inside(&self, stored: Stored) -> Option<Stored> {
        let end = stored.place.offset.checked_add(stored.place.bytes)?;
        (end <= (&self.cache).len().ok()?).then_some(stored)
    }
}

/// Returns the name of a section of debug information in the old compressed form (`-gz=zlib-gnu`,
/// and the default of some linkers until 2015).
fn old_compressed(name: &str) -> Option<String> {
    name.strip_prefix(".debug_").map(|rest| format!(".zdebug_{rest}"))
}

/// Returns a defined function symbol, and its rank among others of the same address.
pub(super) fn function(endian: Endianness, symbol: &Symbol) -> Option<(Function, u8)> {
    let is_code = matches!(symbol.st_type(), elf::STT_FUNC | elf::STT_GNU_IFUNC);
    if !is_code || symbol.st_shndx(endian) == elf::SHN_UNDEF || symbol.st_name(endian) == 0 {
        return None;
    }
    let start = symbol.st_value(endian);
    let rank = match symbol.st_bind() {
        elf::STB_GLOBAL => 0,
        elf::STB_WEAK => 1,
        _ => 2,
    };
    let end = start.saturating_add(symbol.st_size(endian));
    Some((Function { start, end, name: symbol.st_name(endian) }, rank))
}

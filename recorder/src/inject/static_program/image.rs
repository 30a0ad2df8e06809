//! The standalone library, as it is in memory at an address.

use crate::os::processor::{OF_SYMBOL, RELATIVE};
use object::LittleEndian;
use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader, Rela, SectionHeader, Sym};
use wire::area::PAGE;
use wire::standalone::{ATTACH_SYMBOL, ENTRY_SYMBOL, LEAVE_SYMBOL, LoadedProgram, PROGRAM_SYMBOL, REQUEST_SYMBOL};

const ORDER: LittleEndian = LittleEndian;

/// Why the library's file cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the standalone library is not valid: {0}")]
pub struct ImageError(&'static str);

impl From<object::read::Error> for ImageError {
    fn from(_: object::read::Error) -> ImageError {
        ImageError("its tables cannot be read")
    }
}

/// A range of the library that cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Protected {
    /// Offset from the start of the library, a multiple of the page size.
    pub offset: u64,
    /// Length of the range in bytes.
    pub bytes: u64,
    /// Whether it can be executed.
    pub is_code: bool,
}

/// The library in memory. Addresses are relative to its start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Image {
    /// Size of its memory in bytes, a multiple of the page size.
    pub memory_bytes: u64,
    /// The bytes at its start. The rest of the memory is zeros.
    pub bytes: Vec<u8>,
    /// Ranges that cannot be written.
    pub protected: Vec<Protected>,
    /// Address of the first instruction.
    pub entry: u64,
    /// Address of the first instruction in a program that runs already.
    pub attach: u64,
    /// Address of the first instruction that unmaps what the library has mapped.
    pub leave: u64,
    /// Address of the [`LoadedProgram`].
    program: u64,
    /// Address of the `AttachRequest`.
    pub request: u64,
    /// Words that hold an address: where they are, and the address.
    addresses: Vec<StoredAddress>,
}

/// A word that holds an address.
#[derive(Clone, Copy, Debug)]
struct StoredAddress {
    at: u64,
    value: u64,
}

impl Image {
    /// Reads the library's file.
    ///
    /// # Errors
    /// The file is not valid. That is a fault of the build.
    pub(crate) fn read(file: &[u8]) -> Result<Image, ImageError> {
        let header = FileHeader64::<LittleEndian>::parse(file)?;
        let mut image = Image::default();
        for segment in header.program_headers(ORDER, file)? {
            if segment.p_type(ORDER) == elf::PT_LOAD {
                let data = segment.data(ORDER, file).map_err(|()| ImageError("a segment is not in the file"))?;
                image.add(segment.p_vaddr(ORDER), segment.p_memsz(ORDER), data, segment.p_flags(ORDER))?;
            }
        }
        let sections = header.sections(ORDER, file)?;
        let symbols = sections.symbols(ORDER, file, elf::SHT_DYNSYM)?;
        for symbol in symbols.iter() {
            let name = symbols.symbol_name(ORDER, symbol)?;
            let fields = [
                (ENTRY_SYMBOL, &mut image.entry),
                (ATTACH_SYMBOL, &mut image.attach),
                (LEAVE_SYMBOL, &mut image.leave),
                (PROGRAM_SYMBOL, &mut image.program),
                (REQUEST_SYMBOL, &mut image.request),
            ];
            for (wanted, address) in fields {
                if name == wanted.as_bytes() {
                    *address = symbol.st_value(ORDER);
                }
            }
        }
        if [image.entry, image.attach, image.leave, image.program, image.request].contains(&0) {
            return Err(ImageError("a symbol is missing"));
        }
        for section in sections.iter() {
            let Some((relocations, _)) = section.rela(ORDER, file)? else { continue };
            for relocation in relocations {
                let addend = relocation.r_addend(ORDER) as u64;
                let value = match relocation.r_type(ORDER, false) {
                    RELATIVE => addend,
                    kind if OF_SYMBOL.contains(&kind) => {
                        let symbol = relocation.symbol(ORDER, false).ok_or(ImageError("a relocation has no symbol"))?;
                        let symbol = symbols.symbol(symbol)?;
                        if symbol.is_undefined(ORDER) {
                            return Err(ImageError("it imports a symbol"));
                        }
                        symbol.st_value(ORDER).wrapping_add(addend)
                    }
                    _ => return Err(ImageError("it has a relocation of another kind")),
                };
                image.addresses.push(StoredAddress { at: relocation.r_offset(ORDER), value });
            }
        }
        Ok(image)
    }

    fn add(
        &mut self,
        address: u64,
        memory_bytes: u64,
        data: &[u8],
        flags: elf::ProgramFlags,
    ) -> Result<(), ImageError> {
        const MAX_BYTES: u64 = 16 << 20;
        let end = address.checked_add(memory_bytes).filter(|end| *end <= MAX_BYTES);
        let end = end.ok_or(ImageError("it is too large"))?;
        let start = address as usize;
        self.memory_bytes = self.memory_bytes.max(end.next_multiple_of(PAGE));
        if self.bytes.len() < start + data.len() {
            self.bytes.resize(start + data.len(), 0);
        }
        self.bytes.get_mut(start..start + data.len()).unwrap_or_default().copy_from_slice(data);
        if flags.0 & elf::PF_W.0 == 0 {
            let offset = address / PAGE * PAGE;
            let is_code = flags.0 & elf::PF_X.0 != 0;
            self.protected.push(Protected { offset, bytes: end.next_multiple_of(PAGE) - offset, is_code });
        }
        Ok(())
    }

    /// Returns the bytes of the library when it begins at `base`, and is to know this program.
    pub(crate) fn at(&self, base: u64, program: &LoadedProgram) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        let mut put = |at: u64, value: &[u8]| {
            let at = at as usize;
            if bytes.len() < at + value.len() {
                bytes.resize(at + value.len(), 0);
            }
            bytes.get_mut(at..at + value.len()).unwrap_or_default().copy_from_slice(value);
        };
        for stored in &self.addresses {
            put(stored.at, &base.wrapping_add(stored.value).to_le_bytes());
        }
        put(self.program, &program.encode());
        bytes
    }
}

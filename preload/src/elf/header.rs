//! The ELF header and the program headers of a 64-bit object. They are read field by field, since
//! they are the first bytes of a file, or memory that the program may have hidden.

use core::mem::offset_of;
use libc::{Elf64_Ehdr, Elf64_Phdr};

/// The first bytes of an ELF file.
pub const MAGIC: [u8; 4] = *b"\x7fELF";

/// The fields of a program header that are used.
pub struct Segment {
    /// The type of the segment (`PT_…`).
    pub kind: u32,
    /// Offset of the segment in the file.
    pub offset: u64,
    /// Address of the segment before relocation.
    pub address: u64,
    /// Size of the segment in the file, in bytes.
    pub file_bytes: u64,
}

/// Returns the little-endian number of `size` bytes at an offset.
pub fn number_in(bytes: &[u8], offset: u64, size: u64) -> Option<u64> {
    let start = usize::try_from(offset).ok()?;
    let bytes = bytes.get(start..start.checked_add(size as usize)?)?;
    Some(bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

/// Returns the number of program headers. `number` returns the number of a size at an offset from
/// the start of the object.
pub fn segment_count(number: impl Fn(u64, u64) -> Option<u64>) -> Option<u64> {
    number(offset_of!(Elf64_Ehdr, e_phnum) as u64, 2)
}

/// Returns the program headers of a 64-bit object, up to the first one that cannot be read.
/// `number` is that of [`segment_count`].
pub fn segments(number: impl Fn(u64, u64) -> Option<u64>) -> impl Iterator<Item = Segment> {
    let table = (|| {
        let is_elf = number(0, 4)? == u64::from(u32::from_le_bytes(MAGIC))
            && number(libc::EI_CLASS as u64, 1)? == u64::from(libc::ELFCLASS64);
        let table = number(offset_of!(Elf64_Ehdr, e_phoff) as u64, 8)?;
        let size = number(offset_of!(Elf64_Ehdr, e_phentsize) as u64, 2)?;
        is_elf.then_some((table, size))
    })();
    let count = segment_count(&number).unwrap_or(0);
    (0..count).map_while(move |index| {
        let (table, size) = table?;
        let field = |offset: usize, size_of_field: u64| {
            number(table.checked_add(index * size)?.checked_add(offset as u64)?, size_of_field)
        };
        Some(Segment {
            kind: field(offset_of!(Elf64_Phdr, p_type), 4)? as u32,
            offset: field(offset_of!(Elf64_Phdr, p_offset), 8)?,
            address: field(offset_of!(Elf64_Phdr, p_vaddr), 8)?,
            file_bytes: field(offset_of!(Elf64_Phdr, p_filesz), 8)?,
        })
    })
}

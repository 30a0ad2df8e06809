//! The ELF header and the program headers of a 64-bit object. They are read field by field, since
//! they are the first bytes of a file, or memory that the program may have hidden.

use core::mem::offset_of;
use libc::{Elf64_Ehdr, Elf64_Phdr};

/// The first bytes of an ELF file.
pub(crate) const MAGIC: [u8; 4] = *b"\x7fELF";

/// The fields of a program header that are used.
pub(crate) struct Segment {
    /// The type of the segment (`PT_…`).
    pub kind: u32,
    /// Whether the segment can be executed.
    pub is_code: bool,
    /// Whether the segment can be written.
    pub is_writable: bool,
    /// Offset of the segment in the file.
    pub offset: u64,
    /// Address of the segment before relocation.
    pub address: u64,
    /// Size of the segment in the file, in bytes.
    pub file_bytes: u64,
    /// Size of the segment in memory, in bytes.
    pub memory_bytes: u64,
}

/// Returns the little-endian number of `size` bytes at an offset.
pub(crate) fn number_in(bytes: &[u8], offset: u64, size: u64) -> Option<u64> {
    let start = usize::try_from(offset).ok()?;
    let bytes = bytes.get(start..start.checked_add(size as usize)?)?;
    Some(bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

/// Returns the number of program headers. `number` returns the number of a size at an offset from
/// the start of the object.
pub(crate) fn segment_count(number: impl Fn(u64, u64) -> Option<u64>) -> Option<u64> {
    number(offset_of!(Elf64_Ehdr, e_phnum) as u64, 2)
}

/// A table of program headers.
#[derive(Clone, Copy, Default)]
pub(crate) struct Table {
    /// Offset of the first entry.
    pub offset: u64,
    /// Size of an entry in bytes.
    pub size: u64,
    /// Number of entries, which may exceed what can be read.
    pub count: u64,
}

/// Returns the program header table of a 64-bit object, or `None` if there is no ELF header.
/// `number` is that of [`segment_count`].
#[inline(never)]
pub(crate) fn table(number: &dyn Fn(u64, u64) -> Option<u64>) -> Option<Table> {
    let is_elf = number(0, 4)? == u64::from(u32::from_le_bytes(MAGIC))
        && number(libc::EI_CLASS as u64, 1)? == u64::from(libc::ELFCLASS64);
    let offset = number(offset_of!(Elf64_Ehdr, e_phoff) as u64, 8)?;
    let size = number(offset_of!(Elf64_Ehdr, e_phentsize) as u64, 2)?;
    is_elf.then_some(Table { offset, size, count: segment_count(number)? })
}

/// Returns the program headers of a 64-bit object, up to the first one that cannot be read.
/// `number` is that of [`segment_count`].
pub(crate) fn segments(number: impl Fn(u64, u64) -> Option<u64>) -> impl Iterator<Item = Segment> {
    segments_in(table(&number).unwrap_or_default(), number)
}

/// Returns the program headers in a table, as [`segments`] does.
pub(crate) fn segments_in(table: Table, number: impl Fn(u64, u64) -> Option<u64>) -> impl Iterator<Item = Segment> {
    (0..table.count).map_while(move |index| segment(table.offset.checked_add(index.checked_mul(table.size)?)?, &number))
}

/// Returns the program header at an offset.
#[inline(never)]
fn segment(entry: u64, number: &dyn Fn(u64, u64) -> Option<u64>) -> Option<Segment> {
    let field = |offset: usize, size: u64| number(entry.checked_add(offset as u64)?, size);
    let flags = field(offset_of!(Elf64_Phdr, p_flags), 4)? as u32;
    Some(Segment {
        kind: field(offset_of!(Elf64_Phdr, p_type), 4)? as u32,
        is_code: flags & libc::PF_X != 0,
        is_writable: flags & libc::PF_W != 0,
        offset: field(offset_of!(Elf64_Phdr, p_offset), 8)?,
        address: field(offset_of!(Elf64_Phdr, p_vaddr), 8)?,
        file_bytes: field(offset_of!(Elf64_Phdr, p_filesz), 8)?,
        memory_bytes: field(offset_of!(Elf64_Phdr, p_memsz), 8)?,
    })
}

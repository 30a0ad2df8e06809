//! The file of a static program: whether the standalone library can be loaded into it, and where
//! its unwind tables are.

use super::unwind_header;
use crate::inject::frames::{self, Description, read_array};
use crate::inject::patch::Planner;
use crate::inject::patch::symbols;
use crate::os::processor::{MACHINE, page_bytes};
use crate::os::regular_file::open_regular;
use crate::target::untraced;
use object::elf::{self, FileHeader64, ProgramHeader64};
use object::endian::LittleEndian;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use wire::area::PAGE;

const ORDER: LittleEndian = LittleEndian;

/// The unwind tables of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Unwind {
    /// It has a sorted table (`.eh_frame_hdr`): its address before relocation, and its size.
    Header { address: u64, bytes: u64 },
    /// It has descriptions only.
    Descriptions(Vec<Description>),
}

/// A static program into which the library can be loaded.
#[derive(Clone, Debug)]
pub(crate) struct StaticProgram {
    pub inode: u64,
    /// Address of the first page of the file before relocation.
    pub start: u64,
    /// The first address after what is mapped from the file.
    pub end: u64,
    code: Vec<CodeSegment>,
    unwind: Unwind,
}

#[derive(Clone, Copy, Debug)]
struct CodeSegment {
    offset: u64,
    address: u64,
}

/// The unwind table that a program needs besides its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderNeed {
    /// The program has one, between these addresses before relocation.
    Own { start: u64, end: u64 },
    /// One of this size has to be made.
    New { bytes: u64 },
}

/// Reads the file of a program. Returns `None` if it is not a static program.
///
/// # Errors
/// Why the library cannot be loaded into the static program, as the end of a sentence.
pub(crate) fn find(path: &Path, planner: &Planner) -> Option<Result<StaticProgram, String>> {
    let path = untraced::interpreter(path).unwrap_or_else(|| path.to_owned());
    let file = open_regular(&path).ok()?;
    let status = file.metadata().ok()?;
    let mut program = read(&file)?;
    program.inode = status.ino();
    if status.mode() & 0o6000 != 0 || has_capabilities(&path) {
        return Some(Err("it runs with other rights (setuid), which the kernel refuses if it is stopped".into()));
    }
    let is_go = is_go(&file);
    Some(match planner.has_allocator(file) {
        Ok(true) => Ok(program),
        Ok(false) if is_go => Err("is written in Go without C code, and Go's heap has no malloc".into()),
        Ok(false) => Err("has no symbol of an allocator that is known".into()),
        Err(why) => Err(why),
    })
}

/// Returns whether Go's linker made the file: it writes its build ID as a note, also into a program
/// without symbols. Source: `src/cmd/internal/buildid` of Go.
fn is_go(file: &File) -> bool {
    // Type of the note and its name; the linker writes the note after the headers.
    const NOTE: &[u8] = b"\x04\0\0\0Go\0\0";
    read_array::<u8>(file, 0, PAGE as usize).is_some_and(|head| head.windows(NOTE.len()).any(|bytes| bytes == NOTE))
}

fn has_capabilities(path: &Path) -> bool {
    crate::os::sys::has_attribute(path, c"security.capability")
}

/// Reads the headers of a static program; `None` for any other file.
fn read(file: &File) -> Option<StaticProgram> {
    let head = read_array::<FileHeader64<LittleEndian>>(file, 0, 1)?;
    let head = head.first()?;
    let (ident, kind) = (&head.e_ident, head.e_type.get(ORDER));
    let is_program = ident.magic == elf::ELFMAG
        && ident.class == elf::ELFCLASS64
        && ident.data == elf::ELFDATA2LSB
        && head.e_machine.get(ORDER) == MACHINE
        && (kind == elf::ET_EXEC || kind == elf::ET_DYN);
    is_program.then_some(())?;
    let segments: Vec<ProgramHeader64<LittleEndian>> =
        read_array(file, head.e_phoff.get(ORDER), usize::from(head.e_phnum.get(ORDER)))?;
    let mut program =
        StaticProgram { inode: 0, start: u64::MAX, end: 0, code: Vec::new(), unwind: Unwind::Descriptions(Vec::new()) };
    let page = page_bytes();
    for segment in &segments {
        let (address, bytes) = (segment.p_vaddr.get(ORDER), segment.p_filesz.get(ORDER));
        match segment.p_type.get(ORDER) {
            elf::PT_LOAD => {
                program.start = program.start.min(address / page * page);
                program.end = program.end.max(address.checked_add(bytes)?.checked_next_multiple_of(page)?);
                if segment.p_flags.get(ORDER).0 & elf::PF_X.0 != 0 {
                    program.code.push(CodeSegment { offset: segment.p_offset.get(ORDER), address });
                }
            }
            elf::PT_GNU_EH_FRAME => program.unwind = Unwind::Header { address, bytes },
            _ => {}
        }
    }
    if !symbols::is_static(file, head, &segments) || program.start >= program.end {
        return None;
    }
    if program.unwind == Unwind::Descriptions(Vec::new()) {
        program.unwind = Unwind::Descriptions(frames::of_file(file, head).unwrap_or_default());
    }
    Some(program)
}

impl StaticProgram {
    /// Returns the difference between addresses in memory and in the file, if code that is at
    /// `offset` in the file is mapped at `start`.
    pub(crate) fn bias(&self, start: u64, offset: u64) -> Option<u64> {
        let page = page_bytes();
        let segment = self.code.iter().find(|segment| segment.offset / page * page == offset)?;
        Some(start.wrapping_sub(segment.address / page * page))
    }

    /// Returns what the program needs besides its own unwind tables.
    pub(crate) fn header_need(&self) -> HeaderNeed {
        match &self.unwind {
            Unwind::Header { address, bytes } => HeaderNeed::Own { start: *address, end: address + bytes },
            Unwind::Descriptions(descriptions) => HeaderNeed::New { bytes: unwind_header::bytes(descriptions) },
        }
    }

    /// Returns the table that has to be made, as it is at the address `at`.
    pub(crate) fn new_header(&self, bias: u64, at: u64) -> Vec<u8> {
        match &self.unwind {
            Unwind::Header { .. } => Vec::new(),
            Unwind::Descriptions(descriptions) => unwind_header::table(descriptions, bias, at),
        }
    }
}

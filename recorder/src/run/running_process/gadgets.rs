//! What an attach uses of the process: instructions in its code, glibc's function that finds
//! objects, and the kernel's auxiliary vector.

use super::AttachError;
use super::memory::Memory;
use crate::inject::maps::Maps;
use crate::inject::patch::open_mapped;
use crate::os::processor::code::{RESTORER, SYSTEM_CALL_AND_RETURN};
use crate::os::processor::page_bytes;
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSegment, ObjectSymbol};
use std::io;
use std::path::Path;
use wire::standalone::AUXILIARY_ENTRIES;

/// Instructions of the process that the recorder uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gadgets {
    /// Address of an instruction for system calls, with a return behind it.
    pub system_call: u64,
    /// Address of the code that returns from a signal handler.
    pub restorer: u64,
}

/// Finds the instructions that the recorder uses, and all places that signal handlers return to.
///
/// # Errors
/// The process has no C library that is known.
pub(crate) fn find_gadgets(maps: &Maps, memory: &Memory) -> Result<(Gadgets, Vec<u64>), AttachError> {
    for code in &maps.code {
        let mut restorers = memory.find(code.start..code.end, RESTORER);
        // It is the C library's on some processors, and the kernel's on others.
        restorers.extend(maps.kernel_code.iter().flat_map(|code| memory.find(code.clone(), RESTORER)));
        let system_call = memory.find(code.start..code.end, SYSTEM_CALL_AND_RETURN).first().copied();
        if let (Some(&restorer), Some(system_call)) = (restorers.first(), system_call) {
            return Ok((Gadgets { system_call, restorer }, restorers));
        }
    }
    Err(AttachError::Unsuitable("it has no C library that heaptape knows".into()))
}

/// Finds glibc's function that finds the object of an address. It is in libc, or in the loader.
pub(crate) fn find_finder(pid: u32, maps: &Maps) -> Option<u64> {
    let is_libc = |path: &str| {
        path.rsplit('/').next().is_some_and(|name| name.starts_with("libc.so") || name.starts_with("ld-linux"))
    };
    let page = page_bytes();
    maps.code.iter().filter(|code| is_libc(&code.path)).find_map(|mapping| {
        let file = open_mapped(Path::new(&format!("/proc/{pid}")), mapping, false)?;
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut io::Read::take(file, 8 << 20), &mut bytes).ok()?;
        let elf = ElfFile64::<Endianness>::parse(&*bytes).ok()?;
        let segment = elf.segments().find(|segment| segment.file_range().0 / page * page == mapping.offset)?;
        let bias = mapping.start.wrapping_sub(segment.address() / page * page);
        let symbol = elf.dynamic_symbols().find(|symbol| symbol.name() == Ok("_dl_find_object"))?;
        Some(bias.wrapping_add(symbol.address()))
    })
}

/// Returns the kernel's auxiliary vector of a process.
pub(super) fn auxiliary(pid: u32) -> [[u64; 2]; AUXILIARY_ENTRIES + 1] {
    let bytes = std::fs::read(format!("/proc/{pid}/auxv")).unwrap_or_default();
    let mut out = [[0; 2]; AUXILIARY_ENTRIES + 1];
    for (target, pair) in out.iter_mut().take(AUXILIARY_ENTRIES).zip(bytes.as_chunks::<16>().0) {
        let (kind, value) = pair.split_at(8);
        let word = |bytes: &[u8]| bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        *target = [word(kind), word(value)];
    }
    out
}

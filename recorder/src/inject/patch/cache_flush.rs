//! The function in which glibc frees the blocks of a thread's cache when the thread ends. These
//! blocks are free already: its calls of `free` are no events. In a shared library it has no name.
//!
//! It is the function near to `malloc` that calls `free`, uses the thread-local variable of the
//! cache as `malloc` does, and is none of the functions with names.

use crate::os::processor::code::{calls, thread_local_slots};
use gimli::{BaseAddresses, CieOrFde, EhFrame, LittleEndian, UnwindSection};
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSection, ReadCache};
use std::fs::File;
use std::ops::Range;

/// The distance from `malloc` in which the function is: both are of one source file.
const MAX_DISTANCE: u64 = 0x8000;

/// The functions whose calls and variables say which one it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Landmarks<'a> {
    /// Address of the function `malloc`.
    pub malloc: u64,
    /// Address of the function `free`.
    pub free: u64,
    /// Addresses of all functions that have names.
    pub named: &'a [u64],
}

/// Returns the address ranges of the functions near to an address, by the file's unwind tables.
pub(crate) fn functions_near(file: &File, address: u64) -> Vec<Range<u64>> {
    let cache = ReadCache::new(file);
    let Ok(elf) = ElfFile64::<Endianness, _>::parse(&cache) else { return Vec::new() };
    let Some(section) = elf.section_by_name(".eh_frame") else { return Vec::new() };
    let (Ok(bytes), start) = (section.data(), section.address()) else { return Vec::new() };
    let (frames, bases) = (EhFrame::new(bytes, LittleEndian), BaseAddresses::default().set_eh_frame(start));
    let (mut entries, mut found) = (frames.entries(&bases), Vec::new());
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(description) = entry else { continue };
        let Ok(description) = description.parse(EhFrame::cie_from_offset) else { continue };
        let first = description.initial_address();
        if first.abs_diff(address) < MAX_DISTANCE && description.len() < MAX_DISTANCE {
            found.push(first..first + description.len());
        }
    }
    found
}

/// Returns the functions in which a thread's cache is emptied. `code` returns the code of a range.
pub(super) fn find(
    functions: &[Range<u64>],
    landmarks: &Landmarks<'_>,
    code: impl Fn(&Range<u64>) -> Vec<u8>,
) -> Vec<u64> {
    let malloc = functions.iter().find(|function| function.start == landmarks.malloc);
    let slots = malloc.map_or(Vec::new(), |malloc| thread_local_slots(&code(malloc), malloc.start));
    let is_it = |function: &&Range<u64>| {
        let is_named = landmarks.named.iter().any(|named| function.contains(named));
        let code = if is_named { Vec::new() } else { code(function) };
        calls(&code, function.start, landmarks.free)
            && thread_local_slots(&code, function.start).iter().any(|slot| slots.contains(slot))
    };
    functions.iter().filter(is_it).map(|function| function.start).collect()
}

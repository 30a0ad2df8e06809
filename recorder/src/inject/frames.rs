//! The frame descriptions in a file's `.eh_frame`, for objects whose linker made no sorted table of
//! them (`--no-eh-frame-hdr`; GCC requests the table for dynamic programs and for `-static-pie`, and
//! not for `-static`; Debian's `musl-gcc` turns it off).

use gimli::{BaseAddresses, CieOrFde, EhFrame, LittleEndian as GimliOrder, UnwindSection};
use object::elf::{self, FileHeader64, SectionHeader64};
use object::endian::LittleEndian;
use object::pod::{Pod, slice_from_all_bytes};
use std::fs::File;
use std::os::unix::fs::FileExt;

const ORDER: LittleEndian = LittleEndian;
/// Maximum number of segments, or sections, that are read.
const MAX_HEADERS: usize = 4096;
/// Maximum size of `.eh_frame` in bytes.
const MAX_FRAMES: u64 = 64 << 20;
/// Maximum number of frame descriptions.
const MAX_ENTRIES: usize = 1 << 20;

/// A frame description: addresses before relocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Description {
    /// The first address that it describes.
    pub first: u64,
    pub address: u64,
}

/// Reads an array of headers.
pub(crate) fn read_array<T: Pod>(file: &File, offset: u64, count: usize) -> Option<Vec<T>> {
    let mut bytes = vec![0; count.min(MAX_HEADERS) * size_of::<T>()];
    file.read_exact_at(&mut bytes, offset).ok()?;
    slice_from_all_bytes::<T>(&bytes).ok().map(<[T]>::to_vec)
}

/// Returns the frame descriptions of the section `.eh_frame`, or of one that begins like it, since
/// objcopy may have renamed it.
pub(crate) fn of_file(file: &File, head: &FileHeader64<LittleEndian>) -> Option<Vec<Description>> {
    let sections: Vec<SectionHeader64<LittleEndian>> =
        read_array(file, head.e_shoff.get(ORDER), usize::from(head.e_shnum.get(ORDER)))?;
    let names = sections.get(usize::from(head.e_shstrndx.get(ORDER).0))?.sh_offset.get(ORDER);
    let starts_with = |at: u64, is_start: &dyn Fn(&[u8; 10]) -> bool| {
        let mut start = [0; 10];
        file.read_exact_at(&mut start, at).is_ok() && is_start(&start)
    };
    let is_named = |section: &&SectionHeader64<LittleEndian>| {
        let at = names.checked_add(u64::from(section.sh_name.get(ORDER)));
        at.is_some_and(|at| starts_with(at, &|name| name == b".eh_frame\0"))
    };
    let is_alike = |section: &&SectionHeader64<LittleEndian>| {
        let is_data = section.sh_type.get(ORDER) == elf::SHT_PROGBITS
            && section.sh_flags.get(ORDER).0 & (elf::SHF_ALLOC.0 | elf::SHF_EXECINSTR.0) == elf::SHF_ALLOC.0;
        // A common entry: its length, the id 0, the version 1, and the augmentation `z…`.
        is_data && starts_with(section.sh_offset.get(ORDER), &|bytes| bytes[4..] == [0, 0, 0, 0, 1, b'z'])
    };
    let section = sections.iter().find(is_named).or_else(|| sections.iter().find(is_alike))?;
    let bytes = Some(section.sh_size.get(ORDER)).filter(|bytes| *bytes <= MAX_FRAMES)?;
    let mut frames = vec![0; bytes as usize];
    file.read_exact_at(&mut frames, section.sh_offset.get(ORDER)).ok()?;
    Some(descriptions(&frames, section.sh_addr.get(ORDER)))
}

/// Returns the descriptions in `.eh_frame`, by their first addresses. It ends at the first one that
/// is not valid.
fn descriptions(section: &[u8], address: u64) -> Vec<Description> {
    let frames = EhFrame::new(section, GimliOrder);
    let bases = BaseAddresses::default().set_eh_frame(address);
    let mut entries = frames.entries(&bases);
    let mut found = Vec::new();
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(description) = entry else { continue };
        let Ok(description) = description.parse(EhFrame::cie_from_offset) else { continue };
        let start = address.wrapping_add(description.offset() as u64);
        found.push(Description { first: description.initial_address(), address: start });
        if found.len() >= MAX_ENTRIES {
            break;
        }
    }
    found.sort_unstable();
    found.dedup_by_key(|description| description.first);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that are no descriptions end the search.
    #[test]
    fn invalid_frames_have_no_descriptions() {
        for section in [&[][..], &[0xff; 64], &[4, 0, 0, 0, 9, 9, 9, 9]] {
            assert_eq!(descriptions(section, 0x1000), []);
        }
    }
}

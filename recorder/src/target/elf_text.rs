//! The address range of the code of an ELF file.

use crate::os::regular_file::open_regular;
use object::elf::{self, ProgramHeader64};
use object::read::elf::{ElfFile64, ProgramHeader};
use object::{Endianness, Object, ReadCache, ReadRef};
use std::ops::Range;
use std::path::Path;

/// Returns the link-time addresses of a file's code, from the start of the first executable segment
/// to the end of the last one; `None` where the file cannot be read, or has another build-id.
pub fn extent(path: &Path, build_id: &[u8]) -> Option<Range<u64>> {
    if !path.is_absolute() {
        return None;
    }
    extent_of(&ReadCache::new(open_regular(path).ok()?), build_id)
}

fn extent_of<'data>(file: impl ReadRef<'data>, build_id: &[u8]) -> Option<Range<u64>> {
    let file = ElfFile64::<Endianness, _>::parse(file).ok()?;
    if file.build_id().ok().flatten().unwrap_or_default() != build_id {
        return None;
    }
    let endian = file.endian();
    let is_code = |header: &&ProgramHeader64<Endianness>| {
        header.p_type(endian) == elf::PT_LOAD && header.p_flags(endian).contains(elf::PF_X)
    };
    let range = |header: &ProgramHeader64<Endianness>| {
        let start = header.p_vaddr(endian);
        start..start.saturating_add(header.p_memsz(endian))
    };
    let code = file.elf_program_headers().iter().filter(is_code).map(range);
    code.reduce(|all, one| all.start.min(one.start)..all.end.max(one.end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_of_this_test() {
        let own = std::env::current_exe().expect("the test");
        let bytes = std::fs::read(&own).expect("its file");
        let file = ElfFile64::<Endianness>::parse(&*bytes).expect("an ELF file");
        let build_id = file.build_id().expect("notes").unwrap_or_default();
        let code = extent(&own, build_id).expect("code");
        assert!(code.contains(&file.entry()), "{code:x?} holds {:x}", file.entry());
        assert_eq!(extent(&own, b"another build"), None);
        assert_eq!(extent(Path::new("/dev/null"), b""), None);
        assert_eq!(extent(&own.with_extension("gone"), build_id), None);
    }
}

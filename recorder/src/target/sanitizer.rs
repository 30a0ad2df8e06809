//! Detects programs that contain or load a sanitizer's run-time, which ends the program when
//! another library is loaded before it.

use std::fs::File;
use std::path::Path;

use object::elf::FileHeader64;
use object::read::elf::{FileHeader, SectionHeader};
use object::{Endianness, ReadCache, ReadRef};

const INIT_FUNCTIONS: [&[u8]; 5] = [b"__asan_init", b"__tsan_init", b"__lsan_init", b"__msan_init", b"__hwasan_init"];
/// What all of them end with.
const COMMON_END: &[u8] = b"san_init";

/// Returns whether a sanitizer's init function is among the names that the program's file has for
/// the dynamic linker. Elsewhere the name proves nothing: a compiler has it among its strings.
pub(crate) fn is_sanitized(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| names_a_sanitizer(&ReadCache::new(file)))
}

fn names_a_sanitizer<'data>(file: impl ReadRef<'data>) -> bool {
    let names = names(file).unwrap_or_default();
    // A program like node has megabytes of names, and few of them end like this.
    let mut found = memchr::memmem::find_iter(names, COMMON_END);
    found.any(|at| INIT_FUNCTIONS.iter().any(|name| is_name_at(names, at + COMMON_END.len(), name)))
}

/// Returns whether this name ends before `end`, and is a whole one.
fn is_name_at(names: &[u8], end: usize, name: &[u8]) -> bool {
    let before = names.get(..end).and_then(|names| names.strip_suffix(name));
    before.is_some_and(|before| before.last().is_none_or(|byte| *byte == 0)) && names.get(end) == Some(&0)
}

/// Returns the names for the dynamic linker. Nothing else is read: the symbol tables of a large
/// program have hundreds of megabytes.
fn names<'data>(file: impl ReadRef<'data>) -> Option<&'data [u8]> {
    let header = FileHeader64::<Endianness>::parse(file).ok()?;
    let endian = header.endian().ok()?;
    let (_, names) = header.sections(endian, file).ok()?.section_by_name(endian, b".dynstr")?;
    names.data(endian, file).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_that_only_mentions_sanitizers_is_not_sanitized() {
        let own = std::env::current_exe().expect("the test");
        let bytes = std::fs::read(&own).expect("its file");
        assert!(bytes.windows(11).any(|window| window == b"__asan_init"), "it names them in its texts");
        assert!(!is_sanitized(&own));
        // The same file with one of its names changed to a sanitizer's.
        let names = [&b"\0pthread_create\0"[..], b"\0sigaltstack\0"];
        let find = |name: &[u8]| bytes.windows(name.len()).position(|window| window == name);
        let at = names.into_iter().find_map(find).expect("a name that the program imports");
        let mut sanitized = bytes.clone();
        sanitized[at + 1..at + 13].copy_from_slice(b"__asan_init\0");
        assert!(names_a_sanitizer(&*sanitized));
    }

    /// Symbol tables are not read, however large they are.
    #[test]
    fn program_with_large_symbol_tables_is_looked_at() {
        let mut bytes = std::fs::read(std::env::current_exe().expect("the test")).expect("its file");
        let header = FileHeader64::<Endianness>::parse(&*bytes).expect("an ELF file");
        let endian = header.endian().expect("its order");
        let sections = header.sections(endian, &*bytes).expect("sections");
        let index = sections.section_by_name(endian, b".symtab").expect("symbols").0.0;
        let at = header.e_shoff.get(endian) as usize + index * 64;
        let (offset, size) = (bytes.len() as u64, 1u64 << 40);
        bytes[at + 24..at + 32].copy_from_slice(&offset.to_le_bytes());
        bytes[at + 32..at + 40].copy_from_slice(&size.to_le_bytes());
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("program");
        std::fs::write(&path, &bytes).expect("written");
        File::options().write(true).open(&path).and_then(|file| file.set_len(offset + size)).expect("a large file");
        assert!(!is_sanitized(&path));
    }

    #[test]
    fn truncated_and_corrupt_files_are_not_sanitized() {
        let bytes = std::fs::read(std::env::current_exe().expect("the test")).expect("its file");
        for end in 0..2048.min(bytes.len()) {
            assert!(!names_a_sanitizer(&bytes[..end]));
        }
        let mut corrupt = bytes.clone();
        for offset in 16..1024 {
            corrupt[offset] ^= 0xff;
            let _ = names_a_sanitizer(&*corrupt);
            corrupt[offset] ^= 0xff;
        }
    }
}

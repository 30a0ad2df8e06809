//! Whether a program carries or needs a sanitizer's run-time, which ends the program when another library stands before it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Program headers and dynamic entries that are looked at.
const MOST_ENTRIES: usize = 4096;
/// Bytes of names that are looked at.
const MOST_NAMES: u64 = 64 << 20;
/// Bytes of the file's header, of a program header, of a dynamic entry.
const HEADER: usize = 64;
const SEGMENT: usize = 56;
const ENTRY: usize = 16;
const LOAD: u32 = 1;
const DYNAMIC: u32 = 2;
const STRTAB: u64 = 5;
const STRSZ: u64 = 10;

/// Whether a sanitizer's start is among the names that the program's file has for the dynamic linker. Elsewhere the name says nothing: a
/// compiler has it among its texts.
pub fn is_in(path: &Path) -> bool {
    let names = File::open(path).ok().and_then(|file| {
        let read = |at, length| {
            let mut bytes = vec![0; length];
            file.read_exact_at(&mut bytes, at).ok().map(|()| bytes)
        };
        dynamic_names(&read)
    });
    let starts = [&b"__asan_init"[..], b"__tsan_init", b"__msan_init", b"__hwasan_init"];
    names.unwrap_or_default().split(|byte| *byte == 0).any(|name| starts.contains(&name))
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    number(bytes, at).map(u64::from_le_bytes)
}

/// The dynamic string table of a 64-bit little-endian ELF file, of which `read` gives so many bytes from an offset.
fn dynamic_names(read: &dyn Fn(u64, usize) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
    let header = read(0, HEADER)?;
    let [size, count] = [54, 56].map(|at| number(&header, at).map(u16::from_le_bytes));
    if !header.starts_with(b"\x7fELF\x02\x01") || usize::from(size?) != SEGMENT {
        return None;
    }
    let headers = read(long(&header, 32)?, usize::from(count?).min(MOST_ENTRIES) * SEGMENT)?;
    // Offset, address and size in the file of each segment of a kind.
    let segments = |kind: u32| {
        let of_kind = move |header: &&[u8]| number(header, 0).map(u32::from_le_bytes) == Some(kind);
        let place = |header: &[u8]| Some((long(header, 8)?, long(header, 16)?, long(header, 32)?));
        headers.chunks_exact(SEGMENT).filter(of_kind).filter_map(place)
    };
    let (offset, _, length) = segments(DYNAMIC).next()?;
    let dynamic = read(offset, usize::try_from(length).ok()?.min(MOST_ENTRIES * ENTRY))?;
    let entry = |tag: u64| {
        let mut entries = dynamic.chunks_exact(ENTRY).filter(|entry| long(entry, 0) == Some(tag));
        entries.next().and_then(|entry| long(entry, 8))
    };
    let (address, length) = (entry(STRTAB)?, entry(STRSZ)?);
    let (offset, start, _) = segments(LOAD).find(|(_, start, size)| address >= *start && address - start < *size)?;
    read(offset.checked_add(address - start)?, usize::try_from(length.min(MOST_NAMES)).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(bytes: &[u8], at: u64, length: usize) -> Option<Vec<u8>> {
        let at = usize::try_from(at).ok()?;
        bytes.get(at..at.checked_add(length)?).map(<[u8]>::to_vec)
    }

    #[test]
    fn names_of_this_program() {
        let own = std::env::current_exe().expect("the test");
        let bytes = std::fs::read(&own).expect("its file");
        let names = dynamic_names(&|at, length| part(&bytes, at, length)).expect("it is linked dynamically");
        assert!(names.split(|byte| *byte == 0).any(|name| name == b"malloc" || name == b"free"));
        // This file's own texts name the sanitizers.
        assert!(bytes.windows(11).any(|window| window == b"__asan_init"));
        assert!(!is_in(&own));
    }

    #[test]
    fn cut_and_wild_files_have_no_names() {
        let bytes = std::fs::read(std::env::current_exe().expect("the test")).expect("its file");
        for end in 0..2048.min(bytes.len()) {
            assert!(dynamic_names(&|at, length| part(&bytes[..end], at, length)).is_none());
        }
        let mut wild = bytes.clone();
        for place in 16..1024 {
            wild[place] ^= 0xff;
            let _ = dynamic_names(&|at, length| part(&wild, at, length));
            wild[place] ^= 0xff;
        }
    }
}

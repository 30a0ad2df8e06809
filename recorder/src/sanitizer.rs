//! Whether a program carries or needs a sanitizer's run-time, which ends the program when another library stands before it.

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Bytes of a program that are looked at; its dynamic names lie in front.
const MOST: u64 = 64 << 20;
const LOAD: u32 = 1;
const DYNAMIC: u32 = 2;
const STRTAB: u64 = 5;
const STRSZ: u64 = 10;

/// Whether a sanitizer's start is among the names that the program's file has for the dynamic linker. Elsewhere the name says nothing: a
/// compiler has it among its texts.
pub fn is_in(path: &Path) -> bool {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MOST).read_to_end(&mut bytes));
    let names = read.ok().and_then(|_| dynamic_names(&bytes)).unwrap_or_default();
    let starts = [&b"__asan_init"[..], b"__tsan_init", b"__msan_init", b"__hwasan_init"];
    names.split(|byte| *byte == 0).any(|name| starts.contains(&name))
}

fn number<const N: usize>(bytes: &[u8], at: u64) -> Option<[u8; N]> {
    bytes.get(usize::try_from(at).ok()?..)?.first_chunk().copied()
}

fn long(bytes: &[u8], at: u64) -> Option<u64> {
    number(bytes, at).map(u64::from_le_bytes)
}

/// The dynamic string table of a 64-bit little-endian ELF file.
fn dynamic_names(bytes: &[u8]) -> Option<&[u8]> {
    if !bytes.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let first = long(bytes, 32)?;
    let [size, count] = [54, 56].map(|at| number(bytes, at).map(u16::from_le_bytes));
    let (size, count) = (u64::from(size?), u64::from(count?));
    let headers = || (0..count).filter_map(|index| first.checked_add(index * size));
    let kind = |header: u64| number(bytes, header).map(u32::from_le_bytes);
    // Offset, address and size in the file of a segment.
    let segment = |header: u64| Some((long(bytes, header + 8)?, long(bytes, header + 16)?, long(bytes, header + 32)?));
    let (dynamic, _, length) = headers().find(|header| kind(*header) == Some(DYNAMIC)).and_then(segment)?;
    // Entries that the file holds, whatever their segment's header claims.
    let entry = |tag: u64| {
        let places = (0..length / 16).map_while(|index| dynamic.checked_add(index * 16));
        let mut entries = places.map_while(|place| Some((long(bytes, place)?, long(bytes, place + 8)?)));
        entries.find(|entry| entry.0 == tag).map(|entry| entry.1)
    };
    let (address, length) = (entry(STRTAB)?, entry(STRSZ)?);
    let loads = headers().filter(|header| kind(*header) == Some(LOAD)).filter_map(segment);
    let (offset, start, _) = loads.into_iter().find(|(_, start, size)| address >= *start && address - start < *size)?;
    let from = usize::try_from(offset.checked_add(address - start)?).ok()?;
    bytes.get(from..from.checked_add(usize::try_from(length).ok()?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_this_program() {
        let own = std::env::current_exe().expect("the test");
        let bytes = std::fs::read(&own).expect("its file");
        let names = dynamic_names(&bytes).expect("it is linked dynamically");
        assert!(names.split(|byte| *byte == 0).any(|name| name == b"malloc" || name == b"free"));
        // This file's own texts name the sanitizers.
        assert!(bytes.windows(11).any(|window| window == b"__asan_init"));
        assert!(!is_in(&own));
    }

    #[test]
    fn cut_and_wild_files_have_no_names() {
        let bytes = std::fs::read(std::env::current_exe().expect("the test")).expect("its file");
        (0..2048.min(bytes.len())).for_each(|length| assert!(dynamic_names(&bytes[..length]).is_none()));
        for place in 16..1024 {
            let mut wild = bytes[..4096].to_vec();
            wild[place] ^= 0xff;
            let _ = dynamic_names(&wild);
        }
    }
}

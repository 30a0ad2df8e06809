//! Finds out whether a program contains or needs the run-time library of a sanitizer that must come
//! first among the libraries: one of its names for the dynamic linker is the init function of such
//! a run-time library.

use crate::elf::header::{self, number_in};

/// The end of the name of each init function. It is found by skipping, so that most bytes are not
/// read.
const END: &[u8; 9] = b"san_init\0";
/// The starts of the names: AddressSanitizer, ThreadSanitizer, LeakSanitizer, MemorySanitizer,
/// HWAddressSanitizer. LeakSanitizer would run, but its suppressions would not: it follows frame
/// pointers, and the hooks keep none.
const STARTS: [&[u8]; 5] = [b"\0__a", b"\0__t", b"\0__l", b"\0__m", b"\0__hwa"];
/// The most bytes of names that are read.
const MAX_NAME_BYTES: u64 = 256 << 10;
/// Number of bytes that are read at once. The caller's stack may be small.
const WINDOW: usize = 2048;
/// Number of bytes of a window that the next one repeats.
const REPEATED: usize = 16;

/// How far to skip after a comparison, by the byte at its end.
const SKIPS: [u8; 256] = {
    let mut skips = [END.len() as u8; 256];
    let mut index = 0;
    while index + 1 < END.len() {
        skips[END[index] as usize] = (END.len() - 1 - index) as u8;
        index += 1;
    }
    skips
};

/// Returns whether the names in a window contain an init function of a sanitizer.
fn names_one(names: &[u8]) -> bool {
    let mut at = 0;
    while let Some(window) = names.get(at..at + END.len()) {
        let is_start = || STARTS.iter().any(|start| names[..at].ends_with(start));
        if window == END && is_start() {
            return true;
        }
        at += usize::from(SKIPS[usize::from(window[END.len() - 1])]);
    }
    false
}

/// Searches the names of an ELF program, whose file starts with `head`. `read` reads bytes at an
/// offset.
pub(crate) fn is_in(head: &[u8], mut read: impl FnMut(u64, &mut [u8]) -> usize) -> bool {
    let mut window = [0; WINDOW];
    let Some((mut offset, mut left)) = names(head, &mut window, &mut read) else { return false };
    let mut kept = 0;
    left = left.min(MAX_NAME_BYTES);
    while left > 0 {
        let wanted = (WINDOW - kept).min(usize::try_from(left).unwrap_or(WINDOW));
        let count = read(offset, &mut window[kept..kept + wanted]).min(wanted);
        if count == 0 {
            return false;
        }
        (offset, left) = (offset.wrapping_add(count as u64), left - count as u64);
        let end = kept + count;
        if names_one(&window[..end]) {
            return true;
        }
        kept = end.min(REPEATED);
        window.copy_within(end - kept..end, 0);
    }
    false
}

/// Returns the offset and the length of the names, from the dynamic section.
fn names(
    head: &[u8],
    entries: &mut [u8; WINDOW],
    read: &mut impl FnMut(u64, &mut [u8]) -> usize,
) -> Option<(u64, u64)> {
    const DT_STRTAB: u64 = 5;
    const DT_STRSZ: u64 = 10;
    let segments = || header::segments(|offset, size| number_in(head, offset, size));
    let dynamic = segments().find(|segment| segment.kind == libc::PT_DYNAMIC)?;
    let wanted = usize::try_from(dynamic.file_bytes).unwrap_or(usize::MAX).min(entries.len());
    let count = read(dynamic.offset, &mut entries[..wanted]).min(wanted);
    let (entries, _) = entries[..count].as_chunks::<16>();
    let value = |wanted: u64| {
        entries.iter().find(|entry| number_in(*entry, 0, 8) == Some(wanted)).and_then(|entry| number_in(entry, 8, 8))
    };
    let (address, bytes) = (value(DT_STRTAB)?, value(DT_STRSZ)?);
    let holds = |start: u64, bytes: u64| address.checked_sub(start).is_some_and(|offset| offset < bytes);
    let mut loads = segments().filter(|segment| segment.kind == libc::PT_LOAD);
    let load = loads.find(|load| holds(load.address, load.file_bytes))?;
    Some((load.offset.checked_add(address - load.address)?, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_are_found_anywhere() {
        for (names, wanted) in [
            (&b"\0malloc\0__tsan_init\0free\0"[..], true),
            (b"\0__asan_init\0", true),
            (b"\0__msan_init\0", true),
            (b"\0x\0__hwasan_init\0", true),
            (b"\0x\0__lsan_init\0", true),
            (b"\0__ubsan_init\0", false),
            (b"\0__tsan_init_x\0my__tsan_init\0__tsan_ini", false),
            (b"", false),
            (b"san_init\0", false),
        ] {
            assert_eq!(names_one(names), wanted, "{}", String::from_utf8_lossy(names));
        }
        for before in 0..64 {
            let mut names = vec![b'n'; before];
            names.extend(b"\0__tsan_init\0nnnnnnn");
            assert!(names_one(&names), "after {before}");
        }
    }
}

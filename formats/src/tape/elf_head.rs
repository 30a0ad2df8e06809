//! A hash of the first bytes of an ELF file, which a process can compute from its memory: they have
//! the sizes of all segments and, in most libraries, the first dynamic symbols.

/// Number of bytes that are hashed at most: one page.
const MOST: usize = 4096;
/// The first bytes of a 64-bit little-endian object.
const MAGIC: [u8; 6] = *b"\x7fELF\x02\x01";
const PT_LOAD: u64 = 1;
/// Flags of a segment whose memory may differ from the file after the headers: it is writable, or
/// its code may be patched.
const PF_X_OR_W: u64 = 3;

/// Returns a hash of the first bytes of a 64-bit ELF file, of which `bytes` are the first 4,096 or
/// all; 0 if it has none. `preload/src/elf/head.rs` computes the same from the memory of a process.
///
/// The first load segment is hashed up to the end of the page. If it holds code or data, too, only
/// the headers are.
///
/// # Examples
///
/// ```
/// use heaptape_formats::tape::head;
///
/// assert_eq!(head(b"#!/bin/sh"), 0);
/// ```
pub fn head(bytes: &[u8]) -> u32 {
    hash(&bytes[..bytes.len().min(MOST)]).unwrap_or(0)
}

fn hash(bytes: &[u8]) -> Option<u32> {
    let number = |at: usize, size: usize| {
        let field = bytes.get(at..at.checked_add(size)?)?;
        Some(field.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    };
    bytes.starts_with(&MAGIC).then_some(())?;
    let (table, size, count) = (number(0x20, 8)? as usize, number(0x36, 2)? as usize, number(0x38, 2)? as usize);
    let headers = table.checked_add(size * count).filter(|end| *end <= MOST)?;
    let mut segments = (0..count).map(|index| table + index * size);
    let first = segments.find(|at| number(*at, 4) == Some(PT_LOAD))?;
    let (flags, offset, file_bytes) = (number(first + 4, 4)?, number(first + 8, 8)?, number(first + 0x20, 8)?);
    (offset == 0).then_some(())?;
    let end = if flags & PF_X_OR_W == 0 { file_bytes.min(MOST as u64) as usize } else { headers };
    // FNV-1a, by words.
    let mix = |hash: u64, word: &[u8]| {
        let word = word.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
        (hash ^ word).wrapping_mul(0x0100_0000_01b3)
    };
    let hash = bytes.get(..end)?.chunks_exact(8).fold(0xcbf2_9ce4_8422_2325, mix);
    Some((hash ^ hash >> 32) as u32)
}

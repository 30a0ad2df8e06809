//! Symbols that a distribution packs into a stripped binary: `.gnu_debugdata`, an xz stream of an
//! ELF file with the symbols that `.dynsym` lacks.

use super::elf::{Elf, Functions};
use crate::kept_file::KeptFile;
use std::io::{self, BufReader, Write};

/// Maximum size of the unpacked file in bytes.
const MOST: u64 = 256 << 20;

/// A writer that refuses more than `left` bytes.
struct Bounded<W> {
    out: W,
    left: u64,
}

impl<W: Write> Write for Bounded<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.left = self.left.checked_sub(bytes.len() as u64).ok_or_else(|| io::Error::other("too long"))?;
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Returns the functions of a file without a full symbol table: those of `.dynsym`, and the packed
/// ones.
pub(super) fn functions(elf: &Elf) -> Functions {
    let dynamic = elf.functions(true);
    match packed(elf) {
        Some(packed) => dynamic.with(packed.functions(false)),
        None => dynamic,
    }
}

fn packed(elf: &Elf) -> Option<Elf> {
    let stored = elf.section(".gnu_debugdata");
    if stored.is_empty() {
        return None;
    }
    // It is unpacked into an unnamed file, so that only the parts that are read are in memory.
    let mut file = tempfile::tempfile().ok()?;
    lzma_rs::xz_decompress(&mut BufReader::new(&stored[..]), &mut Bounded { out: &mut file, left: MOST }).ok()?;
    Elf::of(KeptFile::unnamed(file).ok()?)
}

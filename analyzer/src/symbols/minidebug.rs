//! Symbols that a distribution packs into a stripped binary: `.gnu_debugdata`, an xz stream of an
//! ELF file that has the symbols which `.dynsym` lacks.

use super::elf::{Elf, Functions};
use std::io::{self, BufReader, Write};

/// The longest such file, unpacked.
const MOST: u64 = 256 << 20;

/// A writer that refuses more than so much.
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

/// The functions of a file without a full symbol table: those of `.dynsym`, and those that are
/// packed into it.
pub fn functions(elf: &Elf) -> Functions {
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
    // Unpacked into a file without a name: only the parts that are asked for come into memory.
    let mut file = tempfile::tempfile().ok()?;
    lzma_rs::xz_decompress(&mut BufReader::new(&stored[..]), &mut Bounded { out: &mut file, left: MOST }).ok()?;
    Elf::of(file)
}

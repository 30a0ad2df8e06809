//! Symbols that a stripped file does not have itself: packed into a section of it, or in a separate
//! file that belongs to it.
//!
//! The stripped file belongs to a program that may be hostile. What is unpacked is bounded in size
//! and time, and a separate file must have the same build-id, or the checksum that the stripped
//! file names. A symbol decides only which function is examined: its bytes are read from the file
//! that is mapped, and are verified in the process before they are changed.

use super::names::Names;
use super::symbols::{self, ElfFile, Fault, Symbol};
use crate::os::sys;
use crate::target::module_files::open_file;
use nix::libc;
use nix::sys::stat::fstat;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Maximum size of packed symbols after they are unpacked, in bytes.
const MAX_UNPACKED: u64 = 32 << 20;
/// Assumed speed of decompression, in bytes per microsecond: a release build does slightly better.
const UNPACKED_BYTES_A_MICROSECOND: u64 = 16;
/// Maximum size of the section `.gnu_debuglink` in bytes.
const MAX_LINK: u64 = 4096;
/// Where distributions install separate debug information.
const DEBUG_FOLDER: &str = "/usr/lib/debug";

/// Symbols from other sources than the tables of a file.
#[derive(Debug, Default)]
pub(super) struct Separate {
    /// The wanted symbols, in no order.
    pub symbols: Vec<Symbol>,
    /// Whether a separate file with all symbols was found.
    pub has_all_names: bool,
}

/// Returns the wanted symbols of a file that has no full symbol table. Empty if there is no
/// other source.
///
/// # Errors
/// [`Fault::Late`] if the deadline passed.
pub(super) fn symbols(file: &File, elf: &ElfFile, names: &Names, deadline: Instant) -> Result<Separate, Fault> {
    let mut all = Separate::default();
    if let Some(packed) = unpacked(file, elf, deadline)? {
        all.symbols = no_fault(symbols::find(&packed, names, deadline))?.symbols;
    }
    for path in by_build_id(&elf.build_id) {
        let Some(debug) = regular(&path) else { continue };
        let found = no_fault(symbols::find(&debug, names, deadline))?;
        if found.build_id == elf.build_id && found.has_all_names {
            all.symbols.extend(found.symbols);
            all.has_all_names = true;
            return Ok(all);
        }
    }
    let Some(link) = Link::of(file, elf) else { return Ok(all) };
    for path in link.paths(file) {
        let Some(debug) = regular(&path) else { continue };
        let found = no_fault(symbols::find(&debug, names, deadline))?;
        let is_same = match elf.build_id.is_empty() || found.build_id.is_empty() {
            true => checksum(&debug, deadline)? == Some(link.checksum),
            false => found.build_id == elf.build_id,
        };
        if is_same && found.has_all_names {
            all.symbols.extend(found.symbols);
            all.has_all_names = true;
            break;
        }
    }
    Ok(all)
}

/// Returns whether there is a separate file that may have the symbols of this one.
pub(super) fn exists(file: &File, elf: &ElfFile) -> bool {
    let linked = Link::of(file, elf).map_or(Vec::new(), |link| link.paths(file));
    by_build_id(&elf.build_id).iter().chain(&linked).any(|path| regular(path).is_some())
}

/// Returns the build-id of a program whose symbols are nowhere on this machine. A debuginfod server
/// may have them.
pub fn build_id_without_symbols(program: &File) -> Option<Vec<u8>> {
    let elf = symbols::headers(program).ok()?.file;
    let is_alone = !elf.has_all_names && elf.debug_data.is_none() && !exists(program, &elf);
    (is_alone && !elf.build_id.is_empty()).then_some(elf.build_id)
}

/// Returns what was found in a file that nothing depends on: nothing, if it is not understood.
fn no_fault(found: Result<ElfFile, Fault>) -> Result<ElfFile, Fault> {
    match found {
        Err(Fault::Invalid) => Ok(ElfFile::default()),
        other => other,
    }
}

fn regular(path: &Path) -> Option<File> {
    let file = open_file(path)?;
    fstat(&file).is_ok_and(|status| status.st_mode & libc::S_IFMT == libc::S_IFREG).then(|| File::from(file))
}

/// Returns the paths of separate debug information with this build-id: installed by a distribution,
/// or in the cache of debuginfod.
fn by_build_id(build_id: &[u8]) -> Vec<PathBuf> {
    let Some((first, rest)) = build_id.split_first().filter(|(_, rest)| !rest.is_empty()) else { return Vec::new() };
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let (first, rest) = (hex(&[*first]), hex(rest));
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let cache = variable("DEBUGINFOD_CACHE_PATH")
        .or_else(|| Some(variable("XDG_CACHE_HOME")?.join("debuginfod_client")))
        .or_else(|| Some(variable("HOME")?.join(".cache/debuginfod_client")));
    let installed = Path::new(DEBUG_FOLDER).join(".build-id").join(&first).join(format!("{rest}.debug"));
    let fetched = cache.map(|cache| cache.join(format!("{first}{rest}")).join("debuginfo"));
    [Some(installed), fetched].into_iter().flatten().collect()
}

/// The file that `.gnu_debuglink` names.
struct Link {
    /// Name of the separate file, without a folder.
    name: Vec<u8>,
    checksum: u32,
}

impl Link {
    fn of(file: &File, elf: &ElfFile) -> Option<Link> {
        let section = elf.debug_link.as_ref().filter(|section| section.bytes <= MAX_LINK)?;
        let bytes = section.read(file)?;
        let end = bytes.iter().position(|byte| *byte == 0)?;
        let name = bytes.get(..end).filter(|name| !name.is_empty() && !name.contains(&b'/') && *name != b"..")?;
        let sum = bytes.get((end + 1).next_multiple_of(4)..)?.first_chunk::<4>()?;
        Some(Link { name: name.to_vec(), checksum: u32::from_le_bytes(*sum) })
    }

    /// Returns where the separate file may be.
    fn paths(&self, file: &File) -> Vec<PathBuf> {
        let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap_or_default();
        let Some(folder) = path.parent().filter(|folder| folder.is_absolute()) else { return Vec::new() };
        let name = OsStr::from_bytes(&self.name);
        let below = folder.strip_prefix("/").unwrap_or(folder);
        vec![folder.join(name), folder.join(".debug").join(name), Path::new(DEBUG_FOLDER).join(below).join(name)]
    }
}

/// Returns the CRC-32 of a file; `None` if it cannot be read.
fn checksum(file: &File, deadline: Instant) -> Result<Option<u32>, Fault> {
    let (mut file, mut hasher, mut chunk) = (file, crc32fast::Hasher::new(), vec![0; 1 << 20]);
    if file.rewind().is_err() {
        return Ok(None);
    }
    loop {
        if Instant::now() > deadline {
            return Err(Fault::Late);
        }
        match file.read(&mut chunk) {
            Ok(0) => return Ok(Some(hasher.finalize())),
            Ok(count) => hasher.update(chunk.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Ok(None),
        }
    }
}

/// Returns the size that an xz stream has when it is unpacked, by the headers of its chunks; `None`
/// if it is not valid, or has more than `most` bytes. The unpacker keeps all bytes in memory, and
/// trusts these headers, too. The layout is that of *The .xz File Format*, 1.2.1.
fn unpacked_bytes(xz: &[u8], most: u64) -> Option<u64> {
    let check = match xz.get(..12)? {
        [0xfd, b'7', b'z', b'X', b'Z', 0, 0, kind, ..] => match kind {
            0 => 0,
            1..=3 => 4,
            4..=6 => 8,
            7..=9 => 16,
            10..=12 => 32,
            _ => 64,
        },
        _ => return None,
    };
    let (mut at, mut sum) = (12, 0);
    // A block begins with its size; the index after the last one begins with 0.
    while let Some(size) = xz.get(at).copied().filter(|size| *size != 0) {
        at += (usize::from(size) + 1) * 4;
        let block = at;
        loop {
            let (head, pair) =
                (*xz.get(at)?, |from: usize| Some(u64::from(*xz.get(from)?) << 8 | u64::from(*xz.get(from + 1)?)));
            let (unpacked, bytes) = match head {
                0 => break,
                1 | 2 => (pair(at + 1)? + 1, 3 + pair(at + 1)? + 1),
                0x80.. => {
                    let unpacked = (u64::from(head & 0x1f) << 16) + pair(at + 1)? + 1;
                    (unpacked, 5 + u64::from(head >= 0xc0) + pair(at + 3)? + 1)
                }
                _ => return None,
            };
            sum += unpacked;
            at = at.checked_add(usize::try_from(bytes).ok()?).filter(|_| sum <= most)?;
        }
        at = block + (at + 1 - block).next_multiple_of(4) + check;
    }
    Some(sum)
}

/// Unpacks `.gnu_debugdata`, an xz stream of an ELF file, into memory.
fn unpacked(file: &File, elf: &ElfFile, deadline: Instant) -> Result<Option<File>, Fault> {
    let Some(section) = elf.debug_data.as_ref().filter(|section| section.bytes <= MAX_UNPACKED) else {
        return Ok(None);
    };
    let Some(packed) = section.read(file) else { return Ok(None) };
    let Some(bytes) = unpacked_bytes(&packed, MAX_UNPACKED) else { return Ok(None) };
    // The unpacker cannot be interrupted.
    if Instant::now() + Duration::from_micros(bytes / UNPACKED_BYTES_A_MICROSECOND) > deadline {
        return Err(Fault::Late);
    }
    let mut unpacked = Vec::new();
    if lzma_rs::xz_decompress(&mut BufReader::new(&packed[..]), &mut unpacked).is_err() {
        return Ok(None);
    }
    let Ok(memory) = sys::new_memory_file(c"symbols", libc::MFD_CLOEXEC) else { return Ok(None) };
    let memory = File::from(memory);
    Ok(memory.write_all_at(&unpacked, 0).is_ok().then_some(memory))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An xz stream with this content.
    fn packed(content: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        lzma_rs::xz_compress(&mut BufReader::new(content), &mut out).unwrap_or_else(|error| panic!("{error}"));
        out
    }

    #[test]
    fn size_is_known_before_it_is_unpacked() {
        let content: Vec<u8> = (0..300_000u32).map(|number| (number.wrapping_mul(number) >> 7) as u8).collect();
        let xz = packed(&content);
        assert_eq!(unpacked_bytes(&xz, 1 << 20), Some(300_000));
        assert_eq!(unpacked_bytes(&xz, 299_999), None);
        assert_eq!(unpacked_bytes(&packed(b""), 1 << 20), Some(0));
        for length in 0..200 {
            let _ = unpacked_bytes(&xz[..length], 1 << 20);
        }
        for at in 0..64 {
            for byte in [0, 1, 0x7f, 0x80, 0xff] {
                let mut changed = xz.clone();
                changed[at] = byte;
                assert!(unpacked_bytes(&changed, 1 << 20).is_none_or(|bytes| bytes <= 1 << 20));
            }
        }
    }

    /// What xz itself writes has compressed chunks: it is in the test of the pipeline. Here is one.
    #[test]
    fn compressed_chunks_are_counted() {
        let block = |chunks: &[u8]| {
            let header = [0xfd, b'7', b'z', b'X', b'Z', 0, 0, 0, 0, 0, 0, 0, 2, 0, 0x21, 1, 0, 0, 0, 0, 0, 0, 0, 0];
            [&header[..], chunks, &[0; 16]].concat()
        };
        // New properties: 6 bytes before 2 of content. 0x0102 + 1 bytes when unpacked.
        assert_eq!(unpacked_bytes(&block(&[0xe0, 1, 2, 0, 1, 93, 7, 7, 0]), 4096), Some(0x103));
        // Without: 5 bytes before. The five low bits of the first byte are those above 16.
        assert_eq!(unpacked_bytes(&block(&[0x81, 0, 0, 0, 0, 7, 0]), 1 << 20), Some(0x10001));
        assert_eq!(unpacked_bytes(&block(&[0x03, 0, 0, 0, 0, 7, 0]), 1 << 20), None);
    }
}

//! How many bytes an allocator reserves for a block, from the size that was requested. The rules
//! are those of the allocators' sources; none of them is exact for every version and setting.

use std::borrow::Cow;

/// An allocator whose size classes are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocator {
    /// The C library of GNU: `malloc/malloc.c`.
    Glibc,
    /// jemalloc 4 and later: `sz_size2index` in `include/jemalloc/internal/sz.h`.
    Jemalloc,
    /// mimalloc 1 and 2: `_mi_bin` in `src/page-queue.c`.
    Mimalloc,
    /// gperftools' tcmalloc: `AlignmentForSize` in `src/common.cc`.
    Tcmalloc,
    /// Another one: blocks are as large as requested.
    Unknown,
}

/// Smallest request that glibc may answer with a mapping of its own.
const GLIBC_MAPPING: u64 = 128 << 10;
/// Offset of such a block in its first page.
const GLIBC_MAPPING_OFFSET: u64 = 16;
const PAGE: u64 = 4096;

/// The bytes that a block occupies, from the first one to the one after the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupied {
    /// First address of the bytes.
    pub start: u64,
    /// First address after it.
    pub end: u64,
}

/// Returns the part of a path after the last slash.
fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

/// Returns whether a path is that of glibc, which has been called `libc.so.6` since version 2.34.
fn is_glibc(path: &str) -> bool {
    file_name(path) == "libc.so.6" || file_name(path).starts_with("libc-2.")
}

/// Rounds up to the next class of a series with a number of classes (a power of two) between two
/// powers of two.
const fn geometric(size: u64, classes: u64) -> u64 {
    let power = 1 << (u64::BITS - 1 - (size - 1).leading_zeros());
    let step = power / classes;
    if step <= 1 { size } else { size.next_multiple_of(step) }
}

impl Allocator {
    /// Returns the allocator with a name, as a file name or a prefix of functions has it.
    pub fn of_name(name: &str) -> Option<Allocator> {
        let name = name.to_lowercase();
        let known = [
            ("jemalloc", Allocator::Jemalloc),
            ("mimalloc", Allocator::Mimalloc),
            ("tcmalloc", Allocator::Tcmalloc),
            ("rjem", Allocator::Jemalloc),
        ];
        known.into_iter().find(|(part, _)| name.contains(part)).map(|(_, allocator)| allocator)
    }

    /// Returns the allocator whose `malloc` a process calls, by the path of its library. Where that
    /// is empty, it is the one that the name of a mapped file shows.
    pub fn of_process<'a>(malloc: &str, mapped: impl Iterator<Item = Cow<'a, str>>) -> Allocator {
        let names: Vec<Cow<'_, str>> =
            if malloc.is_empty() { mapped.collect() } else { vec![malloc.to_owned().into()] };
        let found = names.iter().find_map(|name| Allocator::of_name(file_name(name)));
        let is_glibc = names.iter().any(|name| is_glibc(name));
        found.unwrap_or(if is_glibc { Allocator::Glibc } else { Allocator::Unknown })
    }

    /// Returns the allocator inside a program by its name and the path of its file.
    pub fn of_inside(name: &str, module: &str) -> Allocator {
        let known = Allocator::of_name(name).or_else(|| Allocator::of_name(file_name(module)));
        // That of a process that ran already is hooked in the libc itself.
        let libc = is_glibc(module).then_some(Allocator::Glibc);
        known.or(libc).unwrap_or(Allocator::Unknown)
    }

    /// Returns the name of the allocator in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Allocator::Glibc => "glibc",
            Allocator::Jemalloc => "jemalloc",
            Allocator::Mimalloc => "mimalloc",
            Allocator::Tcmalloc => "tcmalloc",
            Allocator::Unknown => "unknown",
        }
    }

    /// Returns whether a block of glibc has a mapping of its own.
    pub const fn is_mapped_by_glibc(address: u64, size: u64) -> bool {
        size >= GLIBC_MAPPING && address % PAGE == GLIBC_MAPPING_OFFSET
    }

    /// Returns the bytes that a block of this allocator occupies.
    pub const fn occupied(self, address: u64, size: u64) -> Occupied {
        let (start, length) = match self {
            Allocator::Glibc if Allocator::is_mapped_by_glibc(address, size) => {
                let start = address - GLIBC_MAPPING_OFFSET;
                (start, size.saturating_add(GLIBC_MAPPING_OFFSET).saturating_add(PAGE - 1) / PAGE * PAGE)
            }
            Allocator::Glibc => {
                // A chunk has 8 bytes before the block, and ends 8 bytes before the next block.
                let chunk = size.saturating_add(8 + 15) / 16 * 16;
                (address.saturating_sub(8), if chunk < 32 { 32 } else { chunk })
            }
            Allocator::Jemalloc => (address, Allocator::jemalloc(size)),
            Allocator::Mimalloc => (address, Allocator::mimalloc(size)),
            Allocator::Tcmalloc => (address, Allocator::tcmalloc(size)),
            Allocator::Unknown => (address, if size == 0 { 1 } else { size }),
        };
        Occupied { start, end: start.saturating_add(length) }
    }

    const fn jemalloc(size: u64) -> u64 {
        match size {
            0..=8 => 8,
            9..=128 => size.next_multiple_of(16),
            _ if size > 1 << 60 => size,
            _ => geometric(size, 4),
        }
    }

    const fn mimalloc(size: u64) -> u64 {
        match size {
            0..=8 => 8,
            9..=64 => size.next_multiple_of(16),
            _ if size > 1 << 60 => size,
            _ if size > 16 << 20 => size.next_multiple_of(64 << 10),
            _ => geometric(size, 4),
        }
    }

    const fn tcmalloc(size: u64) -> u64 {
        match size {
            0..=8 => 8,
            9..=127 => size.next_multiple_of(16),
            _ if size > 1 << 60 => size,
            _ if size > 256 << 10 => size.next_multiple_of(8 << 10),
            _ => geometric(size, 8),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the lengths that blocks of these sizes occupy.
    fn lengths<const N: usize>(allocator: Allocator, sizes: [u64; N]) -> [u64; N] {
        sizes.map(|size| {
            let Occupied { start, end } = allocator.occupied(0x10020, size);
            end - start
        })
    }

    #[test]
    fn classes_are_those_of_the_allocators() {
        assert_eq!(lengths(Allocator::Glibc, [0, 24, 25, 40, 41, 1000]), [32, 32, 48, 48, 64, 1008]);
        // `jemalloc.3`, the table of size classes.
        assert_eq!(
            lengths(Allocator::Jemalloc, [1, 9, 17, 128, 129, 161, 256, 257, 14337, 16385, 20481]),
            [8, 16, 32, 128, 160, 192, 256, 320, 16384, 20480, 24576]
        );
        assert_eq!(lengths(Allocator::Mimalloc, [1, 64, 65, 81, 1025]), [8, 64, 80, 96, 1280]);
        assert_eq!(lengths(Allocator::Tcmalloc, [1, 100, 129, 1025, 300_000]), [8, 112, 144, 1152, 303_104]);
        assert_eq!(lengths(Allocator::Unknown, [0, 7]), [1, 7]);
        for allocator in [Allocator::Glibc, Allocator::Jemalloc, Allocator::Mimalloc, Allocator::Tcmalloc] {
            for size in [0, 1, 255, 1 << 20, u64::MAX] {
                let Occupied { start, end } = allocator.occupied(0x10020, size);
                assert!(start <= 0x10020 && (end >= 0x10020_u64.saturating_add(size) || end == u64::MAX), "{size}");
            }
        }
    }

    #[test]
    fn a_large_block_of_glibc_has_pages_of_its_own() {
        let occupied = Allocator::Glibc.occupied(0x7f00_0000_0010, 200_000);
        assert_eq!(occupied, Occupied { start: 0x7f00_0000_0000, end: 0x7f00_0003_1000 });
    }

    #[test]
    fn allocators_are_recognized_by_their_files() {
        assert_eq!(Allocator::of_name("/usr/lib/libjemalloc.so.2"), Some(Allocator::Jemalloc));
        assert_eq!(Allocator::of_name("/usr/lib/libtcmalloc_minimal.so.4"), Some(Allocator::Tcmalloc));
        assert_eq!(Allocator::of_name("/usr/lib/libc.so.6"), None);
    }
}

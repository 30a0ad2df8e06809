//! The files whose code a process has mapped, and the free address ranges near them.

use crate::os::processor::ADDRESS_BITS;
use crate::os::processor::code::JUMP_REACH as MAX_DISTANCE;
use crate::target::maps;
use std::ops::Range;
use wire::area::PAGE;

/// The lowest address that programs may map (`vm.mmap_min_addr`).
const MIN_ADDRESS: u64 = 1 << 16;
/// The distance from the end of the largest gap, where the library and its area are mapped.
const FAR: u64 = if MAX_DISTANCE > 1 << 30 { 512 << 20 } else { 64 << 20 };
/// The distance that is kept to mappings, which may grow.
const MARGIN: u64 = 16 * PAGE;

/// A mapping of executable bytes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CodeMapping {
    /// First address of the mapping.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// Offset of the first byte in the file.
    pub offset: u64,
    pub inode: u64,
    /// Path of the file, as the process sees it.
    pub path: String,
    /// Both addresses as the kernel writes them: a name in `map_files`.
    pub range: String,
}

/// All mappings of a process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Maps {
    /// Mappings of code of files, by address: what can be read and executed, and not written.
    pub code: Vec<CodeMapping>,
    /// The code that the kernel maps into every program.
    pub kernel_code: Option<Range<u64>>,
    /// Addresses that are mapped, and those that this type has given away.
    used: Vec<(u64, u64)>,
}

impl Maps {
    /// Reads the mappings of a process.
    pub(crate) fn of(pid: u32) -> Maps {
        Maps::parse(&String::from_utf8_lossy(&maps::read(pid)))
    }

    /// Parses the text of `maps`.
    pub(crate) fn parse(text: &str) -> Maps {
        let mut maps = Maps::default();
        for line in text.lines().filter_map(maps::parse) {
            let maps::Line { start, end, offset, inode, .. } = line;
            maps.used.push((start, end));
            if line.name == "[vdso]" {
                maps.kernel_code = Some(start..end);
            }
            if line.is_code() && inode != 0 {
                let (path, range) = (line.path().to_owned(), line.range.to_owned());
                maps.code.push(CodeMapping { start, end, offset, inode, path, range });
            }
        }
        maps
    }

    /// Takes a free range of `bytes` bytes near to the mapping from `start` to `end`, below it if
    /// possible. Returns its address.
    pub(crate) fn take_near(&mut self, start: u64, end: u64, bytes: u64) -> Option<u64> {
        let bytes = bytes.next_multiple_of(PAGE);
        self.used.sort_unstable();
        let lowest = end.saturating_sub(MAX_DISTANCE).max(MIN_ADDRESS);
        let highest = start.saturating_add(MAX_DISTANCE);
        let mut gaps = Vec::new();
        let mut last = MIN_ADDRESS;
        for &(first, next) in self.used.iter().chain(&[(1 << ADDRESS_BITS, 1 << ADDRESS_BITS)]) {
            gaps.push((last, first));
            last = last.max(next);
        }
        // The highest address in a gap below the mapping, or the lowest in one above it. The kernel
        // places what is mapped next at the end of the largest gap, so there it is a lower one. A
        // small gap between libraries comes after that: what is mapped next may fill it.
        let below = |is_large: bool| {
            let wanted = |gap: &&(u64, u64)| gap.1 <= start && (gap.1 - gap.0 > MAX_DISTANCE) == is_large;
            gaps.iter().rev().filter(wanted).find_map(|(gap, gap_end)| {
                let at = gap_end
                    .checked_sub(bytes + MARGIN)
                    .filter(|at| *at >= *gap + MARGIN || *gap == MIN_ADDRESS && at >= gap)
                    .filter(|at| *at >= lowest)?;
                Some(if is_large { at.saturating_sub(FAR).max(lowest) } else { at })
            })
        };
        let above = || {
            gaps.iter().filter(|(gap, _)| *gap >= end).find_map(|(gap, gap_end)| {
                let at = gap + MARGIN;
                (at + bytes + MARGIN <= *gap_end && at + bytes <= highest).then_some(at)
            })
        };
        let at = below(true).or_else(|| below(false)).or_else(above)?;
        self.used.push((at, at + bytes));
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
00400000-00401000 r--p 00000000 fd:01 77                         /bin/a b
00401000-00403000 r-xp 00001000 fd:01 77                         /bin/a b
01000000-01021000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000002000 r-xp 00000000 fd:01 78                 /lib/gone.so (deleted)
7ffc00000000-7ffc00002000 rw-p 00000000 00:00 0                  [stack]
7ffd00000000-7ffd00002000 r-xp 00000000 00:00 0                  [vdso]
bad line
";

    #[test]
    fn code_of_files_is_found() {
        let maps = Maps::parse(TEXT);
        let code: Vec<_> = maps.code.iter().map(|one| (one.start, one.offset, one.inode, &one.path[..])).collect();
        assert_eq!(code, [(0x40_1000, 0x1000, 77, "/bin/a b"), (0x7f00_0000_0000, 0, 78, "/lib/gone.so")]);
    }

    #[test]
    fn free_ranges_are_near_and_taken_once() {
        let mut maps = Maps::parse(TEXT);
        let first = maps.take_near(0x40_0000, 0x40_3000, 5000).unwrap_or(0);
        let second = maps.take_near(0x40_0000, 0x40_3000, 5000).unwrap_or(0);
        assert!(first >= MIN_ADDRESS && first + 8192 <= 0x40_0000 && second + 8192 <= first, "{first:x} {second:x}");
        let library = maps.take_near(0x7f00_0000_0000, 0x7f00_0000_2000, 4096).unwrap_or(0);
        assert!(library < 0x7f00_0000_0000 && 0x7f00_0000_2000 - library < MAX_DISTANCE, "{library:x}");
        // The library and the area are mapped below it, before the range is used.
        assert!(0x7f00_0000_0000 - library > FAR, "{library:x}");
        // A gap between libraries, which what is mapped next may fill, is not taken.
        let library = "7f0000100000-7f0000102000 r-xp 00000000 fd:01 79 /lib/above.so\n";
        let mut maps = Maps::parse(&format!("{TEXT}{library}"));
        let at = maps.take_near(0x7f00_0010_0000, 0x7f00_0010_2000, 4096).unwrap_or(0);
        assert!(at != 0 && at < 0x7f00_0000_0000 - FAR, "{at:x}");
        // The end of a large gap may be too far away to be reached.
        let far = "7f0000100000-7f00fc000000 rw-p 00000000 00:00 0\n7f00fc001000-7f00fc002000 r-xp 00000000 fd:01 80 /lib/far.so\n";
        let mut maps = Maps::parse(&format!("{TEXT}{far}"));
        assert_eq!(maps.take_near(0x7f00_fc00_1000, 0x7f00_fc00_2000, 4096), Some(0x7f00_fc00_2000 + MARGIN));
        // There is no space below a mapping at the lowest address.
        let mut low = Maps::parse("10000-20000 r-xp 00000000 fd:01 77 /bin/low\n");
        assert_eq!(low.take_near(0x1_0000, 0x2_0000, 4096), Some(0x2_0000 + MARGIN));
        let mut full = Maps::parse("10000-7fffffff0000 r-xp 00000000 fd:01 77 /bin/full\n");
        assert_eq!(full.take_near(0x1_0000, 0x7fff_ffff_0000, 4096), None);
    }
}

//! The mappings of a process, from `/proc/PID/maps`, as a snapshot of its pages stores them.

use crate::os::processor::{ADDRESS_BITS, page_bytes};
use crate::target::maps::{Line, parse};
use formats::tape::field::Text;
use formats::tape::{
    MAPPING_ANONYMOUS, MAPPING_BRK, MAPPING_FILE, MAPPING_HEAPTAPE, MAPPING_HUGETLB, MAPPING_KERNEL, MAPPING_SHARED,
    MAPPING_STACK, Mapping, Residency,
};
use std::collections::HashMap;

/// The name of the area that the process shares with the recorder.
const AREA: &str = "/memfd:heaptape";
/// Maximum number of names that are stored, and of bytes of each.
const MAX_NAMES: usize = 4096;
const MAX_NAME: usize = 512;
/// Maximum size of a range without access below the stack of a thread, in bytes.
const MAX_GUARD: u64 = 64 << 10;

/// Returns what a mapping is used for; `guard` is the end of a small range without access, `own`
/// the library's private memory.
fn kind_of(line: &Line<'_>, guard: u64, own: &[(u64, u64)]) -> u8 {
    let name = line.name;
    let file = name.rsplit('/').next().unwrap_or_default();
    match name {
        _ if name.starts_with(AREA) || file.starts_with("libheaptape") => MAPPING_HEAPTAPE,
        "" if own.iter().any(|range| (range.0..range.1).contains(&line.start)) => MAPPING_HEAPTAPE,
        "" if guard == line.start && line.has_access() && !line.is_shared() => MAPPING_STACK,
        "" => MAPPING_ANONYMOUS,
        "[heap]" => MAPPING_BRK,
        _ if name.starts_with("[stack") || name.starts_with("[anon:stack_and_tls") => MAPPING_STACK,
        _ if name.starts_with("[anon:") => MAPPING_ANONYMOUS,
        _ if name.starts_with('[') => MAPPING_KERNEL,
        _ if name.starts_with("/anon_hugepage") || name.starts_with("/dev/hugepages/") => MAPPING_HUGETLB,
        _ if name.starts_with("/memfd:")
            || name.starts_with("/dev/zero")
            || name.starts_with("/dev/shm/")
            || name.starts_with("/SYSV") =>
        {
            MAPPING_SHARED
        }
        _ => MAPPING_FILE,
    }
}

#[derive(Debug, Default)]
pub(super) struct Mappings {
    names: Vec<Text>,
    mappings: Vec<Mapping>,
    /// Inodes of the areas of recordings that the process has mapped.
    areas: Vec<u64>,
    /// Inode and offset of the code of the first libc.
    libc: Option<(u64, u64)>,
    /// Path of a second one.
    second_libc: Option<String>,
}

/// Returns whether a path is that of a C library.
fn is_libc(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    ["libc.so", "libc-2.", "libc.musl", "ld-musl"].iter().any(|known| name.starts_with(known))
}

impl Mappings {
    /// Parses the text of `maps`, in a process with this private memory of the library.
    pub(super) fn parse(text: &str, own: &[(u64, u64)]) -> Mappings {
        let mut found = Mappings::default();
        let mut numbers: HashMap<&str, u32> = HashMap::new();
        let (mut end, mut guard, mut is_after_own) = (0, 0, false);
        for line in text.lines().filter_map(parse).filter(|line| line.start >> ADDRESS_BITS == 0) {
            if line.is_code() && line.inode != 0 && is_libc(line.path()) {
                found.note_libc(&line);
            }
            let kind = kind_of(&line, guard, own);
            if line.name.starts_with(AREA) && found.areas.last() != Some(&line.inode) {
                found.areas.push(line.inode);
            }
            // A page behind the library's memory is its own. With the guard of a stack it is one mapping.
            let least = if is_after_own && line.start == end { page_bytes() + 1 } else { 1 };
            let is_guard = line.name.is_empty()
                && !line.has_access()
                && (least..=MAX_GUARD + page_bytes()).contains(&(line.end - line.start));
            guard = if is_guard { line.end } else { 0 };
            is_after_own = kind == MAPPING_HEAPTAPE;
            let name = match line.name {
                "" => 0,
                name => numbers.get(name).copied().unwrap_or_else(|| {
                    if found.names.len() >= MAX_NAMES {
                        return 0;
                    }
                    found.names.push(Text(name.as_bytes()[..name.len().min(MAX_NAME)].to_vec()));
                    let number = found.names.len() as u32;
                    numbers.insert(name, number);
                    number
                }),
            };
            let (gap, length) = (line.start.saturating_sub(end), line.end - line.start);
            end = line.end;
            match found.mappings.last_mut() {
                // Two stacks are two mappings, and so are the arenas of an allocator.
                Some(last) if gap == 0 && (last.kind, last.name) == (kind, name) && kind != MAPPING_STACK => {
                    last.length += length;
                }
                _ => found.mappings.push(Mapping { gap, length, kind, name }),
            }
        }
        found
    }

    fn note_libc(&mut self, line: &Line<'_>) {
        match self.libc {
            None => self.libc = Some((line.inode, line.offset)),
            // The code of one library may be several mappings, at other offsets.
            Some((inode, offset)) if line.inode == inode && line.offset != offset => {}
            Some(_) => self.second_libc = Some(line.path().to_owned()),
        }
    }

    /// Takes the path of a second C library in the process. Its `malloc` is another one.
    pub(crate) fn take_second_libc(&mut self) -> Option<String> {
        self.second_libc.take()
    }

    /// Returns whether the process has mapped the area with this inode. A program that it executes
    /// later has another area.
    pub(crate) fn has_area(&self, inode: u64) -> bool {
        self.areas.contains(&inode)
    }

    /// Returns the addresses of the mappings: first address, and first address after it.
    pub(super) fn ranges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.mappings.iter().scan(0u64, |at, mapping| {
            let start = *at + mapping.gap;
            *at = start + mapping.length;
            Some((start, *at))
        })
    }

    /// Stores the mappings in a snapshot.
    pub(super) fn store_into(self, snapshot: &mut Residency) {
        (snapshot.names, snapshot.mappings) = (self.names, self.mappings);
    }
}

/// Returns the inode of the area that contains an address, from the text of `maps`.
pub(crate) fn area_at(text: &str, address: u64) -> Option<u64> {
    let is_it = |line: &Line<'_>| (line.start..line.end).contains(&address) && line.name.starts_with(AREA);
    text.lines().filter_map(parse).find(is_it).map(|line| line.inode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_libc_is_found_by_its_code() {
        let libc = |start: u64, access: &str, offset: u64, inode: u64| {
            format!("{start:x}-{:x} {access} {offset:08x} fe:00 {inode} /usr/lib/libc.so.6\n", start + 0x1000)
        };
        let second = |lines: &[String]| Mappings::parse(&lines.concat(), &[]).take_second_libc();
        let first = [libc(0x1000, "r--p", 0, 7), libc(0x2000, "r-xp", 0x1000, 7), libc(0x3000, "r-xp", 0x2000, 7)];
        assert_eq!(second(&first), None, "its code in two mappings");
        let read = [&first[..], &[libc(0x9000, "r--p", 0, 7)]].concat();
        assert_eq!(second(&read), None, "a file that is read");
        for inode in [7, 8] {
            let two = [&first[..], &[libc(0x9000, "r-xp", 0x1000, inode)]].concat();
            assert_eq!(second(&two).as_deref(), Some("/usr/lib/libc.so.6"));
        }
    }

    const MAPS: &str = "\
55e58564e000-55e58564f000 r--p 00000000 fe:00 18504                      /usr/bin/a program
55e58564f000-55e585650000 r-xp 00001000 fe:00 18504                      /usr/bin/a program
55e59f827000-55e59f9b6000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000021000 rw-p 00000000 00:00 0 
7f0000021000-7f0004000000 ---p 00000000 00:00 0 
7f3fc79b3000-7f3fc79b4000 ---p 00000000 00:00 0 
7f3fc79b4000-7f3fc79f4000 rw-p 00000000 00:00 0 
7f3fc79f4000-7f3fc7a15000 rw-s 01420000 00:01 2027                       /memfd:heaptape (deleted)
7f3fc8a07000-7f3fc8a0e000 r--p 00000000 fe:00 1990660                    /var/cache/heaptape/libheaptape-b6e3902c.so
7f3fc8af7000-7f3fc8af9000 r-xp 00000000 00:00 0                          [vdso]
7ffca24af000-7ffca24d0000 rw-p 00000000 00:00 0                          [stack]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
not a mapping
";

    /// The library's rings end with a page without access, and what the program maps behind it is no
    /// stack.
    #[test]
    fn pages_behind_the_library_are_no_guards() {
        let kind = |pages: u64| {
            let guard = 0x10_0000 + pages * page_bytes();
            let text = format!(
                "f0000-100000 rw-s 00000000 00:01 2 /memfd:heaptape (deleted)\n100000-{guard:x} ---p 00000000 00:00 0 \n\
                 {guard:x}-{:x} rw-p 00000000 00:00 0 \n",
                guard + page_bytes()
            );
            Mappings::parse(&text, &[]).mappings.last().map(|mapping| mapping.kind)
        };
        assert_eq!((kind(1), kind(2)), (Some(MAPPING_ANONYMOUS), Some(MAPPING_STACK)));
    }

    #[test]
    fn mappings_have_kinds_and_names() {
        let own = Mappings::parse(MAPS, &[(0x7f00_0000_0000, 0x7f00_0002_1000)]);
        assert_eq!(own.mappings[2].kind, MAPPING_HEAPTAPE);
        let found = Mappings::parse(MAPS, &[]);
        assert!(found.has_area(2027) && !found.has_area(18504) && !found.has_area(0));
        let kinds: Vec<u8> = found.mappings.iter().map(|mapping| mapping.kind).collect();
        let expected = [
            MAPPING_FILE,
            MAPPING_BRK,
            MAPPING_ANONYMOUS,
            MAPPING_ANONYMOUS,
            MAPPING_STACK,
            MAPPING_HEAPTAPE,
            MAPPING_HEAPTAPE,
            MAPPING_KERNEL,
            MAPPING_STACK,
        ];
        assert_eq!(kinds, expected);
        assert_eq!(found.ranges().next(), Some((0x55e5_8564_e000, 0x55e5_8565_0000)));
        assert_eq!(found.ranges().last(), Some((0x7ffc_a24a_f000, 0x7ffc_a24d_0000)));
        assert_eq!(area_at(MAPS, 0x7f3f_c7a0_0000), Some(2027));
        assert_eq!(area_at(MAPS, 0x55e5_8564_e000), None, "the file of a program");
        let names: Vec<String> = found.names.iter().map(|name| name.lossy().into_owned()).collect();
        assert_eq!(names[0], "/usr/bin/a program");
        assert_eq!(names.len(), 6);
    }
}

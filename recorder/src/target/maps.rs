//! The mappings of a process, as the kernel lists them in `/proc/PID/maps`.

use crate::os::aside::{self, Owner};
use std::fs::File;
use std::io::{self, Read};

/// Maximum number of bytes of `maps` that are read: 200,000 mappings.
pub const MAX_BYTES: u64 = 20 << 20;

/// Returns the bytes of the `maps` of a process; none if it has ended.
pub fn read(pid: u32) -> Vec<u8> {
    read_of(&pid.to_string()).unwrap_or_default()
}

/// Reads the `maps` of a process by its name in `/proc`.
///
/// # Errors
/// The process has ended, or nobody may look at it.
pub(crate) fn read_of(process: &str) -> io::Result<Vec<u8>> {
    // For each read the kernel looks for its place again, and writes a page at most.
    let mut bytes = Vec::with_capacity(1 << 14);
    File::open(format!("/proc/{process}/maps"))?.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns the `maps` of a copy of a process, with those mappings of the process that a copy does not get
/// (`MADV_DONTFORK`).
pub fn with_missing(copy: &str, original: &str) -> String {
    let mut both: Vec<&str> = Vec::new();
    let lines = |text| str::lines(text).filter_map(|line| Some((parse(line)?, line)));
    let mut own = lines(copy).peekable();
    for (mapping, line) in lines(original) {
        while let Some((_, line)) = own.next_if(|(one, _)| one.end <= mapping.start) {
            both.push(line);
        }
        if own.peek().is_none_or(|(next, _)| mapping.end <= next.start) {
            both.push(line);
        }
    }
    both.extend(own.map(|(_, line)| line));
    both.into_iter().flat_map(|line| [line, "\n"]).collect()
}

/// Reads the `maps` of a process on another thread, since the process may hold the lock of its memory
/// for ever. Returns no bytes if that takes too long.
pub fn read_aside(owner: Owner) -> Vec<u8> {
    aside::call(owner, move || read(owner.pid)).unwrap_or_default()
}

/// Returns whether a name is that of our library, or of memory that it shares with the recorder.
pub fn is_library(name: &str) -> bool {
    name.starts_with("/memfd:heaptape") || name.rsplit('/').next().is_some_and(|file| file.starts_with("libheaptape"))
}

/// A mapping as the kernel lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// First address of the mapping.
    pub start: u64,
    /// First address after the mapping.
    pub end: u64,
    /// Both addresses as the kernel writes them: a name in `map_files`.
    pub range: &'a str,
    /// E.g. `r-xp`.
    access: &'a str,
    /// Offset in the file; 0 if there is none.
    pub offset: u64,
    /// Device of the file, e.g. `fd:01`.
    pub device: &'a str,
    /// Inode of the file; 0 if there is none.
    pub inode: u64,
    /// Path, or the kernel's name in brackets; empty if there is none.
    pub name: &'a str,
}

impl<'a> Line<'a> {
    /// Returns whether the memory may be read or written.
    pub fn has_access(&self) -> bool {
        !self.access.starts_with("---")
    }

    /// Returns whether the memory may be read and written.
    pub fn is_writable(&self) -> bool {
        self.access.starts_with("rw")
    }

    /// Returns whether the memory may be executed.
    pub fn is_executable(&self) -> bool {
        self.access.get(2..3) == Some("x")
    }

    /// Returns whether the memory is code that nobody changes: read and executed, not written.
    pub fn is_code(&self) -> bool {
        self.access == "r-xp"
    }

    /// Returns whether other processes share the memory.
    pub fn is_shared(&self) -> bool {
        self.access.ends_with('s')
    }

    /// Returns the name without the note that the file was removed.
    pub fn path(&self) -> &'a str {
        self.name.strip_suffix(" (deleted)").unwrap_or(self.name)
    }
}

/// Parses a line of `maps`. Returns `None` if it is not a mapping.
pub fn parse(line: &str) -> Option<Line<'_>> {
    let mut fields = line.splitn(6, ' ');
    let (range, access) = (fields.next()?, fields.next()?);
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = range.split_once('-')?;
    let (start, end) = (number(start)?, number(end)?);
    let offset = fields.next().and_then(number).unwrap_or(0);
    let device = fields.next().unwrap_or_default();
    let inode = fields.next().and_then(|inode| inode.parse().ok()).unwrap_or(0);
    let name = fields.next().unwrap_or_default().trim_start();
    (start < end).then_some(Line { start, end, range, access, offset, device, inode, name })
}

/// A mapping with the name that the kernel shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedRange<'a> {
    /// First address of the mapping.
    pub start: u64,
    /// First address after the mapping.
    pub end: u64,
    /// Path, or the kernel's name in brackets; empty if there is none.
    pub name: &'a str,
}

/// Returns the mappings in the text of `maps` in ascending order. Neighbors of one file are one, if
/// the second one goes on in the file where the first one ends: segments of shared memory have one
/// name.
pub(crate) fn named_ranges(text: &str) -> Vec<NamedRange<'_>> {
    let mut ranges: Vec<NamedRange<'_>> = Vec::new();
    let mut next_offset = 0;
    for Line { start, end, name, offset, .. } in text.lines().filter_map(parse) {
        let goes_on = offset == next_offset || !name.starts_with('/');
        match ranges.last_mut() {
            Some(last) if last.end == start && last.name == name && !name.is_empty() && goes_on => last.end = end,
            _ => ranges.push(NamedRange { start, end, name }),
        }
        next_offset = offset.saturating_add(end - start);
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A segment that is attached twice, and a file that is mapped twice.
    #[test]
    fn neighbors_that_begin_anew_are_ranges_of_their_own() {
        let maps = "\
1000-3000 rw-s 00000000 00:01 7                          /SYSV00000000 (deleted)
3000-5000 rw-s 00000000 00:01 7                          /SYSV00000000 (deleted)
5000-6000 r--p 00002000 fe:00 8                          /a
6000-7000 r--p 00002000 fe:00 8                          /a
7000-8000 rw-p 00003000 fe:00 8                          /a
";
        let ranges: Vec<(u64, u64)> = named_ranges(maps).iter().map(|range| (range.start, range.end)).collect();
        assert_eq!(ranges, [(0x1000, 0x3000), (0x3000, 0x5000), (0x5000, 0x6000), (0x6000, 0x8000)]);
    }

    #[test]
    fn what_a_copy_does_not_get_is_that_of_the_process() {
        let copy = "\
2000-3000 rw-p 00000000 00:00 0 
5000-6000 rw-p 00000000 00:00 0 [heap]
";
        // It has allocated meanwhile.
        let process = "\
1000-2000 rw-p 00000000 00:00 0 
2000-3000 rw-p 00000000 00:00 0 
3000-4000 rw-p 00000000 00:00 0 
5000-7000 rw-p 00000000 00:00 0 [heap]
8000-9000 rw-p 00000000 00:00 0 
";
        let both = with_missing(copy, process);
        let ranges: Vec<(u64, u64)> = both.lines().filter_map(parse).map(|line| (line.start, line.end)).collect();
        let expected = [(0x1000, 0x2000), (0x2000, 0x3000), (0x3000, 0x4000), (0x5000, 0x6000), (0x8000, 0x9000)];
        assert_eq!(ranges, expected);
        assert_eq!(with_missing(copy, ""), copy);
    }

    #[test]
    fn neighbors_of_one_file_are_one_range() {
        let maps = "\
1000-2000 r--p 00000000 fe:00 18504                      /usr/bin/a program
2000-3000 r-xp 00001000 fe:00 18504                      /usr/bin/a program
3000-4000 rw-p 00000000 00:00 0 
4000-5000 ---p 00000000 00:00 0 
not a mapping
";
        let range = |start, end, name| NamedRange { start, end, name };
        let expected =
            [range(0x1000, 0x3000, "/usr/bin/a program"), range(0x3000, 0x4000, ""), range(0x4000, 0x5000, "")];
        assert_eq!(named_ranges(maps), expected);
    }
}

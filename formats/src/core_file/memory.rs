//! The memory in a core as the places where blocks, and references to them, may be.

use super::{CoreFile, Segment, Thread};
use crate::glibc_heap::Heap;
use crate::references::{Mapping, Memory as _, StoppedThread};
use std::collections::HashSet;

/// Bits of [`Segment::access`].
const EXECUTE: u8 = 1;
/// Bytes at the start of a module that are searched for its build-id.
const HEAD: usize = 4096;

fn is_own(path: &[u8]) -> bool {
    path.starts_with(b"/memfd:heaptape")
}

fn is_device(path: &[u8]) -> bool {
    path.starts_with(b"/dev/") && !path.starts_with(b"/dev/shm/")
}

impl CoreFile {
    /// Returns the mappings of the process, in ascending order.
    pub fn mappings(&self) -> impl Iterator<Item = Mapping<'_>> {
        self.segments.iter().map(|segment| {
            let file = self.file_at(segment.start);
            let end = segment.start.saturating_add(segment.length);
            let name = match file {
                Some(file) => str::from_utf8(&file.path).unwrap_or("/?"),
                None if segment.start == self.vdso && self.vdso != 0 => "[vdso]",
                None if (segment.start..end).contains(&self.stack_end) => "[stack]",
                None => "",
            };
            Mapping {
                start: segment.start,
                end,
                offset: file.map_or(0, |file| file.offset.saturating_add(segment.start - file.start)),
                has_access: segment.access != 0,
                is_writable: segment.is_writable(),
                is_executable: segment.access & EXECUTE != 0,
                // A core does not say it; of others than these the content is not written.
                is_shared: name.starts_with("/memfd:"),
                name,
            }
        })
    }

    /// Returns its threads, with all registers.
    pub fn stopped_threads(&self) -> Vec<StoppedThread> {
        let stopped = |thread: &Thread| {
            let general = self.machine.general().iter().map(|name| thread.register(name));
            StoppedThread {
                tid: thread.tid,
                stack_pointer: thread.stack_pointer(),
                thread_pointer: thread.register(self.machine.thread_pointer()),
                // A stack may be in a block.
                registers: general.chain([thread.stack_pointer()]).collect(),
            }
        };
        self.threads.iter().map(stopped).collect()
    }

    /// Finds the blocks of glibc's malloc. Returns `None` if there is none.
    pub fn glibc_heap(&self) -> Option<Heap> {
        let pointers: Vec<u64> = self.threads.iter().map(Thread::stack_pointer).collect();
        Heap::in_mappings(self, self.mappings(), &pointers)
    }

    /// Returns what glibc said when it ended the program, e.g. `free(): invalid pointer`, or what an
    /// assertion did. It keeps the message in pages of its own for whoever reads the core: their size in
    /// four bytes, and then the text (`__abort_msg` in sysdeps/posix/libc_fatal.c).
    pub fn abort_message(&self) -> Option<String> {
        const SIGABRT: i32 = 6;
        const PAGE: u64 = 4096;
        /// Most bytes of a message, and most pages that are looked at: those of a gigabyte.
        const MOST: u64 = 16 * PAGE;
        const PAGES: usize = 1 << 18;
        self.signal.filter(|signal| signal.number == SIGABRT)?;
        let is_own = |segment: &&Segment| segment.is_writable() && self.file_at(segment.start).is_none();
        let starts = |segment: &Segment| {
            let Segment { start, stored, .. } = *segment;
            (0..stored / PAGE).map(move |page| (start.saturating_add(page * PAGE), stored - page * PAGE))
        };
        self.segments.iter().filter(is_own).flat_map(starts).take(PAGES).find_map(|(at, left)| {
            let mut head = [0; 8];
            self.read(at, &mut head);
            let size = u64::from(u32::from_le_bytes([head[0], head[1], head[2], head[3]]));
            let is_text = |byte: &u8| matches!(byte, b' '..=b'~' | b'\n' | b'\t' | 0x80..);
            let is_size = size % PAGE == 0 && (PAGE..=MOST.min(left)).contains(&size);
            if !is_size || !head[4..].iter().all(is_text) {
                return None;
            }
            let mut bytes = vec![0; size as usize - 4];
            self.read(at.saturating_add(4), &mut bytes);
            let text = &bytes[..bytes.iter().position(|byte| *byte == 0)?];
            let message = String::from_utf8_lossy(text.strip_suffix(b"\n")?).into_owned();
            text.iter().all(is_text).then_some(message)
        })
    }

    /// Returns what memory of the process the core lacks, as the end of a sentence; `None` if it has
    /// all that the process could write.
    pub fn lacks(&self) -> Option<String> {
        let cut: u64 = self.segments.iter().fold(0, |sum, segment| sum.saturating_add(segment.cut));
        if cut > 0 {
            return Some(format!("the core was cut: {cut} bytes of memory are missing from its end"));
        }
        // What a process never wrote to is not in a core, but it has written to its stack.
        let stacks = self.threads.iter().filter_map(|thread| self.segment(thread.stack_pointer()));
        let is_without = |stack: &Segment| stack.stored == 0;
        if self.threads.is_empty() || stacks.clone().count() == 0 {
            return Some("the core has no stack of any thread".into());
        }
        let without = stacks.filter(|stack| is_without(stack)).count();
        if without > 0 {
            return Some(format!("the stacks of {without} threads are not in the core (coredump_filter, core(5))"));
        }
        let counted = |count| match count {
            1 => ("is", "1 file".to_owned()),
            more => ("are", format!("{more} files")),
        };
        match (self.missing_files(), self.unlisted_files()) {
            (0, 0) => None,
            (0, unlisted) => {
                let (is_or_are, files) = counted(unlisted);
                Some(format!(
                    "{files} that it had mapped, perhaps to be written, {is_or_are} not in the core, as gcore writes it"
                ))
            }
            (missing, _) => {
                let (is_or_are, files) = counted(missing);
                let why = "(coredump_filter, core(5))";
                Some(format!("{files} that it had mapped to be written {is_or_are} not in the core {why}"))
            }
        }
    }

    /// Returns how many files were mapped of which the core has no segment. The kernel writes one for each
    /// mapping, gcore only those with content: none of a file that others may share, and none of one that
    /// was read. A module has at least its header, and what a system brings is read.
    fn unlisted_files(&self) -> usize {
        const BROUGHT: [&[u8]; 4] = [b"/usr/", b"/lib", b"/etc/", b"/var/cache/"];
        let listed: HashSet<&[u8]> =
            self.segments.iter().filter_map(|segment| self.file_at(segment.start)).map(|file| &file.path[..]).collect();
        let is_brought = |path: &[u8]| BROUGHT.iter().any(|folder| path.starts_with(folder));
        let paths: HashSet<&[u8]> = self.files.iter().map(|file| &file.path[..]).collect();
        paths.difference(&listed).filter(|path| !is_own(path) && !is_device(path) && !is_brought(path)).count()
    }

    /// Returns how many files that are no modules were mapped to be written, and are not in the core: what
    /// a program writes to a file that others may share is none of its own memory.
    fn missing_files(&self) -> usize {
        let is_code = |segment: &&Segment| segment.access & EXECUTE != 0;
        let paths = |segments: &mut dyn Iterator<Item = &Segment>| {
            segments.filter_map(|segment| self.file_at(segment.start)).map(|file| &file.path[..]).collect()
        };
        let modules: HashSet<&[u8]> = paths(&mut self.segments.iter().filter(is_code));
        let is_missing = |segment: &&Segment| segment.is_writable() && segment.stored == 0;
        let missing: HashSet<&[u8]> = paths(&mut self.segments.iter().filter(is_missing));
        missing.difference(&modules).filter(|path| !is_own(path) && !is_device(path)).count()
    }

    /// Returns the build-id of the module whose ELF header is at an address; empty if it has none or
    /// the core does not have its first page.
    pub fn build_id(&self, at: u64) -> Vec<u8> {
        const NOTE: u64 = 4;
        const BUILD_ID: u64 = 3;
        let mut page = [0; HEAD];
        self.read(at, &mut page);
        let number = |at: usize, bytes: usize| {
            let found = page.get(at..at.saturating_add(bytes)).unwrap_or_default();
            found.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
        };
        if !page.starts_with(b"\x7fELF\x02") {
            return Vec::new();
        }
        for header in 0..number(56, 2).min(64) as usize {
            let header = (number(32, 8) as usize).saturating_add(56 * header);
            if number(header, 4) != NOTE {
                continue;
            }
            let start = number(header.saturating_add(8), 8) as usize;
            let end = start.saturating_add(number(header.saturating_add(32), 8) as usize).min(HEAD);
            let mut note = start;
            while note.saturating_add(12) < end {
                let (name, content) = (number(note, 4) as usize, number(note + 4, 4) as usize);
                let from = note.saturating_add(12).saturating_add(name.next_multiple_of(4));
                if number(note + 8, 4) == BUILD_ID && page[note + 12..].starts_with(b"GNU\0") {
                    return page.get(from..from.saturating_add(content.min(64))).unwrap_or_default().to_vec();
                }
                note = from.saturating_add(content.next_multiple_of(4));
            }
        }
        Vec::new()
    }
}

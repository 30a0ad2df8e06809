//! Core files of Linux (core(5)): what a process had in memory and in registers when it crashed, or
//! when `gcore` read it. Those of x86-64 are read.
//!
//! A core is an ELF file: its segments are the memory, and its notes say the rest. Only what is asked
//! for is read from the file.

mod layout;
mod memory;

use crate::prefix::{Match, begins_with};
use crate::references::Memory;
use crate::{Cursor, Error, Format, Kind, Result, regular};
use layout::{
    AUXILIARY, FILE, HEADER_BYTES, MACHINE_X86_64, MAX_FILES, MAX_NOTES, MAX_SEGMENTS, MAX_THREADS, NOTE_SEGMENT,
    PROCESS, PROGRAM_NAME, REGISTERS_AT, SEGMENT_BYTES, SIGNAL, STATUS, TYPE_CORE, VDSO,
};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Names of the general registers, in the order of [`Thread::registers`].
pub const REGISTER_NAMES: [&str; 27] = [
    "r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi", "orig_rax",
    "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs",
];

/// A thread as it was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Thread {
    /// Kernel's id of the thread.
    pub tid: u32,
    /// Its general registers, in the order of [`REGISTER_NAMES`].
    pub registers: [u64; 27],
}

impl Thread {
    /// Returns a register by its name; 0 if there is none of that name.
    pub fn register(&self, name: &str) -> u64 {
        let found = REGISTER_NAMES.iter().position(|known| *known == name);
        found.and_then(|at| self.registers.get(at)).copied().unwrap_or_default()
    }
}

/// The signal that ended the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    /// Its number.
    pub number: i32,
    /// Why it was sent: one of the `si_code` numbers of sigaction(2).
    pub code: i32,
    /// The address that could not be used, where the signal is about one.
    pub address: Option<u64>,
}

/// A range of memory that is the content of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MappedFile {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// Where it begins in the file, in bytes.
    pub offset: u64,
    /// Path of the file.
    pub path: Vec<u8>,
}

/// A range of memory of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// First address.
    pub start: u64,
    /// Number of bytes.
    pub length: u64,
    /// Where it is in the core file.
    pub offset: u64,
    /// Number of its bytes in the core file: the rest was not written.
    pub stored: u64,
    /// Number of bytes that the core file lost, because it was cut.
    pub cut: u64,
    /// Whether the process could read, write and execute it: the bits 4, 2 and 1.
    pub access: u8,
}

/// A core file.
#[derive(Debug)]
pub struct CoreFile {
    file: File,
    /// Process id; 0 if the file does not say.
    pub pid: u32,
    /// Name of the program, up to 15 bytes.
    pub name: Vec<u8>,
    /// Its command line, up to 80 bytes.
    pub arguments: Vec<u8>,
    /// Address of the code that the kernel gives to every process; 0 if the file does not say.
    pub vdso: u64,
    /// An address at the end of the first thread's stack.
    stack_end: u64,
    /// Its threads, the one that crashed first.
    pub threads: Vec<Thread>,
    /// Why it ended; `None` for the core of a process that ran on.
    pub signal: Option<Signal>,
    /// Which files were mapped where.
    pub files: Vec<MappedFile>,
    /// Its memory, in ascending order.
    pub segments: Vec<Segment>,
}

fn error(offset: u64, field: &'static str, kind: Kind) -> Error {
    Error { format: Format::Core, offset, field, kind }
}

fn bytes_at(file: &File, offset: u64, count: usize, field: &'static str) -> Result<Vec<u8>> {
    let mut bytes = vec![0; count];
    file.read_exact_at(&mut bytes, offset).map_err(|why| match why.kind() {
        io::ErrorKind::UnexpectedEof => error(offset, field, Kind::Truncated),
        _ => error(offset, field, Kind::Text(why.to_string())),
    })?;
    Ok(bytes)
}

/// Returns the number of little-endian bytes at an offset; 0 where there are none.
fn number<const N: usize>(bytes: &[u8], at: usize) -> u64 {
    let found = at.checked_add(N).and_then(|end| bytes.get(at..end)).unwrap_or_default();
    found.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// Judges a prefix of a file.
pub(crate) fn sniff(bytes: &[u8]) -> Match {
    const ELF: &[u8] = b"\x7fELF\x02\x01";
    match begins_with(bytes, ELF) {
        Match::Yes if bytes.len() < 18 => Match::NeedMore,
        Match::Yes if number::<2>(bytes, 16) != TYPE_CORE => Match::No,
        found => found,
    }
}

impl CoreFile {
    /// Opens a core file, and reads all but the memory.
    ///
    /// # Errors
    /// The file cannot be read, is none of x86-64, or was cut before its notes.
    pub fn open(path: &Path) -> Result<CoreFile> {
        let file = regular::open(path).map_err(|why| error(0, "file", Kind::Text(why.to_string())))?;
        let length = file.metadata().map_or(0, |about| about.len());
        let header = bytes_at(&file, 0, HEADER_BYTES, "header")?;
        // 64 bits, little-endian.
        if !header.starts_with(b"\x7fELF\x02\x01") || number::<2>(&header, 16) != TYPE_CORE {
            return Err(error(0, "header", Kind::Magic));
        }
        let machine = number::<2>(&header, 18);
        if machine != MACHINE_X86_64 {
            return Err(error(18, "machine", Kind::Bad(machine, "cores of x86-64 (62) are read")));
        }
        let (at, mut count) = (number::<8>(&header, 32), number::<2>(&header, 56));
        if count == 0xffff {
            // There are more than fit: the first section has the number, see elf(5).
            let section = bytes_at(&file, number::<8>(&header, 40), 64, "first section")?;
            count = number::<4>(&section, 44);
        }
        if count > MAX_SEGMENTS || count * SEGMENT_BYTES as u64 > length {
            return Err(error(56, "number of segments", Kind::Bad(count, "more than the file has")));
        }
        let table = bytes_at(&file, at, count as usize * SEGMENT_BYTES, "segments")?;
        let mut core = CoreFile {
            file,
            pid: 0,
            name: Vec::new(),
            arguments: Vec::new(),
            vdso: 0,
            stack_end: 0,
            threads: Vec::new(),
            signal: None,
            files: Vec::new(),
            segments: Vec::new(),
        };
        for entry in table.chunks_exact(SEGMENT_BYTES) {
            let (offset, start) = (number::<8>(entry, 8), number::<8>(entry, 16));
            let (stored, size) = (number::<8>(entry, 32), number::<8>(entry, 40));
            match number::<4>(entry, 0) {
                1 => {
                    let written = stored.min(size);
                    let stored = written.min(length.saturating_sub(offset));
                    let (cut, access) = (written - stored, number::<4>(entry, 4) as u8 & 7);
                    core.segments.push(Segment { start, length: size, offset, stored, cut, access });
                }
                NOTE_SEGMENT if stored <= MAX_NOTES => {
                    let notes = bytes_at(&core.file, offset, stored as usize, "notes")?;
                    core.add_notes(&notes, offset)?;
                }
                _ => {}
            }
        }
        core.segments.sort_by_key(|segment| segment.start);
        core.files.sort_by_key(|file| file.start);
        Ok(core)
    }

    fn add_notes(&mut self, notes: &[u8], base: u64) -> Result<()> {
        let mut rest = Cursor::at_offset(Format::Core, notes, base);
        while rest.remaining() >= 12 {
            let head = rest.rest();
            let (name, content) = (number::<4>(head, 0) as usize, number::<4>(head, 4) as usize);
            let kind = number::<4>(head, 8);
            rest.skip(12 + name.next_multiple_of(4));
            let Some(bytes) = rest.rest().get(..content) else {
                return Err(rest.error("note", Kind::Truncated));
            };
            match kind {
                STATUS if self.threads.len() < MAX_THREADS => self.threads.push(thread(bytes)),
                PROCESS => {
                    self.pid = number::<4>(bytes, 24) as u32;
                    let name = bytes.get(40..56).unwrap_or_default();
                    let text = |bytes: &[u8]| bytes.split(|byte| *byte == 0).next().unwrap_or_default().to_vec();
                    self.name = text(name);
                    self.arguments = text(bytes.get(56..136).unwrap_or_default());
                }
                SIGNAL if self.signal.is_none() => self.signal = signal(bytes),
                FILE => self.files = files(bytes),
                AUXILIARY => (self.vdso, self.stack_end) = (auxiliary(bytes, VDSO), auxiliary(bytes, PROGRAM_NAME)),
                _ => {}
            }
            rest.skip(content.next_multiple_of(4));
        }
        Ok(())
    }

    /// Returns the segment that an address is in.
    pub fn segment(&self, address: u64) -> Option<&Segment> {
        let after = self.segments.partition_point(|segment| segment.start <= address);
        self.segments[..after].last().filter(|segment| address - segment.start < segment.length)
    }

    /// Returns the file whose content an address is in.
    pub fn file_at(&self, address: u64) -> Option<&MappedFile> {
        let after = self.files.partition_point(|file| file.start <= address);
        self.files[..after].last().filter(|file| address < file.end)
    }

    /// Returns the word at an address, or `None` if the core does not have it.
    pub fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        (self.read(address, &mut bytes) == 8).then(|| u64::from_le_bytes(bytes))
    }
}

impl Memory for CoreFile {
    fn read(&self, at: u64, out: &mut [u8]) -> u64 {
        out.fill(0);
        let end = at.saturating_add(out.len() as u64);
        let first = self.segments.partition_point(|segment| segment.start <= at).saturating_sub(1);
        let mut read = 0;
        for segment in self.segments[first..].iter().take_while(|segment| segment.start < end) {
            let from = at.max(segment.start);
            let to = end.min(segment.start.saturating_add(segment.stored));
            if from >= to {
                continue;
            }
            let place = (from - at) as usize..(to - at) as usize;
            let offset = segment.offset.saturating_add(from - segment.start);
            if let Some(bytes) = out.get_mut(place)
                && self.file.read_exact_at(bytes, offset).is_ok()
            {
                read += to - from;
            }
        }
        read.min(out.len() as u64)
    }
}

fn thread(status: &[u8]) -> Thread {
    let mut registers = [0; 27];
    for (number_of, register) in registers.iter_mut().enumerate() {
        *register = number::<8>(status, REGISTERS_AT + 8 * number_of);
    }
    Thread { tid: number::<4>(status, 32) as u32, registers }
}

fn signal(info: &[u8]) -> Option<Signal> {
    /// SIGILL, SIGTRAP, SIGBUS, SIGFPE and SIGSEGV are about an address, if the kernel sent them.
    const WITH_ADDRESS: [i32; 5] = [4, 5, 7, 8, 11];
    let (signal, code) = (number::<4>(info, 0) as i32, number::<4>(info, 8) as i32);
    // A general protection fault has no address: the one that was used is no address at all.
    let has_address = WITH_ADDRESS.contains(&signal) && (1..0x80).contains(&code);
    (signal != 0).then(|| Signal { number: signal, code, address: has_address.then(|| number::<8>(info, 16)) })
}

/// Returns the value of a key of the auxiliary vector; 0 if there is none.
fn auxiliary(pairs: &[u8], key: u64) -> u64 {
    let pair = pairs.chunks_exact(16).find(|pair| number::<8>(pair, 0) == key);
    pair.map_or(0, |pair| number::<8>(pair, 8))
}

fn files(list: &[u8]) -> Vec<MappedFile> {
    let count = (number::<8>(list, 0) as usize).min(MAX_FILES).min(list.len() / 24);
    let page = number::<8>(list, 8);
    let names = list.get(16 + 24 * count..).unwrap_or_default();
    let rows = list.get(16..16 + 24 * count).unwrap_or_default().chunks_exact(24);
    rows.zip(names.split(|byte| *byte == 0))
        .map(|(row, path)| {
            let [start, end, pages] = [0, 8, 16].map(|at| number::<8>(row, at));
            MappedFile { start, end, offset: pages.saturating_mul(page), path: path.to_vec() }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(out: &mut Vec<u8>, at: usize, bytes: &[u8]) {
        out.resize(out.len().max(at + bytes.len()), 0);
        out[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn note(kind: u32, content: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        for word in [5, content.len() as u32, kind] {
            out.extend(word.to_le_bytes());
        }
        out.extend(b"CORE\0\0\0\0");
        out.extend(content);
        out.resize(out.len().next_multiple_of(4), 0);
        out
    }

    /// A core with one thread, a segment of 16 bytes at 0x1000, and a file.
    fn sample() -> Vec<u8> {
        let (mut status, mut about, mut info) = (vec![0; 336], vec![0; 136], vec![0; 128]);
        put(&mut status, 32, &77u32.to_le_bytes());
        put(&mut status, 112 + 8 * 5, &0x1234u64.to_le_bytes());
        put(&mut about, 24, &70u32.to_le_bytes());
        put(&mut about, 40, b"crashes\0");
        put(&mut info, 0, &11i32.to_le_bytes());
        put(&mut info, 8, &1i32.to_le_bytes());
        put(&mut info, 16, &0xbeefu64.to_le_bytes());
        let mut list = Vec::new();
        for word in [1u64, 4096, 0x40_0000, 0x40_1000, 0] {
            list.extend(word.to_le_bytes());
        }
        list.extend(b"/bin/crashes\0");
        let notes = [note(1, &status), note(3, &about), note(0x5349_4749, &info), note(0x4649_4c45, &list)].concat();
        let mut out = Vec::new();
        put(&mut out, 0, b"\x7fELF\x02\x01\x01");
        put(&mut out, 16, &4u16.to_le_bytes());
        put(&mut out, 18, &62u16.to_le_bytes());
        put(&mut out, 32, &64u64.to_le_bytes());
        put(&mut out, 56, &2u16.to_le_bytes());
        put(&mut out, 64, &4u32.to_le_bytes());
        put(&mut out, 64 + 8, &192u64.to_le_bytes());
        put(&mut out, 64 + 32, &(notes.len() as u64).to_le_bytes());
        put(&mut out, 120, &1u32.to_le_bytes());
        put(&mut out, 120 + 8, &176u64.to_le_bytes());
        put(&mut out, 120 + 16, &0x1000u64.to_le_bytes());
        put(&mut out, 120 + 32, &16u64.to_le_bytes());
        put(&mut out, 120 + 40, &4096u64.to_le_bytes());
        put(&mut out, 176, b"01234567abcdefgh");
        put(&mut out, 192, &notes);
        out
    }

    fn opened(bytes: &[u8]) -> Result<CoreFile> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), bytes).expect("written");
        CoreFile::open(file.path())
    }

    #[test]
    fn threads_signal_files_and_memory_are_read() {
        let core = opened(&sample()).expect("a core");
        assert_eq!((core.pid, &*core.name, core.threads.len()), (70, &b"crashes"[..], 1));
        assert_eq!((core.threads[0].tid, core.threads[0].register("rbx")), (77, 0x1234));
        assert_eq!(core.signal, Some(Signal { number: 11, code: 1, address: Some(0xbeef) }));
        assert_eq!(core.file_at(0x40_0fff).map(|file| &*file.path), Some(&b"/bin/crashes"[..]));
        assert_eq!(core.file_at(0x40_1000), None);
        assert_eq!(core.word(0x1008), Some(u64::from_le_bytes(*b"abcdefgh")));
        // Mapped, and not in the file.
        assert!(core.word(0x1009).is_none() && core.segment(0x1fff).is_some() && core.segment(0x2000).is_none());
    }

    #[test]
    fn cut_and_changed_files_are_errors_or_less() {
        let bytes = sample();
        for length in 0..bytes.len() {
            let _ = opened(&bytes[..length]).map(|core| core.word(0x1000));
        }
        assert!(opened(&bytes[..100]).is_err());
        for at in 0..250 {
            for value in [0, 0x7f, 0xff] {
                let mut changed = bytes.clone();
                changed[at] = value;
                let _ = opened(&changed).map(|core| (core.word(0x1000), core.file_at(0x40_0000).is_some()));
            }
        }
        assert!(opened(b"").is_err() && opened(b"\x7fELF").is_err());
    }
}

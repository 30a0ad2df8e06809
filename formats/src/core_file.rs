//! Core files of Linux (core(5)): what a process had in memory and in registers when it crashed, or
//! when `gcore` read it. Those of x86-64 and aarch64 are read.
//!
//! A core is an ELF file: its segments are the memory, and its notes say the rest. Only what is asked
//! for is read from the file.

mod layout;
mod machine;
mod memory;
mod notes;

use crate::prefix::{Match, begins_with};
use crate::references::Memory;
use crate::{Error, Format, Kind, Result, regular};
use layout::{HEADER_BYTES, MAX_NOTES, MAX_SEGMENTS, NOTE_SEGMENT, OTHER_MACHINES, SEGMENT_BYTES, TYPE_CORE};
pub use machine::Machine;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::UNIX_EPOCH;

/// Size of a page where a core does not say it.
const USUAL_PAGE: u64 = 4096;

/// A thread as it was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Thread {
    /// Kernel's id of the thread.
    pub tid: u32,
    /// What it ran on.
    pub machine: Machine,
    /// Its general registers, in the order of [`Machine::registers`].
    pub registers: Vec<u64>,
}

impl Thread {
    /// Returns a register by its name; 0 if there is none of that name.
    pub fn register(&self, name: &str) -> u64 {
        let found = self.machine.registers().iter().position(|known| *known == name);
        found.and_then(|at| self.registers.get(at)).copied().unwrap_or_default()
    }

    /// Returns the address of its next instruction.
    pub fn program_counter(&self) -> u64 {
        self.register(self.machine.program_counter())
    }

    /// Returns the end of its stack.
    pub fn stack_pointer(&self) -> u64 {
        self.register(self.machine.stack_pointer())
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

impl Signal {
    /// Returns whether it ends a process with a core (signal(7)). A core of `gcore` has another one, the
    /// SIGSTOP by which gdb held the process, or none.
    pub const fn is_crash(self) -> bool {
        // SIGQUIT, SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGXCPU, SIGXFSZ, SIGSYS.
        matches!(self.number, 3..=8 | 11 | 24 | 25 | 31)
    }
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

impl Segment {
    /// Returns whether the process could write it.
    pub const fn is_writable(&self) -> bool {
        self.access & 2 != 0
    }
}

/// A core file.
#[derive(Debug)]
pub struct CoreFile {
    file: File,
    /// What the process ran on.
    pub machine: Machine,
    /// Process id; 0 if the file does not say.
    pub pid: u32,
    /// Name of the program, up to 15 bytes.
    pub name: Vec<u8>,
    /// Its command line, up to 80 bytes.
    pub arguments: Vec<u8>,
    /// Size of a page in bytes.
    pub page: u64,
    /// Address of the code that the kernel gives to every process; 0 if the file does not say.
    pub vdso: u64,
    /// An address at the end of the first thread's stack.
    stack_end: u64,
    /// Its threads, the one that crashed first.
    pub threads: Vec<Thread>,
    /// Why it ended, or what it last stopped for.
    pub signal: Option<Signal>,
    /// When the file was last written, in nanoseconds since 1970; 0 if that is not known.
    pub written_unix_ns: u64,
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
    // Those of other machines are recognized too: the reader says whose they are.
    match begins_with(bytes, b"\x7fELF") {
        Match::Yes if bytes.len() < 18 => Match::NeedMore,
        Match::Yes if ![TYPE_CORE, TYPE_CORE << 8].contains(&number::<2>(bytes, 16)) => Match::No,
        found => found,
    }
}

/// Returns the machine of a core that can be read.
fn machine_of(header: &[u8]) -> Result<Machine> {
    let is_big = header.get(5) == Some(&2);
    let number_at = |at: usize| match is_big {
        true => number::<2>(header, at).swap_bytes() >> 48,
        false => number::<2>(header, at),
    };
    if !header.starts_with(b"\x7fELF") || number_at(16) != TYPE_CORE {
        return Err(error(0, "header", Kind::Magic));
    }
    let of = |what: &str| Kind::Text(format!("it is the core of {what}: only those of x86-64 and aarch64 can be read"));
    let machine = number_at(18);
    if let Some((_, name)) = OTHER_MACHINES.iter().find(|(other, _)| *other == machine) {
        return Err(error(18, "machine", of(&format!("a process of {name}"))));
    }
    if header.get(4) == Some(&1) {
        return Err(error(4, "class", of("a 32-bit process")));
    }
    let known = Machine::of(machine).filter(|_| !is_big);
    let Some(known) = known else {
        return Err(error(18, "machine", of(&format!("a process of another machine ({machine}, elf(5))"))));
    };
    match header.get(4..6) {
        Some([2, 1]) => Ok(known),
        _ => Err(error(4, "class", Kind::Magic)),
    }
}

impl CoreFile {
    /// Opens a core file, and reads all but the memory.
    ///
    /// # Errors
    /// The file cannot be read, is of another machine, or was cut before its notes.
    pub fn open(path: &Path) -> Result<CoreFile> {
        let file = regular::open(path).map_err(|why| error(0, "file", Kind::Text(why.to_string())))?;
        let about = file.metadata().ok();
        let length = about.as_ref().map_or(0, std::fs::Metadata::len);
        let written = about.and_then(|about| about.modified().ok()?.duration_since(UNIX_EPOCH).ok());
        let header = bytes_at(&file, 0, HEADER_BYTES, "header")?;
        let machine = machine_of(&header)?;
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
            machine,
            pid: 0,
            name: Vec::new(),
            arguments: Vec::new(),
            page: USUAL_PAGE,
            vdso: 0,
            stack_end: 0,
            threads: Vec::new(),
            signal: None,
            written_unix_ns: written.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)),
            files: Vec::new(),
            segments: Vec::new(),
        };
        // Any number of segments may be about the same bytes.
        let mut notes_left = MAX_NOTES;
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
                NOTE_SEGMENT if stored <= notes_left => {
                    notes_left -= stored;
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

    fn next_there(&self, at: u64) -> Option<u64> {
        let first = self.segments.partition_point(|segment| segment.start <= at).saturating_sub(1);
        let rest = self.segments[first..].iter();
        let mut there = rest.filter(|segment| segment.start.saturating_add(segment.stored) > at);
        there.next().map(|segment| segment.start.max(at))
    }

    fn written(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        // What is as in the file is not in the core.
        let first = self.segments.partition_point(|segment| segment.start <= start).saturating_sub(1);
        let within = self.segments[first..].iter().take_while(|segment| segment.start < end);
        let there = within.map(|one| (one.start.max(start), one.start.saturating_add(one.stored).min(end)));
        there.filter(|(from, to)| from < to).collect()
    }
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
    fn thread_pointers_of_aarch64_have_notes_of_their_own() {
        let mut bytes = sample();
        put(&mut bytes, 18, &183u16.to_le_bytes());
        let mut more = note(1, &[vec![0; 112], (100..134u64).flat_map(u64::to_le_bytes).collect()].concat());
        more.extend(note(0x401, &[0xaau64.to_le_bytes(), 0xbbu64.to_le_bytes()].concat()));
        let notes = bytes.len() + more.len() - 192;
        bytes.extend(more);
        put(&mut bytes, 64 + 32, &(notes as u64).to_le_bytes());
        let core = opened(&bytes).expect("a core");
        let [first, second] = &core.threads[..] else { panic!("{:?}", core.threads) };
        assert_eq!((first.tid, first.register("x5"), first.register("tpidr")), (77, 0x1234, 0));
        assert_eq!((second.register("x0"), second.stack_pointer(), second.program_counter()), (100, 131, 132));
        assert_eq!((second.register("tpidr"), second.register("rsp")), (0xaa, 0));
        assert_eq!(core.stopped_threads()[1].thread_pointer, 0xaa);
        read_all(&core);
    }

    /// Reads all that a core may say.
    fn read_all(core: &CoreFile) {
        let mappings = core.mappings().count();
        assert_eq!(mappings, core.segments.len());
        assert_eq!(core.stopped_threads().len(), core.threads.len());
        let _ = (core.glibc_heap(), core.lacks(), core.word(0x1000), core.word(u64::MAX - 3), core.segment(0x1fff));
        core.segments.iter().take(8).for_each(|segment| drop(core.build_id(segment.start)));
    }

    #[test]
    fn numbers_at_the_edge_in_any_place_are_read() {
        let bytes = sample();
        for at in 0..bytes.len() - 8 {
            for value in [0, 1, 0xffff, 0xffff_ffff, i64::MAX as u64, u64::MAX - 7, u64::MAX] {
                for size in [2, 4, 8] {
                    let mut changed = bytes.clone();
                    changed[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
                    let _ = opened(&changed).map(|core| read_all(&core));
                }
            }
        }
    }

    #[test]
    fn the_same_notes_are_not_read_for_each_of_many_segments() {
        let mut bytes = sample();
        bytes.resize(1 << 20, 0);
        let mut note = Vec::new();
        for word in [4u64, 64, 0, 0, 1 << 19, 1 << 19, 0] {
            note.extend(word.to_le_bytes());
        }
        let count = 10_000u16;
        put(&mut bytes, 1 << 20, &note.repeat(count.into()));
        put(&mut bytes, 32, &(1u64 << 20).to_le_bytes());
        put(&mut bytes, 56, &count.to_le_bytes());
        // Each has the name and the bytes of whatever is there; only the first 512 are looked at.
        if let Ok(core) = opened(&bytes) {
            assert!(core.threads.len() <= 512, "{}", core.threads.len());
        }
    }

    #[test]
    fn missing_files_are_counted_once_and_many_in_one_pass() {
        let mut core = opened(&sample()).expect("a core");
        core.threads[0].registers[19] = 0x1008;
        core.files.clear();
        assert_eq!(core.lacks(), None);
        let segment = |start, access| Segment { start, length: 4096, offset: 0, stored: 0, cut: 0, access };
        let (of_file, of_module) = (6, 5);
        let add = |core: &mut CoreFile, number: u64, first| {
            let start = number << 20;
            let path = format!("/shop/{number}").into_bytes();
            core.files.push(MappedFile { start, end: start + 8192, offset: 0, path });
            core.segments.extend([segment(start, first), segment(start + 4096, of_file)]);
        };
        add(&mut core, 1, of_module);
        assert_eq!(core.lacks(), None, "data of a module");
        // Of these gcore writes nothing.
        for (path, lacks) in [("/usr/lib/locale/C", None), ("/dev/dri/card0", None), ("/shop/shared", Some("1 file"))] {
            let path = path.as_bytes().to_vec();
            let start = 1 << 40;
            core.files.push(MappedFile { start, end: start + 4096, offset: 0, path });
            let found = core.lacks();
            assert_eq!(found.as_deref().map(|found| &found[..6]), lacks, "{found:?}");
            assert!(found.is_none_or(|found| found.contains("perhaps to be written")));
        }
        core.files.retain(|file| file.start != 1 << 40);
        add(&mut core, 2, of_file);
        let lacks = core.lacks().expect("a file");
        assert!(lacks.starts_with("1 file that it had mapped to be written is not in the core"), "{lacks}");
        let many = if cfg!(miri) { 100 } else { 100_000 };
        for number in 3..many + 2 {
            add(&mut core, number, of_file);
        }
        let lacks = core.lacks().expect("files");
        assert!(
            lacks.starts_with(&format!("{many} files that it had mapped to be written are not in the core")),
            "{lacks}"
        );
    }

    #[test]
    fn cut_and_changed_files_are_errors_or_less() {
        let bytes = sample();
        for length in 0..bytes.len() {
            let _ = opened(&bytes[..length]).map(|core| read_all(&core));
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

    #[test]
    fn cores_of_other_machines_are_refused_by_name() {
        // Class, order of bytes, machine.
        for (class, order, machine, expected) in [
            (2, 1, 243u16, "a process of RISC-V"),
            (2, 2, 22, "a process of s390x"),
            (1, 1, 3, "a process of 32-bit x86"),
            (1, 1, 62, "a 32-bit process"),
            (2, 1, 258, "another machine (258, elf(5))"),
        ] {
            let mut bytes = sample();
            let in_order = |number: u16| if order == 2 { number.to_be_bytes() } else { number.to_le_bytes() };
            bytes[4..6].copy_from_slice(&[class, order]);
            bytes[16..18].copy_from_slice(&in_order(4));
            bytes[18..20].copy_from_slice(&in_order(machine));
            let why = opened(&bytes).expect_err("another machine").to_string();
            assert!(why.contains(expected) && why.contains("only those of x86-64 and aarch64 can be read"), "{why}");
            assert!(matches!(sniff(&bytes), Match::Yes), "it is a core all the same");
        }
    }

    #[test]
    fn regions_without_bytes_are_skipped() {
        let mut bytes = sample();
        // The segment claims much memory; the file has as much of it as before.
        put(&mut bytes, 120 + 40, &(1u64 << 46).to_le_bytes());
        let core = opened(&bytes).expect("a core");
        assert_eq!(core.segments[0].length, 1 << 46);
        assert_eq!((core.next_there(0), core.next_there(0x1005)), (Some(0x1000), Some(0x1005)));
        assert_eq!((core.next_there(0x1000 + core.segments[0].stored), core.next_there(1 << 45)), (None, None));
    }

    #[test]
    fn a_signal_that_leaves_no_core_is_no_crash() {
        let is_crash = |number| Signal { number, code: 0, address: None }.is_crash();
        assert!([3, 4, 5, 6, 7, 8, 11, 24, 25, 31].into_iter().all(is_crash));
        assert!(![0, 2, 9, 15, 19].into_iter().any(is_crash));
    }
}

//! The file of a program that is about to be started: whether this library can be loaded into it.

use crate::sys;
use core::ffi::CStr;
use heaptape_wire::hello::Why;

/// A program's file: its head, and whether it gives other rights.
pub struct File {
    head: [u8; HEAD],
    length: usize,
    is_privileged: bool,
}

/// Enough for the program headers of any linker's output, and for the line of a script.
const HEAD: usize = 1024;

impl File {
    /// Looks at a program; `None` when there is no such program.
    pub fn of(path: &CStr) -> Option<File> {
        let status = sys::status(path)?;
        let is_program = status.st_mode & libc::S_IFMT == libc::S_IFREG && status.st_mode & 0o111 != 0;
        is_program.then_some(())?;
        let (user, group) = sys::effective_ids();
        let changes = |bit: u32, own: u32, other: u32| status.st_mode & bit != 0 && own != other;
        let mut file = File { head: [0; HEAD], length: 0, is_privileged: false };
        file.is_privileged = changes(libc::S_ISUID, user, status.st_uid)
            || changes(libc::S_ISGID, group, status.st_gid)
            || (user != 0 && sys::has_capabilities(path));
        // One that may be run but not read shows nothing.
        if let Some(descriptor) = sys::open(path) {
            file.length = sys::read(descriptor, &mut file.head).min(HEAD);
            sys::close(descriptor);
        }
        Some(file)
    }

    fn head(&self) -> &[u8] {
        &self.head[..self.length]
    }

    /// Why the program will not be recorded, if so.
    pub fn why(&self) -> Option<Why> {
        let Some(line) = self.head().strip_prefix(b"#!") else { return self.why_binary() };
        let line = line.split(|byte| *byte == b'\n').next()?.trim_ascii_start();
        let name = line.split(|byte| *byte == b' ' || *byte == b'\t').next()?;
        let mut path = [0; HEAD];
        path.get_mut(..name.len())?.copy_from_slice(name);
        File::of(CStr::from_bytes_until_nul(&path).ok()?)?.why_binary()
    }

    fn why_binary(&self) -> Option<Why> {
        const PT_INTERP: u64 = 3;
        if self.is_privileged {
            return Some(Why::Rights);
        }
        let head = self.head();
        if !head.starts_with(b"\x7fELF") {
            return None;
        }
        if head.get(4) != Some(&2) {
            return Some(Why::Narrow);
        }
        let number = |at: usize, size: usize| {
            let bytes = head.get(at..at.checked_add(size)?)?;
            Some(bytes.iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte)))
        };
        let (table, size, count) = (number(32, 8)? as usize, number(54, 2)? as usize, number(56, 2)? as usize);
        for row in 0..count {
            // A table that lies further back is not judged.
            if number(table.checked_add(row * size)?, 4)? == PT_INTERP {
                return None;
            }
        }
        Some(Why::Static)
    }
}

//! Inspects the file of a program that is about to start: whether this library can be loaded into
//! it.

use super::sanitizer;
use crate::elf::header;
use crate::sys;
use core::ffi::CStr;
use heaptape_wire::hello::UntracedReason;

/// The start of a program's file, and its properties.
pub(crate) struct File {
    head: [u8; HEAD],
    length: usize,
    is_privileged: bool,
    has_sanitizer: bool,
}

/// Number of bytes that are read, which is enough for the program headers of any linker's output,
/// and for the first line of a script.
const HEAD: usize = 1024;

impl File {
    /// Inspects a program. Returns `None` if there is no such program.
    pub(crate) fn of(path: &CStr) -> Option<File> {
        let status = sys::status(path)?;
        let is_program = status.st_mode & libc::S_IFMT == libc::S_IFREG && status.st_mode & 0o111 != 0;
        is_program.then_some(())?;
        let (user, group) = sys::effective_ids();
        let changes = |bit: u32, own: u32, other: u32| status.st_mode & bit != 0 && own != other;
        let mut file = File { head: [0; HEAD], length: 0, is_privileged: false, has_sanitizer: false };
        file.is_privileged = changes(libc::S_ISUID, user, status.st_uid)
            || changes(libc::S_ISGID, group, status.st_gid)
            || (user != 0 && sys::has_capabilities(path));
        // A file that may be executed but not read shows nothing.
        if let Some(descriptor) = sys::open(path) {
            file.length = sys::read(descriptor, &mut file.head).min(HEAD);
            let read = |offset: u64, bytes: &mut [u8]| sys::read_at(descriptor, bytes, offset);
            file.has_sanitizer = sanitizer::is_in(file.head(), read);
            sys::close(descriptor);
        }
        Some(file)
    }

    fn head(&self) -> &[u8] {
        &self.head[..self.length]
    }

    /// Returns why the program will not be recorded, if so.
    pub(crate) fn untraced_reason(&self) -> Option<UntracedReason> {
        let Some(line) = self.head().strip_prefix(b"#!") else { return self.untraced_reason_of_binary() };
        let line = line.split(|byte| *byte == b'\n').next()?.trim_ascii_start();
        let name = line.split(|byte| *byte == b' ' || *byte == b'\t').next()?;
        let mut path = [0; HEAD];
        path.get_mut(..name.len())?.copy_from_slice(name);
        File::of(sys::c_text(&path)?)?.untraced_reason_of_binary()
    }

    fn untraced_reason_of_binary(&self) -> Option<UntracedReason> {
        if self.is_privileged {
            return Some(UntracedReason::Rights);
        }
        let head = self.head();
        if !head.starts_with(&header::MAGIC) {
            return None;
        }
        if head.get(libc::EI_CLASS) != Some(&libc::ELFCLASS64) {
            return Some(UntracedReason::ThirtyTwoBit);
        }
        // A program header table further back in the file is not considered.
        let number = |offset: u64, size: u64| header::number_in(head, offset, size);
        let mut left = header::segment_count(number)?;
        for segment in header::segments(number) {
            if segment.kind == libc::PT_INTERP {
                return self.has_sanitizer.then_some(UntracedReason::Sanitizer);
            }
            left = left.wrapping_sub(1);
        }
        (left == 0).then_some(UntracedReason::Static)
    }
}

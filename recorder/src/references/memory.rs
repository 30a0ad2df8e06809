//! Reads the memory of the process with `process_vm_readv`, and only pages that are there.

use crate::session::traced_process::Session;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::unix::fs::FileExt;

/// Bits of an entry of `/proc/PID/pagemap`: the page is in memory, or swapped out.
const IS_THERE: u64 = 3 << 62;
/// It is a page of a file, or shared.
const IS_OF_FILE: u64 = 1 << 61;
/// Largest read-only mapping that is searched for pages that were written before.
const LARGEST_SEALED: u64 = 4 << 30;

#[derive(Debug)]
pub(crate) struct Memory {
    pid: Pid,
    page: u64,
    /// Tells which pages are there.
    pagemap: Option<File>,
    /// The process of which this one is a copy, and its pages. Those of files, and shared ones, come into
    /// a copy when they are read; others never, since a process can keep them from its children
    /// (`MADV_DONTFORK`, `MADV_WIPEONFORK`). Both are read from the process itself, which runs on.
    original: Option<(Pid, File)>,
}

/// A part of a range, and the process that has it.
struct Run {
    start: u64,
    end: u64,
    pid: Pid,
}

fn pagemap(pid: u32) -> Option<File> {
    File::open(format!("/proc/{pid}/pagemap")).ok()
}

impl Memory {
    pub(crate) fn of(pid: u32, page: u64) -> Memory {
        Memory { pid: Pid::from_raw(pid.cast_signed()), page: page.max(512), pagemap: pagemap(pid), original: None }
    }

    /// Returns the memory of a copy of a process.
    pub(crate) fn of_copy(pid: u32, original: u32, page: u64) -> Memory {
        let pages = pagemap(original).map(|pages| (Pid::from_raw(original.cast_signed()), pages));
        Memory { original: pages, ..Memory::of(pid, page) }
    }

    /// Checks that the memory may be read, by the first word of the area that both sides share.
    ///
    /// # Errors
    /// That of the kernel, e.g. EPERM where the process may not be traced.
    pub(crate) fn probe(&self, session: &Session) -> io::Result<()> {
        let Some((start, _)) = session.mapping.header().private_ranges().next() else { return Ok(()) };
        match read_some(self.pid, start, &mut [0; 8]) {
            Err(error) if error.raw_os_error() != Some(nix::libc::EFAULT) => Err(error),
            _ => Ok(()),
        }
    }

    /// Returns what the kernel tells of the pages of a range.
    fn entries(&self, pagemap: &File, start: u64, end: u64) -> Option<Vec<u8>> {
        let (first, last) = (start / self.page, end.div_ceil(self.page));
        let mut entries = vec![0; 8 * (last - first) as usize];
        pagemap.read_exact_at(&mut entries, 8 * first).is_ok().then_some(entries)
    }

    /// Returns the parts of a range that are in memory or swapped out. All of it, if that is not
    /// known.
    fn runs(&self, start: u64, end: u64) -> Vec<Run> {
        let (first, last) = (start / self.page, end.div_ceil(self.page));
        let entries = |pagemap: &File| self.entries(pagemap, start, end);
        let Some(own) = self.pagemap.as_ref().and_then(entries) else {
            return vec![Run { start, end, pid: self.pid }];
        };
        let original = self.original.as_ref().and_then(|(pid, pages)| Some((*pid, entries(pages)?)));
        let is_there = |entries: &[u8], index: usize| {
            entries.as_chunks::<8>().0.get(index).is_some_and(|entry| u64::from_le_bytes(*entry) & IS_THERE != 0)
        };
        let mut runs: Vec<Run> = Vec::new();
        for (number, index) in (first..last).zip(0..) {
            let pid = match &original {
                _ if is_there(&own, index) => self.pid,
                Some((pid, entries)) if is_there(entries, index) => *pid,
                _ => continue,
            };
            let (from, to) = ((number * self.page).max(start), ((number + 1) * self.page).min(end));
            match runs.last_mut() {
                Some(run) if run.end == from && run.pid == pid => run.end = to,
                _ => runs.push(Run { start: from, end: to, pid }),
            }
        }
        runs
    }
}

/// Adds a page to runs of pages.
fn extend(runs: &mut Vec<(u64, u64)>, from: u64, to: u64) {
    match runs.last_mut() {
        Some(last) if last.1 == from => last.1 = to,
        _ => runs.push((from, to)),
    }
}

fn read_some(pid: Pid, at: u64, out: &mut [u8]) -> io::Result<usize> {
    let remote = RemoteIoVec { base: at as usize, len: out.len() };
    Ok(process_vm_readv(pid, &mut [IoSliceMut::new(out)], &[remote])?)
}

impl formats::references::Memory for Memory {
    /// Reads the pages of a range that are there. The others are zeros. Returns the number of bytes
    /// that were read.
    fn read(&self, at: u64, out: &mut [u8]) -> u64 {
        let (mut done, mut read) = (0, 0);
        // No process has memory in the upper half. What seems to be an address may be any word.
        let end = at.checked_add(out.len() as u64).filter(|end| end.cast_signed() >= 0);
        for Run { start, end, pid } in end.map_or_else(Vec::new, |end| self.runs(at, end)) {
            let (start, end) = ((start - at) as usize, (end - at) as usize);
            out[done..start].fill(0);
            done = start;
            while done < end {
                match read_some(pid, at + done as u64, &mut out[done..end]) {
                    Ok(count @ 1..) => (done, read) = (done + count, read + count as u64),
                    // A page that cannot be read, e.g. of a file that was truncated.
                    _ => {
                        let next = (at + done as u64) / self.page * self.page + self.page;
                        let next = ((next - at) as usize).min(end);
                        out[done..next].fill(0);
                        done = next;
                    }
                }
            }
        }
        out[done..].fill(0);
        read
    }

    fn written(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let mut runs = Vec::new();
        if end - start > LARGEST_SEALED {
            return runs;
        }
        let entries = self.pagemap.as_ref().and_then(|pagemap| self.entries(pagemap, start, end)).unwrap_or_default();
        for (page, entry) in (start / self.page..).zip(entries.as_chunks::<8>().0) {
            let entry = u64::from_le_bytes(*entry);
            if entry & IS_THERE != 0 && entry & IS_OF_FILE == 0 {
                extend(&mut runs, (page * self.page).max(start), ((page + 1) * self.page).min(end));
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use formats::references::Memory as _;

    #[test]
    fn any_word_may_be_read_as_an_address() {
        let memory = Memory::of(std::process::id(), 4096);
        let there = 0x1234_5678u64;
        let mut out = [0xff; 8];
        assert_eq!(memory.read(&raw const there as u64, &mut out), 8);
        assert_eq!(u64::from_le_bytes(out), there);
        for at in [0, 8, 1 << 47, 1 << 63, u64::MAX - 4096, u64::MAX - 7, u64::MAX - 3, u64::MAX] {
            let mut out = [0xff; 8];
            assert_eq!((memory.read(at, &mut out), out), (0, [0; 8]), "{at:#x}");
        }
    }
}

//! The memory of another process, by `/proc/PID/mem`.

use super::kill_points;
use crate::os::processor::code::INSTRUCTION_ALIGNMENT;
use crate::os::processor::{RETURN_ADDRESS, frame};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use wire::area::PAGE;

/// The most bytes of a stack that are searched.
const MAX_STACK: u64 = 16 << 20;
/// Number of bytes that are read at once.
const CHUNK: usize = 64 << 10;
/// The most stacks of one thread: that of a handler, and the interrupted ones.
const MAX_STACKS: usize = 8;

#[derive(Debug)]
pub(crate) struct Memory {
    file: File,
    /// Addresses of the code that libc's signal handlers return to.
    restorers: Vec<u64>,
}

impl Memory {
    /// Opens the memory of a process.
    ///
    /// # Errors
    /// The kernel does not let this process write to it.
    pub(crate) fn of(pid: u32) -> io::Result<Memory> {
        let file = OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/mem"))?;
        Ok(Memory { file, restorers: Vec::new() })
    }

    /// Sets where signal handlers return to.
    pub(crate) fn set_restorers(&mut self, restorers: Vec<u64>) {
        self.restorers = restorers;
    }

    /// Reads exactly as many bytes as there are in `out`.
    ///
    /// # Errors
    /// Some of them are not mapped.
    pub(crate) fn read(&self, at: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, at)
    }

    /// Writes bytes, also where the process itself cannot.
    ///
    /// # Errors
    /// Some of them are not mapped, or the kernel forbids it.
    pub(crate) fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        kill_points::step();
        self.file.write_all_at(bytes, at)
    }

    /// Returns the addresses of some instructions in a range of memory.
    pub(crate) fn find(&self, range: std::ops::Range<u64>, wanted: &[u8]) -> Vec<u64> {
        let mut bytes = vec![0; (range.end.saturating_sub(range.start)).min(MAX_STACK) as usize];
        if self.read(range.start, &mut bytes).is_err() {
            return Vec::new();
        }
        let found = bytes.windows(wanted.len()).enumerate().filter(|(_, window)| *window == wanted);
        let addresses = found.map(|(offset, _)| range.start + offset as u64);
        addresses.filter(|address| address.is_multiple_of(INSTRUCTION_ALIGNMENT)).collect()
    }

    /// Returns whether a word of the stack that is in use from `sp` on is one of these addresses.
    /// The thread pointer of threads made by libc is the end of their stack. Stacks that a signal
    /// handler on another stack has interrupted are searched too.
    pub(crate) fn stack_holds(&self, sp: u64, thread_pointer: u64, is_inside: &impl Fn(u64) -> bool) -> bool {
        let mut stacks = vec![sp];
        let mut next = 0;
        while let Some(&start) = stacks.get(next) {
            next += 1;
            let mut end = start.saturating_add(MAX_STACK);
            if (start..end).contains(&thread_pointer) {
                end = thread_pointer;
            }
            let mut at = start & !7;
            while at < end {
                let values = self.values(at, end);
                if values.is_empty() {
                    break;
                }
                for (index, word) in values.iter().enumerate() {
                    if is_inside(*word & RETURN_ADDRESS) {
                        return true;
                    }
                    if let Some(interrupted) = frame::interrupted_stack(&values, index, &self.restorers)
                        && !(start..end).contains(&interrupted)
                        && stacks.len() < MAX_STACKS
                        && !stacks.contains(&interrupted)
                    {
                        stacks.push(interrupted);
                    }
                }
                at += 8 * values.len() as u64;
            }
        }
        false
    }

    /// Reads the values from `at` on, up to the end of what is mapped, or of a chunk.
    fn values(&self, at: u64, end: u64) -> Vec<u64> {
        let mut bytes = vec![0; CHUNK.min((end - at) as usize)];
        let count = match self.file.read_at(&mut bytes, at) {
            Ok(count) => count,
            Err(_) => {
                // The chunk begins in the last page.
                let rest = (PAGE - at % PAGE).min(end - at) as usize;
                bytes.truncate(rest);
                self.file.read_at(&mut bytes, at).unwrap_or(0)
            }
        };
        bytes.truncate(count);
        bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
    }
}

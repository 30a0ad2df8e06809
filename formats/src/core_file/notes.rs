//! The notes of a core: all that it says beside the memory.

use super::layout::{
    AUXILIARY, FILE, MAX_FILES, MAX_THREADS, PAGE_SIZE, PROCESS, PROGRAM_NAME, REGISTERS_AT, SIGNAL, STATUS,
    THREAD_POINTER, VDSO,
};
use super::{CoreFile, Machine, MappedFile, Signal, Thread, USUAL_PAGE, number};
use crate::{Cursor, Format, Kind, Result};

/// Size of the largest pages.
const LARGEST_PAGE: u64 = 1 << 16;

impl CoreFile {
    /// Reads the notes of a segment, which begin at `base` in the file.
    ///
    /// # Errors
    /// One was cut.
    pub(super) fn add_notes(&mut self, notes: &[u8], base: u64) -> Result<()> {
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
                STATUS if self.threads.len() < MAX_THREADS => self.threads.push(thread(bytes, self.machine)),
                THREAD_POINTER if self.machine == Machine::Aarch64 => {
                    // It follows the registers of its thread.
                    if let Some(thread) = self.threads.last_mut() {
                        thread.registers.truncate(self.machine.in_status());
                        thread.registers.push(number::<8>(bytes, 0));
                    }
                }
                PROCESS => {
                    self.pid = number::<4>(bytes, 24) as u32;
                    let name = bytes.get(40..56).unwrap_or_default();
                    let text = |bytes: &[u8]| bytes.split(|byte| *byte == 0).next().unwrap_or_default().to_vec();
                    self.name = text(name);
                    self.arguments = text(bytes.get(56..136).unwrap_or_default());
                }
                SIGNAL if self.signal.is_none() => self.signal = signal(bytes),
                FILE => self.files = files(bytes),
                AUXILIARY => {
                    (self.vdso, self.stack_end) = (auxiliary(bytes, VDSO), auxiliary(bytes, PROGRAM_NAME));
                    let page = auxiliary(bytes, PAGE_SIZE);
                    let is_page = page.is_power_of_two() && (USUAL_PAGE..=LARGEST_PAGE).contains(&page);
                    self.page = if is_page { page } else { USUAL_PAGE };
                }
                _ => {}
            }
            rest.skip(content.next_multiple_of(4));
        }
        Ok(())
    }
}

fn thread(status: &[u8], machine: Machine) -> Thread {
    let registers = (0..machine.in_status()).map(|at| number::<8>(status, REGISTERS_AT + 8 * at)).collect();
    Thread { tid: number::<4>(status, 32) as u32, machine, registers }
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
    /// Paths are looked at for each mapping, and the kernel writes none that is longer.
    const MAX_PATH: usize = 4096;
    let count = (number::<8>(list, 0) as usize).min(MAX_FILES).min(list.len() / 24);
    let page = number::<8>(list, 8);
    let names = list.get(16 + 24 * count..).unwrap_or_default();
    let rows = list.get(16..16 + 24 * count).unwrap_or_default().chunks_exact(24);
    rows.zip(names.split(|byte| *byte == 0))
        .map(|(row, path)| {
            let [start, end, pages] = [0, 8, 16].map(|at| number::<8>(row, at));
            let path = path[..path.len().min(MAX_PATH)].to_vec();
            MappedFile { start, end, offset: pages.saturating_mul(page), path }
        })
        .collect()
}

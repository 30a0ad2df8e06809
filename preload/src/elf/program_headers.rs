//! Reads the headers of the program itself, from where the kernel says that they are.

use super::header::{self, Segment};
use super::program::{self, MAX_RUNS, Program};
use super::tables::{PAGE, Tables};
use crate::sys;

/// Returns the address of the program headers; 0 if it is not known.
pub(crate) fn address() -> u64 {
    sys::auxiliary(libc::AT_PHDR) as u64
}

/// Returns the program headers in the address space.
pub(crate) fn segments() -> impl Iterator<Item = Segment> {
    let [size, count] = [libc::AT_PHENT, libc::AT_PHNUM].map(|kind| sys::auxiliary(kind) as u64);
    let start = address();
    let table = header::Table { offset: 0, size, count: if start == 0 { 0 } else { count } };
    let end = start.saturating_add(size.saturating_mul(count));
    // The program may have hidden the headers since they were read last.
    let _ = (Tables::between(start, end, start).recheck(), Tables::between(start, end, end).recheck());
    header::segments_in(table, move |offset, bytes| {
        Tables::between(start, end, start.checked_add(offset)?).number(bytes)
    })
}

/// Finds the program's segments. They stay unknown if its headers cannot be read.
#[cold]
#[inline(never)]
pub(crate) fn read() {
    let mut found = Program::default();
    if let Some(bias) = bias() {
        found.bias = bias;
        let (mut runs, mut codes) = (0, 0);
        let mut last_end = 0u64;
        for segment in segments() {
            let start = bias.wrapping_add(segment.address);
            if segment.kind == libc::PT_GNU_EH_FRAME {
                found.unwind_header = start;
            }
            if segment.kind != libc::PT_LOAD || segment.memory_bytes == 0 {
                continue;
            }
            let end = start.wrapping_add(segment.memory_bytes);
            let is_adjacent = start / PAGE <= last_end.div_ceil(PAGE);
            extend(&mut found.runs, &mut runs, !is_adjacent, [start / PAGE * PAGE, end]);
            if segment.is_code {
                extend(&mut found.code, &mut codes, true, [start, end]);
            }
            last_end = end.max(last_end);
        }
    }
    #[cfg(feature = "standalone")]
    use_recorders(&mut found);
    program::store(&found);
}

/// Adds a range to a list, or extends the last one in it.
fn extend(list: &mut [[u64; 2]; MAX_RUNS], used: &mut usize, is_new: bool, [start, end]: [u64; 2]) {
    if *used == 0 || (is_new && *used < MAX_RUNS) {
        list[*used][0] = start;
        *used += 1;
    }
    list[*used - 1][1] = end.max(list[*used - 1][1]);
}

/// Returns the difference between the program's addresses and those in its file.
fn bias() -> Option<u64> {
    let table = address();
    if let Some(itself) = segments().find(|segment| segment.kind == libc::PT_PHDR) {
        return Some(table.wrapping_sub(itself.address));
    }
    // Without an entry for the table itself, it follows the ELF header in the first page.
    let start = table / PAGE * PAGE;
    let header = header::table(&|offset, size| Tables::between(start, start + PAGE, start + offset).number(size))?;
    let first = segments().find(|segment| segment.kind == libc::PT_LOAD && segment.offset == 0)?;
    (start.wrapping_add(header.offset) == table).then(|| start.wrapping_sub(first.address))
}

/// Takes what the recorder has found in the program's file: it makes a table of unwind data where
/// the linker made none.
#[cfg(feature = "standalone")]
fn use_recorders(found: &mut Program) {
    let loaded = program::loaded();
    if loaded.start == 0 {
        return;
    }
    if found.runs[0][1] == 0 || found.bias != loaded.bias {
        *found = Program { bias: loaded.bias, ..Program::default() };
        found.runs[0] = [loaded.start, loaded.end];
        found.code[0] = found.runs[0];
    }
    found.unwind_header = loaded.unwind_header;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_hold_own_functions_and_headers() {
        static DATA: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(1);
        read();
        let here = runs_hold_own_functions_and_headers as fn() as usize as u64;
        let (start, end) = program::run_of(here).expect("the test program");
        let (low, high) = program::bounds();
        assert!(low <= start && end <= high && (low..high).contains(&program::unwind_header()));
        assert!(program::run_of(address()).is_some());
        assert!(program::is_code(here) && !program::is_code(&raw const DATA as u64));
        assert!(program::run_of(&raw const start as u64).is_none() && program::run_of(8).is_none());
    }
}

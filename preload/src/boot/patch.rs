//! Hooks functions of allocators inside the program, as the recorder has planned
//! ([`heaptape_wire::patches`]): maps the code near to them, and writes a jump to it over their
//! first bytes.
//!
//! This is done before `main`. Nothing is written while there is a second thread, or where the
//! bytes are not the expected ones. A page of code is writable only while it is changed. It stays
//! executable meanwhile: a system that forbids memory to be both refuses the first step then, and
//! not the last one.

use crate::elf::objects;
use crate::session::Area;
use crate::{PATCHED_ENTRY, arch, sys};
use core::sync::atomic::{AtomicU8, Ordering::Acquire, Ordering::Relaxed};
use heaptape_wire::patches::{
    DIFFERS, FORBIDDEN, HAS_THREADS, JUMP_BYTES, MAX_MOVED, MAX_PATCHES, NO_SPACE, Patch, PatchTable, Run, WRITTEN,
};

pub(crate) struct Patches {
    table: &'static PatchTable,
    count: usize,
}

/// Maps the patches that came with an area; `None` if there are none.
pub(crate) fn map(area: &Area, descriptor: i32) -> Option<Patches> {
    let count = (area.header().patches.load(Acquire) as usize).min(MAX_PATCHES);
    if count == 0 {
        return None;
    }
    let offset = area.patches_offset();
    let at = sys::map_file(core::ptr::null_mut(), size_of::<PatchTable>(), descriptor, offset)?;
    // SAFETY: the table is mapped until the patches are dropped, and all of it is atomics.
    Some(Patches { table: unsafe { &*at.cast::<PatchTable>() }, count })
}

impl Drop for Patches {
    fn drop(&mut self) {
        sys::unmap_at((&raw const *self.table).cast_mut().cast(), size_of::<PatchTable>());
    }
}

impl Patches {
    /// Writes the code of the patches to where the recorder has mapped memory for it, and leaves it
    /// to the recorder to write the jumps. Patches that cannot be written get their status.
    #[cfg(feature = "standalone")]
    pub(crate) fn prepare(self) {
        let runs = self.table.runs.each_ref().map(|run| map_run(self.table, run, true));
        for patch in &self.table.patches[..self.count] {
            match self.run_of(patch).map_or(NO_SPACE, |run| runs[run]) {
                WRITTEN => replacement::set_next(patch),
                status => patch.status.store(status, Relaxed),
            }
        }
    }

    /// Returns the index of the run that holds the code of a patch.
    fn run_of(&self, patch: &Patch) -> Option<usize> {
        let target = patch.target.load(Relaxed);
        let holds = |run: &Run| target.wrapping_sub(run.address.load(Relaxed)) < u64::from(run.bytes.load(Relaxed));
        self.table.runs.iter().position(holds)
    }

    /// Writes the patches, and the status of each.
    pub(crate) fn apply(self) {
        let signals = sys::hold_signals();
        let is_alone = sys::has_one_thread();
        let map = |run| if is_alone { map_run(self.table, run, false) } else { HAS_THREADS };
        let runs = self.table.runs.each_ref().map(map);
        let mut open = OpenPages { start: 0, bytes: 0 };
        for patch in &self.table.patches[..self.count] {
            let mut status = self.run_of(patch).map_or(NO_SPACE, |run| runs[run]);
            #[cfg(feature = "standalone")]
            if status != WRITTEN {
                // Nothing of this run is mapped, and a static program has one.
                patch.status.store(status, Relaxed);
                continue;
            }
            if status == WRITTEN {
                #[cfg(feature = "standalone")]
                replacement::set_next(patch);
                // SAFETY: there is one thread, which is here, and no signal handler runs.
                status = unsafe { write(patch, &mut open) };
            }
            patch.status.store(status, Relaxed);
            #[cfg(feature = "standalone")]
            if status != WRITTEN && replacement::is_one(patch) {
                break;
            }
        }
        open.close();
        sys::release_signals(signals);
    }
}

/// Maps a run of code, unless there is memory for it already.
fn map_run(table: &PatchTable, run: &Run, is_mapped: bool) -> u32 {
    let (at, bytes) = (run.address.load(Relaxed) as *mut u8, run.bytes.load(Relaxed) as usize);
    let offset = run.offset.load(Relaxed) as usize;
    let Some(code) = table.code.get(offset..offset.wrapping_add(bytes)).filter(|code| code.len() > 8) else {
        return NO_SPACE;
    };
    if !is_mapped && !sys::map_at(at, bytes) {
        return NO_SPACE;
    }
    // SAFETY: new memory of at least this size.
    unsafe {
        code.iter().enumerate().for_each(|(index, byte)| at.add(index).write(byte.load(Relaxed)));
        at.cast::<usize>().write(PATCHED_ENTRY.load(Relaxed) as usize);
        #[cfg(feature = "standalone")]
        replacement::write_addresses(at.cast::<usize>().add(1));
    }
    sys::unlock_at(at, bytes);
    if !sys::protect_code(at, bytes, false) {
        sys::unmap_at(at, bytes);
        return FORBIDDEN;
    }
    WRITTEN
}

/// The pages of code that are writable now.
struct OpenPages {
    start: usize,
    bytes: usize,
}

impl OpenPages {
    /// Makes the pages of a jump writable.
    fn open(&mut self, address: usize) -> bool {
        let page = sys::auxiliary(libc::AT_PAGESZ);
        let start = address & !(page - 1);
        let bytes = (address + JUMP_BYTES).next_multiple_of(page) - start;
        if (self.start, self.bytes) == (start, bytes) {
            return true;
        }
        self.close();
        let is_open = sys::protect_code(start as *mut u8, bytes, true);
        if is_open {
            (self.start, self.bytes) = (start, bytes);
        }
        is_open
    }

    fn close(&mut self) {
        if self.bytes != 0 {
            sys::protect_code(self.start as *mut u8, self.bytes, false);
            self.bytes = 0;
        }
    }
}

/// Writes one jump, and returns the status.
///
/// # Safety
/// No other thread may run, and no signal handler.
unsafe fn write(patch: &Patch, open: &mut OpenPages) -> u32 {
    let (length, address) = (patch.length.load(Relaxed) as usize, patch.address.load(Relaxed) as usize);
    let end = address as u64 + length as u64;
    let is_mapped = || objects::find(address).is_some_and(|object| end <= object.end);
    let is_expected = |(index, byte): (usize, &AtomicU8)| {
        // SAFETY: the bytes are in an object that is mapped; the recorder has seen that they are
        // code that can be read.
        unsafe { (address as *const u8).wrapping_add(index).read() == byte.load(Relaxed) }
    };
    if !(JUMP_BYTES..=MAX_MOVED).contains(&length)
        || !is_mapped()
        || !patch.expected.iter().take(length).enumerate().all(is_expected)
    {
        return DIFFERS;
    }
    if !open.open(address) {
        return FORBIDDEN;
    }
    // SAFETY: the pages are writable now, and nobody runs there.
    if unsafe { arch::write_jump(address as *mut u8, patch.target.load(Relaxed)) } { WRITTEN } else { NO_SPACE }
}

/// Functions of the program that the library replaces.
#[cfg(feature = "standalone")]
mod replacement {
    use crate::REPLACEMENTS;
    use core::sync::atomic::Ordering::Relaxed;
    use heaptape_wire::patches::{Action, Function, Patch};

    /// Returns the description of a function whose code is mapped.
    fn function(patch: &Patch) -> *const Function {
        (patch.target.load(Relaxed) as *const Function).wrapping_sub(1)
    }

    /// Returns whether a patch whose code is mapped replaces a function.
    pub(crate) fn is_one(patch: &Patch) -> bool {
        // SAFETY: the description precedes the entry in the run that has just been mapped.
        unsafe { (*function(patch)).action == Action::Replaced as u8 }
    }

    /// Stores the address of the original function, if the patch replaces one.
    pub(crate) fn set_next(patch: &Patch) {
        // SAFETY: as in `is_one`.
        let (index, trampoline) = unsafe { ((*function(patch)).size, (*function(patch)).trampoline) };
        if let Some((_, next)) = REPLACEMENTS.get(usize::from(index)).filter(|_| is_one(patch)) {
            next.store(trampoline as *mut _, Relaxed);
        }
    }

    /// Writes the addresses of the replacements.
    ///
    /// # Safety
    /// There must be space for all of them at `at`.
    pub(crate) unsafe fn write_addresses(at: *mut usize) {
        for (index, (function, _)) in REPLACEMENTS.iter().enumerate() {
            // SAFETY: the space that the caller has.
            unsafe { at.add(index).write(function.load(Relaxed) as usize) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use heaptape_wire::patches::WAITING;

    #[inline(never)]
    extern "C" fn victim(number: u64) -> u64 {
        core::hint::black_box(number) + 1
    }

    /// A function whose bytes are not the expected ones stays as it is, and so does memory that is
    /// in no object.
    #[test]
    fn other_bytes_are_not_patched() {
        let address = victim as extern "C" fn(u64) -> u64 as usize;
        let patch = Patch::default();
        patch.address.store(address as u64, Relaxed);
        patch.target.store(address as u64 + 0x1000, Relaxed);
        patch.length.store(8, Relaxed);
        for (index, byte) in patch.expected.iter().enumerate() {
            // SAFETY: the bytes are code of this program.
            byte.store(unsafe { (address as *const u8).add(index).read() }, Relaxed);
        }
        let wrong = patch.expected[7].load(Relaxed) ^ 1;
        patch.expected[7].store(wrong, Relaxed);
        let mut open = OpenPages { start: 0, bytes: 0 };
        // SAFETY: nothing is written.
        assert_eq!((patch.status.load(Relaxed), unsafe { write(&patch, &mut open) }), (WAITING, DIFFERS));
        for (length, at) in [(JUMP_BYTES - 1, address), (25, address), (8, 0x10_0000)] {
            patch.length.store(length as u32, Relaxed);
            patch.address.store(at as u64, Relaxed);
            // SAFETY: nothing is written.
            assert_eq!(unsafe { write(&patch, &mut open) }, DIFFERS, "{length} bytes at {at:x}");
        }
        assert_eq!((open.bytes, victim(1)), (0, 2));
    }
}

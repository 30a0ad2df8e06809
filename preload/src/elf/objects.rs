//! Finds the ELF object that holds an address, and its unwind tables. The program itself is known
//! from its own headers ([`program_headers`]). Libraries are found by `_dl_find_object` (glibc 2.35
//! and later), which takes no lock and may be called from a signal handler. With older libcs the
//! kernel's map of the process is read when an unknown address comes up, which takes no lock
//! either.

use super::object::Object;
use super::{maps, program, program_headers};
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// The result that glibc fills in (`struct dl_find_object`).
#[repr(C)]
struct FindResult {
    flags: u64,
    start: *mut c_void,
    end: *mut c_void,
    link_map: *mut c_void,
    eh_frame: *mut c_void,
    reserved: [u64; 7],
}

type Finder = unsafe extern "C" fn(*mut c_void, *mut FindResult) -> c_int;
static FINDER: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Sets the loader's function (`_dl_find_object`), or null if there is none. Called once, when the
/// allocator is resolved. The program's headers are read now, before it can hide them.
pub(crate) fn find_loader(finder: *mut c_void) {
    FINDER.store(finder, Relaxed);
    program_headers::read();
}

/// Returns the object that holds an address. It is not inlined, since its frame must be gone when
/// rules are compiled on small stacks.
#[inline(never)]
pub(crate) fn find(address: usize) -> Option<Object> {
    if !program::is_known() {
        program_headers::read();
    }
    if let Some((start, end)) = program::run_of(address as u64) {
        let (bias, unwind_header) = (program::bias(), program::unwind_header());
        return Some(Object { start, end, is_program: true, link_map: core::ptr::null_mut(), bias, unwind_header });
    }
    let finder = FINDER.load(Relaxed);
    if finder.is_null() {
        return maps::find(address);
    }
    let nothing = core::ptr::null_mut;
    let mut found = FindResult {
        flags: 0,
        start: nothing(),
        end: nothing(),
        link_map: nothing(),
        eh_frame: nothing(),
        reserved: [0; 7],
    };
    // SAFETY: glibc's function of this type; the structure is ours and as large as documented.
    let result = unsafe {
        let finder: Finder = core::mem::transmute(finder);
        finder(address as *mut c_void, &raw mut found)
    };
    (result == 0).then_some(Object {
        start: found.start as u64,
        end: found.end as u64,
        is_program: false,
        link_map: found.link_map,
        bias: 0,
        unwind_header: found.eh_frame as u64,
    })
}

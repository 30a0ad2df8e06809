//! The C++ run-time: libstdc++, or libc++ with its libc++abi. Its `operator new` is a call of
//! `malloc` and, if that fails, of the program's handler or a throw; its `operator delete` is a
//! call of `free`. The forms without alignment differ in nothing else.
//!
//! The run-time calls these functions through two entries of its global offset table. While both
//! hold the addresses of this library's functions, a hook of an operator can call the allocator
//! itself. The entries are compared at each call, because other tools may change them at any time,
//! to see the run-time's calls. A function that the run-time has not called yet may not be bound
//! yet. Then the operator is called, which binds it.

use super::{Object, Wanted, dynamic_section, holds};
use crate::arch::FUNCTION_RELOCATIONS;
use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

const NAMES: [&CStr; 3] = [c"libstdc++.so.6", c"libc++.so.1", c"libc++abi.so.1"];

/// The entries that hold the addresses of the run-time's `malloc` and `free`; null until they are
/// known.
static ENTRIES: [AtomicPtr<AtomicUsize>; 2] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 2];

/// Returns the address of the function that the run-time calls as `malloc`, or as `free`; 0 if it
/// is not known.
#[inline(always)]
pub(crate) fn called(is_free: bool) -> usize {
    let entry = ENTRIES[usize::from(is_free)].load(Acquire);
    // SAFETY: an entry of the run-time's table, which is known as long as the run-time is mapped.
    if entry.is_null() { 0 } else { unsafe { (*entry).load(Relaxed) } }
}

struct Search<'a> {
    definitions: &'a [Wanted],
    is_relevant: fn(usize) -> bool,
    entries: Option<[*mut AtomicUsize; 2]>,
}

/// Returns whether all definitions that are found, of those whose index is relevant, are one
/// run-time's, and remembers its entries. Only one run-time is remembered.
pub(crate) fn defines(definitions: &[Wanted], is_relevant: fn(usize) -> bool) -> bool {
    // Then `malloc` is not this library's.
    if super::has_other_malloc() {
        return false;
    }
    let mut search = Search { definitions, is_relevant, entries: None };
    // SAFETY: the callback gets what libc describes and our own structure, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    let Some(entries) = search.entries else { return false };
    ENTRIES.iter().zip(entries).all(|(known, entry)| {
        let is_first = known.compare_exchange(core::ptr::null_mut(), entry, Release, Relaxed);
        is_first.is_ok() || is_first == Err(entry)
    })
}

/// Forgets the entries, after a library was unmapped.
pub(crate) fn forget() {
    ENTRIES.iter().for_each(|entry| entry.store(core::ptr::null_mut(), Relaxed));
}

unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    // SAFETY: `defines` passes its own structure, and the loader describes an object that stays
    // mapped while it holds its lock.
    unsafe {
        let (info, search) = (&*info, &mut *search.cast::<Search<'_>>());
        let is_relevant = search.is_relevant;
        let mut definitions = search
            .definitions
            .iter()
            .enumerate()
            .filter(|(index, _)| is_relevant(*index))
            .map(|(_, wanted)| wanted.found);
        // The run-time has all of them, or, if it is old, it lacks some that are nowhere.
        if !definitions.clone().any(|found| holds(info, found as usize)) {
            return 0;
        }
        if let Some(dynamic) = dynamic_section(info)
            && definitions.all(|found| found.is_null() || holds(info, found as usize))
        {
            let object = Object::read(info.dlpi_addr, dynamic);
            let is_runtime = object.name().is_some_and(|name| NAMES.contains(&name));
            search.entries = if is_runtime { entries(&object) } else { None };
        }
        1
    }
}

/// Returns the addresses of the entries that hold those of `malloc` and `free`.
///
/// # Safety
/// The object must be mapped, with the tables that its linker wrote.
unsafe fn entries(object: &Object) -> Option<[*mut AtomicUsize; 2]> {
    let mut entries = [core::ptr::null_mut::<AtomicUsize>(); 2];
    // Functions that are called are in the first table, unless all are bound at the start.
    for (table, bytes) in [object.jump_relocations, object.relocations] {
        for index in 0..bytes as usize / size_of::<libc::Elf64_Rela>() {
            // SAFETY: the tables are valid, as the caller ensures, and the loader relies on them.
            unsafe {
                let libc::Elf64_Rela { r_offset, r_info, .. } = *table.add(index);
                if !FUNCTION_RELOCATIONS.contains(&(r_info as u32)) {
                    continue;
                }
                let symbol = &*object.symbols.add((r_info >> 32) as usize);
                for (entry, name) in entries.iter_mut().zip([c"malloc", c"free"]) {
                    if entry.is_null() && object.is_named(symbol, name) {
                        *entry = object.base.wrapping_add(r_offset) as *mut AtomicUsize;
                    }
                }
            }
        }
        if entries.iter().all(|entry| !entry.is_null()) {
            return Some(entries);
        }
    }
    None
}

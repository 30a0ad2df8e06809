//! The next definitions of the C++ operators. They are looked up on first use, since a C program
//! has none.
//!
//! The definitions in objects that were loaded at the program's start are the same for all callers,
//! and are looked up once. Libraries that were opened later may bring operators of their own, which
//! no other library uses. There each calling object has its own next definition, which is the one
//! that the loader would have found for that object without this library. (The loader also searches
//! libraries that were opened with `RTLD_GLOBAL`. It does not show which ones these are, so they
//! come last here.)

use crate::dynsym::{self, Scope};
use crate::elf::{Object, objects};
use crate::hooks::OPERATORS as NAMES;
use crate::{arch, sys};
use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// The definitions in objects that were loaded at the start.
pub static NEXT: [AtomicPtr<c_void>; NAMES.len()] = [const { AtomicPtr::new(core::ptr::null_mut()) }; NAMES.len()];

/// Returns the next definition of an operator, or null if there is none. `caller` is an address in
/// the calling object.
#[inline(always)]
pub fn next(which: usize, caller: usize) -> *mut c_void {
    let found = NEXT[which].load(Relaxed);
    if found.is_null() { next_for(which, caller) } else { found }
}

/// The value of `start` in a row that is being filled. No object is at this address.
const CLAIMED: u64 = u64::MAX;

/// The definitions for the callers in one object.
struct Scoped {
    /// The object's first address; 0 if the row is free.
    start: AtomicU64,
    end: AtomicU64,
    found: [AtomicPtr<c_void>; NAMES.len()],
}

static SCOPED: [Scoped; 32] = [const {
    Scoped {
        start: AtomicU64::new(0),
        end: AtomicU64::new(0),
        found: [const { AtomicPtr::new(core::ptr::null_mut()) }; NAMES.len()],
    }
}; 32];

impl Scoped {
    /// Returns the definition for a caller, or null if there is none or the row is another
    /// object's.
    fn look(&self, which: usize, caller: u64) -> *mut c_void {
        let start = self.start.load(Acquire);
        if start == 0 || caller < start || caller >= self.end.load(Relaxed) {
            return core::ptr::null_mut();
        }
        let found = self.found[which].load(Acquire);
        // If the row belongs to another object by now, the address may be that one's.
        if self.start.load(Relaxed) == start { found } else { core::ptr::null_mut() }
    }
}

fn next_for(which: usize, caller: usize) -> *mut c_void {
    for row in &SCOPED {
        let found = row.look(which, caller as u64);
        if !found.is_null() {
            arch::set_operator_caller(caller);
            return found;
        }
    }
    find(which, caller)
}

#[cold]
fn find(which: usize, caller: usize) -> *mut c_void {
    sys::aligned(|| find_aligned(which, caller))
}

#[inline(always)]
fn find_aligned(which: usize, caller: usize) -> *mut c_void {
    let is_ours = |object: &Object| (object.start..object.end).contains(&(find as *const () as u64));
    let mut object = objects::find(caller);
    let mut caller = caller;
    if object.as_ref().is_some_and(is_ours) {
        // An operator that jumps to another one leaves this library's stub as that one's caller.
        caller = arch::operator_caller();
        object = objects::find(caller);
    }
    let name = NAMES[which];
    let found = dynsym::find_one(Scope::Next, true, name);
    if !found.is_null() {
        NEXT[which].store(found, Relaxed);
        return found;
    }
    arch::set_operator_caller(caller);
    let found = dynsym::scope::find(caller, name);
    let found = if found.is_null() { dynsym::find_one(Scope::Next, false, name) } else { found };
    if let Some(object) = object.filter(|_| !found.is_null()) {
        keep(&object, which, found);
    }
    found
}

/// Keeps a definition for the callers in one object, if there is a row for it. A row that two
/// threads claim at once stays unused by both.
fn keep(object: &Object, which: usize, found: *mut c_void) {
    let Some(row) = SCOPED.iter().find(|row| row.start.load(Acquire) == object.start) else {
        let Some(row) = SCOPED.iter().find(|row| row.start.compare_exchange(0, CLAIMED, Acquire, Relaxed).is_ok())
        else {
            return;
        };
        row.end.store(object.end, Relaxed);
        row.found.iter().for_each(|pointer| pointer.store(core::ptr::null_mut(), Relaxed));
        row.found[which].store(found, Relaxed);
        row.start.store(object.start, Release);
        return;
    };
    row.found[which].store(found, Release);
}

/// Forgets the definitions for all opened libraries, after one of them was unmapped.
pub fn forget() {
    NEXT.iter().for_each(|pointer| pointer.store(core::ptr::null_mut(), Relaxed));
    SCOPED.iter().filter(|row| row.start.load(Relaxed) != CLAIMED).for_each(|row| row.start.store(0, Release));
}

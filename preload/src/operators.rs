//! The next definitions of the C++ operators. They are found on first use: a C program has none.
//!
//! What was loaded at the program's start is the same for all callers, and is found once. Libraries
//! that were opened later may bring their own operators, which serve nobody else: there each
//! calling object has its own next definition, found as the loader would have found it for that
//! object had this library not been there. (The loader also looks into libraries opened with
//! `RTLD_GLOBAL`; which ones these are it does not tell, so they come last here.)

use crate::dynsym::{self, Scope};
use crate::hooks::OPERATORS as NAMES;
use crate::unwind::objects::{self, Object};
use crate::{sys, tls};
use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Those that were loaded at the start.
pub static NEXT: [AtomicPtr<c_void>; NAMES.len()] = [const { AtomicPtr::new(core::ptr::null_mut()) }; NAMES.len()];

/// The next definition of an operator; null when there is none. `caller` is an address in the
/// calling object.
#[inline(always)]
pub fn next(which: usize, caller: usize) -> *mut c_void {
    let found = NEXT[which].load(Relaxed);
    if found.is_null() { next_for(which, caller) } else { found }
}

/// First address of a row that is being filled: no object lies there.
const CLAIMED: u64 = u64::MAX;

/// What was found for the callers in one object.
struct Scoped {
    /// The object's first address; 0: the row is free.
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
    /// What was found for a caller; null when nothing was, or the row is another object's.
    fn look(&self, which: usize, caller: u64) -> *mut c_void {
        let start = self.start.load(Acquire);
        if start == 0 || caller < start || caller >= self.end.load(Relaxed) {
            return core::ptr::null_mut();
        }
        let found = self.found[which].load(Acquire);
        // Another object's since: then what was read may be that one's.
        if self.start.load(Relaxed) == start { found } else { core::ptr::null_mut() }
    }
}

fn next_for(which: usize, caller: usize) -> *mut c_void {
    for row in &SCOPED {
        let found = row.look(which, caller as u64);
        if !found.is_null() {
            tls::set_operator_caller(caller);
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
        // An operator that jumps to another one shows our own stub as that one's caller.
        caller = tls::operator_caller();
        object = objects::find(caller);
    }
    let name = NAMES[which];
    let found = dynsym::one(Scope::Next, true, name);
    if !found.is_null() {
        NEXT[which].store(found, Relaxed);
        return found;
    }
    tls::set_operator_caller(caller);
    let found = dynsym::scope::find(caller, name);
    let found = if found.is_null() { dynsym::one(Scope::Next, false, name) } else { found };
    if let Some(object) = object.filter(|_| !found.is_null()) {
        keep(&object, which, found);
    }
    found
}

/// Keeps what was found for the callers in one object, while there is a row for it. A row that two
/// threads take at once is no one's.
fn keep(object: &Object, which: usize, found: *mut c_void) {
    let Some(row) = SCOPED.iter().find(|row| row.start.load(Acquire) == object.start) else {
        let Some(row) = SCOPED.iter().find(|row| row.start.compare_exchange(0, CLAIMED, Acquire, Relaxed).is_ok())
        else {
            return;
        };
        row.end.store(object.end, Relaxed);
        row.found.iter().for_each(|place| place.store(core::ptr::null_mut(), Relaxed));
        row.found[which].store(found, Relaxed);
        row.start.store(object.start, Release);
        return;
    };
    row.found[which].store(found, Release);
}

/// After a library went: nothing is known of the scopes of those that were opened.
pub fn forget() {
    NEXT.iter().for_each(|place| place.store(core::ptr::null_mut(), Relaxed));
    SCOPED.iter().filter(|row| row.start.load(Relaxed) != CLAIMED).for_each(|row| row.start.store(0, Release));
}

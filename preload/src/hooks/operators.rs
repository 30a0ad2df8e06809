//! The next definitions of the C++ operators. They are looked up on first use, since a C program
//! has none.
//!
//! The definitions in objects that were loaded at the program's start are the same for all callers,
//! and are looked up once. Libraries that were opened later may bring operators of their own, which
//! no other library uses. There each calling object has its own next definition, which is the one
//! that the loader would have found for that object without this library. (The loader also searches
//! libraries that were opened with `RTLD_GLOBAL`. It does not show which ones these are, so they
//! come last here.)
//!
//! Nearly always they are those of the C++ run-time, which do nothing but call `malloc` and `free`.
//! The hooks do that themselves then ([`is_runtime`]), at the price of C.

use super::{FIRST_DELETE, OPERATORS as NAMES, is_plain_form};
use crate::dynsym::{self, Scope, Wanted, cpp_runtime, scope};
use crate::elf::{Object, objects};
use crate::{arch, sys, workspace};
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// The definitions in objects that were loaded at the start.
pub(crate) static NEXT: [AtomicPtr<c_void>; NAMES.len()] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; NAMES.len()];

/// Returns the next definition of an operator, or null if there is none. `caller` is an address in
/// the calling object.
#[inline(always)]
pub(crate) fn next(which: usize, caller: usize) -> *mut c_void {
    let found = NEXT[which].load(Relaxed);
    if found.is_null() { next_for(which, caller) } else { found }
}

/// Whether all definitions in [`NEXT`] of forms without alignment are the C++ run-time's.
static NEXT_IS_RUNTIME: AtomicBool = AtomicBool::new(false);

/// Returns whether an operator is known to be the C++ run-time's, for the callers in the object of
/// `caller`, and whether all that it does is to call this library's `malloc` or `free`. The answer
/// is false before the first lookup, and for the forms with an alignment, which round sizes.
#[inline(always)]
pub(crate) fn is_runtime(which: usize, caller: usize) -> bool {
    let is_known =
        if NEXT[which].load(Relaxed).is_null() { is_runtime_for(caller as u64) } else { NEXT_IS_RUNTIME.load(Relaxed) };
    // The run-time's table is read last: this caller's run-time is mapped.
    is_known && is_plain_form(which) && {
        let is_free = which >= FIRST_DELETE;
        cpp_runtime::called(is_free) == own(is_free)
    }
}

/// Returns the address of this library's `malloc` or `free`.
#[cfg(not(any(test, feature = "standalone")))]
#[inline(always)]
fn own(is_free: bool) -> usize {
    use crate::hooks::exported::{free, malloc};
    if is_free { free as *const () as usize } else { malloc as *const () as usize }
}
#[cfg(any(test, feature = "standalone"))]
fn own(_: bool) -> usize {
    usize::MAX
}

/// The value of `start` in a row that is being filled. No object is at this address.
const CLAIMED: u64 = u64::MAX;

/// The definitions for the callers in one object.
struct Scoped {
    /// The object's first address; 0 if the row is free.
    start: AtomicU64,
    end: AtomicU64,
    found: [AtomicPtr<c_void>; NAMES.len()],
    /// Whether those of forms without alignment are the C++ run-time's.
    is_runtime: AtomicBool,
}

static SCOPED: [Scoped; 32] = [const {
    Scoped {
        start: AtomicU64::new(0),
        end: AtomicU64::new(0),
        found: [const { AtomicPtr::new(core::ptr::null_mut()) }; NAMES.len()],
        is_runtime: AtomicBool::new(false),
    }
}; 32];

impl Scoped {
    /// Returns what `read` reads from the row, or `None` if it is not the row of this caller.
    #[inline(always)]
    fn look<T>(&self, caller: u64, read: impl FnOnce(&Scoped) -> T) -> Option<T> {
        let start = self.start.load(Acquire);
        if start == 0 || caller < start || caller >= self.end.load(Relaxed) {
            return None;
        }
        let found = read(self);
        // If the row belongs to another object by now, this is perhaps that one's.
        (self.start.load(Relaxed) == start).then_some(found)
    }

    #[inline(never)]
    fn fill(&self, wanted: &[Wanted], is_runtime: bool) {
        self.found.iter().zip(wanted).for_each(|(pointer, wanted)| pointer.store(wanted.found, Release));
        self.is_runtime.store(is_runtime, Release);
    }
}

#[inline(never)]
fn is_runtime_for(caller: u64) -> bool {
    SCOPED.iter().find_map(|row| row.look(caller, |row| row.is_runtime.load(Acquire))).unwrap_or(false)
}

#[inline(never)]
fn next_for(which: usize, caller: usize) -> *mut c_void {
    for row in &SCOPED {
        match row.look(caller as u64, |row| row.found[which].load(Acquire)) {
            Some(found) if !found.is_null() => {
                arch::set_operator_caller(caller);
                return found;
            }
            _ => {}
        }
    }
    find(which, caller)
}

#[cold]
fn find(which: usize, caller: usize) -> *mut c_void {
    sys::aligned(|| {
        let mut found = core::ptr::null_mut();
        // The lists of a search take 10 KiB.
        workspace::apart(&mut || found = find_aligned(which, caller));
        found
    })
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
    let mut wanted = names();
    dynsym::find(Scope::Next, true, &mut wanted);
    if !wanted[which].found.is_null() {
        NEXT.iter().zip(&wanted).for_each(|(pointer, wanted)| pointer.store(wanted.found, Relaxed));
        NEXT_IS_RUNTIME.store(are_runtime(&wanted), Relaxed);
        return wanted[which].found;
    }
    arch::set_operator_caller(caller);
    scope::find(caller, &mut wanted);
    dynsym::find(Scope::Next, false, &mut wanted);
    let found = wanted[which].found;
    if let Some(object) = object.filter(|_| !found.is_null()) {
        keep(&object, &wanted);
    }
    found
}

/// Returns the names of all operators, without definitions.
#[inline(never)]
fn names() -> [Wanted; NAMES.len()] {
    NAMES.map(Wanted::new)
}

/// Returns whether all definitions of forms without alignment are the C++ run-time's, and whether
/// nothing before this library defines an operator, which the run-time's would call.
fn are_runtime(wanted: &[Wanted]) -> bool {
    let mut before = names();
    dynsym::find(Scope::Before, false, &mut before);
    before.iter().all(|wanted| wanted.found.is_null()) && cpp_runtime::defines(wanted, is_plain_form)
}

/// Keeps the definitions for the callers in one object, if there is a row for it. A row that two
/// threads claim at once stays unused by both.
fn keep(object: &Object, wanted: &[Wanted]) {
    let is_runtime = are_runtime(wanted);
    if let Some(row) = SCOPED.iter().find(|row| row.start.load(Acquire) == object.start) {
        return row.fill(wanted, is_runtime);
    }
    let is_free = |row: &&Scoped| row.start.compare_exchange(0, CLAIMED, Acquire, Relaxed).is_ok();
    if let Some(row) = SCOPED.iter().find(is_free) {
        row.end.store(object.end, Relaxed);
        row.fill(wanted, is_runtime);
        row.start.store(object.start, Release);
    }
}

/// Forgets the definitions for all opened libraries, after one of them was unmapped.
pub(crate) fn forget() {
    NEXT_IS_RUNTIME.store(false, Relaxed);
    NEXT.iter().for_each(|pointer| pointer.store(core::ptr::null_mut(), Relaxed));
    SCOPED.iter().filter(|row| row.start.load(Relaxed) != CLAIMED).for_each(|row| row.start.store(0, Release));
    cpp_runtime::forget();
}

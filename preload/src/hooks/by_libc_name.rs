//! The functions by which a program calls the C library's allocator past every other one:
//! `__libc_malloc` and its kin. They have next definitions of their own, since the next `malloc`
//! may be another allocator's.

use super::{alloc_rarely, free_rarely, resize_rarely};
use crate::caller::Caller;
use crate::elf::objects;
use crate::next;
use core::ffi::c_void;
use core::sync::atomic::Ordering::Relaxed;
use heaptape_wire::Op;

/// Returns whether another allocator calls these functions on behalf of a call that is recorded
/// already: one whose functions were found after this library's. It may define some of them only,
/// and end in a jump, and then the return address is in this library.
#[cold]
#[inline(never)]
fn is_inner(caller: Caller) -> bool {
    // SAFETY: `caller` is the stub's.
    let from = unsafe { caller.return_address() };
    let start = |address: usize| objects::find(address).map(|object| object.start);
    let Some(of) = start(from) else { return false };
    let is_of = |address: *mut c_void| start(address as usize) == Some(of);
    let [own, libc] = [is_inner as *mut c_void, next::pointers::__libc_free.load(Relaxed)];
    // Which of them the allocator defines doesn't matter: all define `free`.
    is_of(own) || (is_of(next::pointers::free.load(Relaxed)) && !is_of(libc))
}

/// Implements the functions that allocate. One copy serves all of them.
#[inline(never)]
fn alloc(op: Op, size: usize, caller: Caller, call: &dyn Fn() -> *mut u8) -> *mut u8 {
    if is_inner(caller) { call() } else { alloc_rarely(op, size, caller, call) }
}

/// The body of `__libc_malloc`.
pub(crate) unsafe extern "C" fn libc_malloc(size: usize, caller: Caller) -> *mut u8 {
    // SAFETY: the arguments are the program's, passed on unchanged.
    alloc(Op::MALLOC, size, caller, &|| unsafe { next::__libc_malloc(size) })
}

/// The body of `__libc_calloc`.
pub(crate) unsafe extern "C" fn libc_calloc(count: usize, size: usize, caller: Caller) -> *mut u8 {
    // SAFETY: the arguments are the program's, passed on unchanged. An overflow makes it fail, so
    // that the size is not used.
    alloc(Op::CALLOC, count.wrapping_mul(size), caller, &|| unsafe { next::__libc_calloc(count, size) })
}

/// The body of `__libc_realloc`.
pub(crate) unsafe extern "C" fn libc_realloc(block: *mut u8, size: usize, caller: Caller) -> *mut u8 {
    // SAFETY: the arguments are the program's, passed on unchanged.
    let call = || unsafe { next::__libc_realloc(block, size) };
    if is_inner(caller) { call() } else { resize_rarely(block, size, caller, [Op::REALLOC, Op::RESIZE], &call) }
}

/// The body of `__libc_memalign`.
pub(crate) unsafe extern "C" fn libc_memalign(align: usize, size: usize, caller: Caller) -> *mut u8 {
    // SAFETY: the arguments are the program's, passed on unchanged.
    alloc(Op::MEMALIGN, size, caller, &|| unsafe { next::__libc_memalign(align, size) })
}

/// The body of `__libc_valloc`.
pub(crate) unsafe extern "C" fn libc_valloc(size: usize, caller: Caller) -> *mut u8 {
    // SAFETY: the arguments are the program's, passed on unchanged.
    alloc(Op::VALLOC, size, caller, &|| unsafe { next::__libc_valloc(size) })
}

/// The body of `__libc_pvalloc`.
pub(crate) unsafe extern "C" fn libc_pvalloc(size: usize, caller: Caller) -> *mut u8 {
    // SAFETY: the arguments are the program's, passed on unchanged.
    alloc(Op::PVALLOC, size, caller, &|| unsafe { next::__libc_pvalloc(size) })
}

/// The body of `__libc_free`.
pub(crate) unsafe extern "C" fn libc_free(block: *mut u8, caller: Caller) {
    // SAFETY: the arguments are the program's, passed on unchanged.
    let call = || unsafe { next::__libc_free(block) };
    if is_inner(caller) { call() } else { free_rarely(Op::FREE, block, caller, &call) }
}

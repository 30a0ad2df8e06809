//! What only a program itself knows about its memory, for heaptape: blocks of its own
//! arenas and pools, labels of threads, and marks in time. It is `heaptape.h` for Rust, over
//! the same symbol, without anything to link. While the program is not recorded, each call is a
//! load and two branches. On other systems than Linux for x86-64 and aarch64 the calls do nothing.
//!
//! A text has at most 56 bytes; a longer one is truncated.
//!
//! # Examples
//!
//! ```
//! let _label = heaptape_api::label(c"request");
//! heaptape_api::mark(c"loaded");
//! ```
#![warn(missing_docs)]
#![no_std]

#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux", not(miri)))]
mod library;
#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux", not(miri))))]
mod library {
    /// Nothing is recorded on other systems.
    #[inline(always)]
    pub(crate) fn function() -> Option<unsafe extern "C" fn(*const crate::Report)> {
        None
    }
}

use core::ffi::{CStr, c_char, c_void};
use core::marker::PhantomData;
use core::ptr::{null, null_mut};

/// A report, as `heaptape.h` describes it.
#[repr(C)]
struct Report {
    kind: u32,
    text: *const c_char,
    block: *const c_void,
    size: usize,
    old: *const c_void,
}

#[inline(always)]
fn report(kind: u32, text: Option<&CStr>, block: *const u8, size: usize, old: *const u8) {
    if let Some(function) = library::function() {
        let text = text.map_or(null(), CStr::as_ptr);
        let report = Report { kind, text, block: block.cast(), size, old: old.cast() };
        // SAFETY: the description and its text live until the function returns; it copies both, and
        // only notes the addresses of blocks.
        unsafe { function(&raw const report) }
    }
}

/// Reports a new block of a heap of the program, or of no named one.
#[inline(always)]
pub fn alloc(heap: Option<&CStr>, block: *const u8, size: usize) {
    report(1, heap, block, size, null_mut());
}

/// Reports a block that replaces `old`, at the same address or at another one.
#[inline(always)]
pub fn realloc(heap: Option<&CStr>, old: *const u8, block: *const u8, size: usize) {
    report(2, heap, block, size, old);
}

/// Reports that a block is free, before its memory may be used again.
#[inline(always)]
pub fn free(block: *const u8) {
    report(3, None, block, 0, null());
}

/// Reports that all reported blocks are free that begin in a range.
#[inline(always)]
pub fn free_range(start: *const u8, size: usize) {
    report(4, None, start, size, null());
}

/// Reports that all blocks of a heap are free.
#[inline(always)]
pub fn reset(heap: &CStr) {
    report(5, Some(heap), null(), 0, null());
}

/// Reports that parts of a block, which an allocator returned, are blocks of their own from now on.
/// It counts as 0 bytes, and the blocks in it are free when it is.
#[inline(always)]
pub fn pool(block: *const u8) {
    report(6, None, block, 0, null());
}

/// Sets a mark: a named point in time.
#[inline(always)]
pub fn mark(name: &CStr) {
    report(7, Some(name), null(), 0, null());
}

/// A label of the calling thread, which is removed when this is dropped.
#[derive(Debug)]
pub struct Label(PhantomData<*const ()>);

/// Sets a label: all events of the calling thread have it until the result is dropped.
#[must_use = "the label is removed when this is dropped"]
#[inline(always)]
pub fn label(name: &CStr) -> Label {
    report(8, Some(name), null(), 0, null());
    Label(PhantomData)
}

impl Drop for Label {
    #[inline(always)]
    fn drop(&mut self) {
        report(9, None, null(), 0, null());
    }
}

/// Continues the recording of the calling thread.
#[inline(always)]
pub fn start() {
    report(10, None, null(), 0, null());
}

/// Stops the recording of the calling thread. A block that is freed meanwhile counts as live.
#[inline(always)]
pub fn stop() {
    report(11, None, null(), 0, null());
}

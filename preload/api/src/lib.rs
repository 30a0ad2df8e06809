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

use core::ffi::{CStr, c_char, c_int, c_void};
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

/// What the loader tells of an object (`dl_iterate_phdr(3)`).
#[repr(C)]
struct Object {
    base: usize,
    name: *const c_char,
    segments: *const Segment,
    count: u16,
}

/// A program header.
#[repr(C)]
struct Segment {
    kind: u32,
    flags: u32,
    offset: usize,
    start: usize,
    physical: usize,
    file_size: usize,
    size: usize,
    alignment: usize,
}

type Look = unsafe extern "C" fn(*const Object, usize, *mut *mut c_void) -> c_int;
type Iterate = unsafe extern "C" fn(Look, *mut *mut c_void) -> c_int;

/// Returns `dl_iterate_phdr`; `None` in a program without it.
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux", not(miri)))]
fn objects() -> Option<Iterate> {
    let address: *mut c_void;
    // SAFETY: the instructions read a word of the program's table of addresses. The linker keeps 0
    // there if nothing defines the symbol.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        core::arch::asm!(".weak dl_iterate_phdr", "mov {}, qword ptr [rip + dl_iterate_phdr@GOTPCREL]",
            out(reg) address, options(pure, readonly, nostack, preserves_flags));
        #[cfg(target_arch = "aarch64")]
        core::arch::asm!(".weak dl_iterate_phdr", "adrp {0}, :got:dl_iterate_phdr",
            "ldr {0}, [{0}, :got_lo12:dl_iterate_phdr]",
            out(reg) address, options(pure, readonly, nostack, preserves_flags));
        // SAFETY: null or that function.
        core::mem::transmute(address)
    }
}

/// Looks for the note of the recording library in an object. It says where the function's address is.
unsafe extern "C" fn look(object: *const Object, _size: usize, found: *mut *mut c_void) -> c_int {
    // SAFETY: the loader's description of an object that is loaded, whose notes can be read.
    unsafe {
        let Object { base, segments, count, .. } = object.read();
        for index in 0..usize::from(count) {
            let segment = &*segments.add(index);
            if segment.kind != 4 || segment.alignment != 4 {
                continue;
            }
            let (mut note, mut left) = ((base + segment.start) as *const u32, segment.size / 4);
            // The sizes of the name and of the text, a type, the name, the text.
            while left >= 7 {
                let words = note.cast::<[u32; 7]>().read();
                if words[0] == 9 && words[3..6] == [0x7061_6568, 0x6570_6174, 0] {
                    let place = note.add(6).byte_offset(words[6].cast_signed() as isize);
                    *found = place.cast::<*mut c_void>().read_unaligned();
                    return 1;
                }
                let size = 3 + (words[0] as usize).div_ceil(4) + (words[1] as usize).div_ceil(4);
                if size > left {
                    break;
                }
                (note, left) = (note.add(size), left - size);
            }
        }
    }
    0
}

/// The function of the recording library; `None` while the program is not recorded. Linkers bind the
/// name of one that they do not see to null, and `dlsym` allocates, so the first call looks for the
/// library's note.
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux", not(miri)))]
#[inline(always)]
fn function() -> Option<unsafe extern "C" fn(*const Report)> {
    use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};
    /// The function; the address of this word if there is none.
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
    #[cold]
    fn find() -> *mut c_void {
        let mut found = null_mut();
        if let Some(objects) = objects() {
            // SAFETY: the function calls the other one for each object.
            unsafe { objects(look, &raw mut found) };
        }
        let found = if found.is_null() { FOUND.as_ptr().cast() } else { found };
        FOUND.store(found, Relaxed);
        found
    }
    let known = FOUND.load(Relaxed);
    let known = if known.is_null() { find() } else { known };
    let function = if core::ptr::eq(known, FOUND.as_ptr().cast()) { null_mut() } else { known };
    // SAFETY: null or that function, whose one argument `heaptape.h` describes.
    unsafe { core::mem::transmute(function) }
}

#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux", not(miri))))]
#[inline(always)]
fn function() -> Option<unsafe extern "C" fn(*const Report)> {
    None
}

#[inline(always)]
fn report(kind: u32, text: Option<&CStr>, block: *const u8, size: usize, old: *const u8) {
    if let Some(function) = function() {
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

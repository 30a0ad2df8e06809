//! Finds the library that records the program. Linkers bind the name of a function that they do not
//! see to null, and `dlsym` allocates, so the first call looks for the library by its name. A note in
//! it says where the address is. `heaptape.h` does the same.

use crate::Report;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

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

/// Looks for the note of the recording library in an object that has its name. It says where the
/// function's address is.
unsafe extern "C" fn look(object: *const Object, _size: usize, found: *mut *mut c_void) -> c_int {
    // SAFETY: the loader's description of an object that is loaded. The library's notes can be read.
    unsafe {
        let Object { base, name, segments, count } = object.read();
        if name.is_null() || !CStr::from_ptr(name).to_bytes().windows(11).any(|part| part == b"libheaptape") {
            return 0;
        }
        for index in 0..usize::from(count) {
            let segment = &*segments.add(index);
            if segment.kind != 4 || segment.alignment != 4 {
                continue;
            }
            let (mut note, mut left) = (base.wrapping_add(segment.start) as *const u32, segment.size / 4);
            // The sizes of the name and of the text, a type, the name, the text.
            while left >= 7 {
                let words = note.cast::<[u32; 7]>().read_unaligned();
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

/// The function of the recording library; `None` while the program is not recorded.
#[inline(always)]
pub(crate) fn function() -> Option<unsafe extern "C" fn(*const Report)> {
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

//! Which ELF object an address lies in, and where its unwind tables are: `_dl_find_object` (glibc 2.35 and later), which takes no lock
//! and may be called from a signal handler. Older libcs: the process's map as the kernel tells it, read when an unknown address comes up;
//! that takes no lock either.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// An object and its table.
#[derive(Clone, Copy, Debug)]
pub struct Object {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// The loader's record; null when it is not known.
    pub link_map: *mut c_void,
    /// `.eh_frame_hdr`; 0 when there is none.
    pub unwind_header: u64,
}

/// What glibc fills in (`struct dl_find_object`).
#[repr(C)]
struct Found {
    flags: u64,
    start: *mut c_void,
    end: *mut c_void,
    link_map: *mut c_void,
    eh_frame: *mut c_void,
    reserved: [u64; 7],
}

type Finder = unsafe extern "C" fn(*mut c_void, *mut Found) -> c_int;
static FINDER: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Names the loader's function (`_dl_find_object`) or none; once, with the allocator.
pub fn find_loader(finder: *mut c_void) {
    FINDER.store(finder, Relaxed);
}

/// The object of an address.
pub fn find(address: usize) -> Option<Object> {
    let finder = FINDER.load(Relaxed);
    if finder.is_null() {
        return super::maps::find(address);
    }
    let nothing = core::ptr::null_mut;
    let mut found = Found {
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
        link_map: found.link_map,
        unwind_header: found.eh_frame as u64,
    })
}

/// Start of the loader's `struct link_map`, public in `<link.h>`.
#[repr(C)]
struct LinkMap {
    bias: u64,
    name: *const c_char,
}

/// Load bias and name as the loader knows them; the main program's name is empty.
///
/// # Safety
/// The object must be mapped and its `link_map` come from [`find`].
pub unsafe fn bias_and_name(object: &Object) -> (u64, &'static [u8]) {
    if object.link_map.is_null() {
        return (object.start, b"");
    }
    // SAFETY: the loader keeps its record as long as the object is mapped.
    unsafe {
        let map = object.link_map.cast::<LinkMap>();
        let name = (*map).name;
        ((*map).bias, if name.is_null() { b"" } else { CStr::from_ptr(name).to_bytes() })
    }
}

/// The build-id note of an object, found through its program headers; empty when it has none or its headers are not mapped.
///
/// # Safety
/// The object must be mapped.
pub unsafe fn build_id(object: &Object, bias: u64) -> &'static [u8] {
    const PT_NOTE: u32 = 4;
    const NT_GNU_BUILD_ID: u32 = 3;
    let inside = |at: u64, bytes: u64| at >= object.start && at.saturating_add(bytes) <= object.end;
    // SAFETY: every read is checked to lie between the object's first and last address, whose first page (the ELF header) and note
    // segments are mapped readable by the loader's rules.
    unsafe {
        let word = |at: u64| (at as *const u32).read_unaligned();
        let long = |at: u64| (at as *const u64).read_unaligned();
        let half = |at: u64| u64::from((at as *const u16).read_unaligned());
        if !inside(object.start, 64) || word(object.start) != u32::from_le_bytes(*b"\x7fELF") {
            return b"";
        }
        let (table, size, count) =
            (object.start + long(object.start + 32), half(object.start + 54), half(object.start + 56));
        if size < 56 || !inside(table, size * count) {
            return b"";
        }
        for index in 0..count {
            let header = table + index * size;
            if word(header) != PT_NOTE {
                continue;
            }
            let (mut at, length) = (bias.wrapping_add(long(header + 16)), long(header + 40));
            let end = at.saturating_add(length);
            if !inside(at, length) {
                continue;
            }
            while at + 12 <= end {
                let (name, description, kind) = (u64::from(word(at)), u64::from(word(at + 4)), word(at + 8));
                let text = at + 12 + name.next_multiple_of(4);
                if text.saturating_add(description) > end {
                    break;
                }
                if kind == NT_GNU_BUILD_ID && name == 4 && word(at + 12) == u32::from_le_bytes(*b"GNU\0") {
                    return core::slice::from_raw_parts(text as *const u8, description as usize);
                }
                at = text + description.next_multiple_of(4);
            }
        }
    }
    b""
}

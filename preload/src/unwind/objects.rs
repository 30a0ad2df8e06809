//! Finds the ELF object that holds an address, and its unwind tables, by `_dl_find_object` (glibc
//! 2.35 and later), which takes no lock and may be called from a signal handler. With older libcs
//! the kernel's map of the process is read when an unknown address comes up, which takes no lock
//! either.

use super::tables::{PAGE, Tables};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// An ELF object in the address space.
#[derive(Clone, Copy, Debug)]
pub struct Object {
    /// The first address of the object.
    pub start: u64,
    /// The first address after the object.
    pub end: u64,
    /// The loader's `struct link_map`; null if it is not known.
    pub link_map: *mut c_void,
    /// The address of `.eh_frame_hdr`; 0 if there is none.
    pub unwind_header: u64,
}

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
/// allocator is resolved.
pub fn find_loader(finder: *mut c_void) {
    FINDER.store(finder, Relaxed);
}

/// Returns the object that holds an address.
pub fn find(address: usize) -> Option<Object> {
    let finder = FINDER.load(Relaxed);
    if finder.is_null() {
        return super::maps::find(address);
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
        link_map: found.link_map,
        unwind_header: found.eh_frame as u64,
    })
}

/// The start of the loader's `struct link_map`, which `<link.h>` publishes.
#[repr(C)]
struct LinkMap {
    bias: u64,
    name: *const c_char,
}

/// Returns the load bias and the name as the loader knows them. The main program's name is empty.
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

/// A build-id and its length in bytes.
pub type BuildId = ([u8; heaptape_wire::modules::MAX_BUILD_ID], usize);

/// Returns the build-id of an object, which is found through its program headers. The length is 0
/// if there is none, or if the headers cannot be read: a program may hide them.
pub fn build_id(object: &Object, bias: u64) -> BuildId {
    find_build_id(object, bias).unwrap_or_default()
}

fn find_build_id(object: &Object, bias: u64) -> Option<BuildId> {
    const PT_NOTE: u64 = 4;
    const NT_GNU_BUILD_ID: u64 = 3;
    const ELF: u64 = u32::from_le_bytes(*b"\x7fELF") as u64;
    const GNU: u64 = u32::from_le_bytes(*b"GNU\0") as u64;
    let at = |address: u64| Tables::new(object, address);
    let start = |offset: u64| at(object.start.wrapping_add(offset));
    (start(0).recheck().number(4)? == ELF).then_some(())?;
    let (table, size, count) = (start(32).number(8)?, start(54).number(2)?, start(56).number(2)?);
    for index in 0..count {
        let header = object.start.wrapping_add(table).wrapping_add(index * size);
        if at(header).number(4)? != PT_NOTE {
            continue;
        }
        let first = bias.wrapping_add(at(header + 16).number(8)?);
        let mut note = at(first).until(first.saturating_add(at(header + 40).number(8)?));
        // The note is nearly always in the page of the headers.
        if first / PAGE != object.start / PAGE {
            note = note.recheck();
        }
        while let (Some(name), Some(length), Some(kind)) = (note.number(4), note.number(4), note.number(4)) {
            let text = note.at.saturating_add(name.next_multiple_of(4));
            if kind == NT_GNU_BUILD_ID && name == 4 && note.number(4)? == GNU {
                let (mut id, _) = BuildId::default();
                let length = (length as usize).min(id.len());
                for byte in &mut id[..length] {
                    *byte = note.byte()?;
                }
                return Some((id, length));
            }
            note.at = text.saturating_add(length.next_multiple_of(4));
        }
    }
    None
}

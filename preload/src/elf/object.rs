//! An ELF object in the address space.

use super::program;
use core::ffi::{CStr, c_char, c_void};
use heaptape_wire::modules::UNNAMED;

/// An ELF object in the address space, or the run of its adjacent segments that holds an address
/// ([`program`]).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Object {
    /// The first address of the run.
    pub start: u64,
    /// The first address after the run.
    pub end: u64,
    /// Whether the object is the program itself, whose headers the kernel names.
    pub is_program: bool,
    /// The loader's `struct link_map`; null if it is not known.
    pub link_map: *mut c_void,
    /// The load bias, where there is no `link_map`.
    pub bias: u64,
    /// The address of `.eh_frame_hdr`; 0 if there is none.
    pub unwind_header: u64,
}

impl Object {
    /// Returns the lowest address of the object and the first one after it. They are not fields,
    /// since rules are compiled on stacks of 2 KiB.
    pub(crate) fn bounds(&self) -> (u64, u64) {
        if self.is_program { program::bounds() } else { (self.start, self.end) }
    }
}

/// The start of the loader's `struct link_map`, which `<link.h>` publishes.
#[repr(C)]
struct LinkMap {
    bias: u64,
    name: *const c_char,
}

/// Returns the load bias and the name as the loader knows them. The main program's name is empty, and
/// that of an object which the kernel alone has named is [`UNNAMED`].
///
/// # Safety
/// The object must be mapped and its `link_map` be the loader's.
pub(crate) unsafe fn bias_and_name(object: &Object) -> (u64, &'static [u8]) {
    if object.link_map.is_null() {
        return (object.bias, if object.is_program { b"" } else { UNNAMED });
    }
    // SAFETY: the loader keeps its record as long as the object is mapped.
    unsafe {
        let map = object.link_map.cast::<LinkMap>();
        let name = (*map).name;
        ((*map).bias, if name.is_null() { b"" } else { CStr::from_ptr(name).to_bytes() })
    }
}

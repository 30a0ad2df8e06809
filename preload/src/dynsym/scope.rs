//! The scope of a library that was opened by `dlopen`: the library and what it needs, in the order
//! in which the loader searches them. An object that was loaded with another library has the scope
//! of that one.

use super::{AT_START, Object, Wanted, dynamic_section, holds};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::Ordering::Relaxed;

/// The most objects that are considered.
const MAX_OBJECTS: usize = 256;

#[derive(Clone, Copy)]
struct Loaded {
    base: u64,
    dynamic: *const [u64; 2],
    name: *const c_char,
    holds_caller: bool,
}

struct Search<'a> {
    caller: usize,
    wanted: &'a mut [Wanted],
    loaded: [Loaded; MAX_OBJECTS],
    count: usize,
}

/// Looks up the names without a definition, for a caller in a library that was opened after the
/// start. May take the loader's lock.
pub(crate) fn find(caller: usize, wanted: &mut [Wanted]) {
    const NONE: Loaded = Loaded { base: 0, dynamic: core::ptr::null(), name: core::ptr::null(), holds_caller: false };
    let mut search = Search { caller, wanted, loaded: [NONE; MAX_OBJECTS], count: 0 };
    // SAFETY: the callback gets what libc describes and our own structure, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(under_lock), (&raw mut search).cast()) };
}

/// Runs for the first object and does the whole search, because the loader keeps its lock, which
/// one thread may take twice, so that no object is unmapped.
unsafe extern "C" fn under_lock(_: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    // SAFETY: `find` passes its own structure.
    unsafe {
        libc::dl_iterate_phdr(Some(collect), search);
        (*search.cast::<Search<'_>>()).find_in_scope();
    }
    1
}

unsafe extern "C" fn collect(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    // SAFETY: `under_lock` passes on the structure of `find`; the loader describes an object that
    // stays mapped while it holds its lock.
    unsafe {
        let (info, search) = (&*info, &mut *search.cast::<Search<'_>>());
        let Some(dynamic) = dynamic_section(info) else { return 0 };
        let Some(entry) = search.loaded.get_mut(search.count) else { return 1 };
        let holds_caller = holds(info, search.caller);
        *entry = Loaded { base: info.dlpi_addr, dynamic, name: info.dlpi_name, holds_caller };
        search.count += 1;
    }
    0
}

impl Search<'_> {
    fn loaded(&self) -> &[Loaded] {
        &self.loaded[..self.count]
    }

    /// Finds the first library, opened after the start, whose scope holds the caller, and looks the
    /// names up there.
    ///
    /// # Safety
    /// The objects must be mapped.
    unsafe fn find_in_scope(&mut self) {
        let first = AT_START.load(Relaxed).min(self.count);
        // SAFETY: the objects are mapped, as the caller ensures.
        unsafe {
            for root in first..self.count {
                let (order, count) = self.order(root);
                let order = &order[..count];
                if !order.iter().any(|index| self.loaded[usize::from(*index)].holds_caller) {
                    continue;
                }
                for index in order {
                    let Loaded { base, dynamic, .. } = self.loaded[usize::from(*index)];
                    let object = Object::read(base, dynamic);
                    for wanted in self.wanted.iter_mut().filter(|wanted| wanted.found.is_null()) {
                        wanted.found = object.symbol(wanted);
                    }
                }
                return;
            }
        }
    }

    /// Returns a library and everything that it needs, level by level, and their number.
    ///
    /// # Safety
    /// The objects must be mapped.
    unsafe fn order(&self, root: usize) -> ([u8; MAX_OBJECTS], usize) {
        const DT_NEEDED: u64 = 1;
        let (mut order, mut count, mut next) = ([0u8; MAX_OBJECTS], 1, 0);
        let mut seen = [false; MAX_OBJECTS];
        (order[0], seen[root]) = (root as u8, true);
        while next < count {
            let Loaded { base, dynamic, .. } = self.loaded[usize::from(order[next])];
            next += 1;
            // SAFETY: the objects are mapped, as the caller ensures: the section ends with a zero
            // tag, and its strings lie in the object's table.
            unsafe {
                let object = Object::read(base, dynamic);
                let mut entry = dynamic;
                while !object.strings.is_null() && (*entry)[0] != 0 {
                    let [tag, value] = *entry;
                    entry = entry.add(1);
                    if tag != DT_NEEDED {
                        continue;
                    }
                    let name = object.string(value as usize);
                    let found = self.loaded().iter().position(|loaded| loaded.is_called(name));
                    if let Some(found) = found.filter(|found| !seen[*found]) {
                        (order[count], seen[found]) = (found as u8, true);
                        count += 1;
                    }
                }
            }
        }
        (order, count)
    }
}

impl Loaded {
    /// Returns whether the loader would use this object where a library of this name is needed.
    ///
    /// # Safety
    /// The object must be mapped.
    unsafe fn is_called(&self, name: &CStr) -> bool {
        // SAFETY: the objects are mapped, as the caller ensures; names are strings of the loader's.
        unsafe {
            let path = if self.name.is_null() { c"" } else { CStr::from_ptr(self.name) };
            let file = path.to_bytes().rsplit(|byte| *byte == b'/').next();
            if path == name || file == Some(name.to_bytes()) {
                return true;
            }
            Object::read(self.base, self.dynamic).name() == Some(name)
        }
    }
}

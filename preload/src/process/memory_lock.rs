//! `mlockall`, which also locks the memory of this library.

use crate::{next, session, sys};
use core::ffi::c_int;

/// The body of `mlockall`. The library's memory must not count against the program's limit, so what
/// is mapped by now is unlocked. What the library maps later is unlocked then.
pub(crate) unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    // SAFETY: the arguments are the program's, passed on unchanged.
    let result = unsafe { next::mlockall(flags) };
    if result == 0
        && let Some(area) = session::area()
    {
        sys::keeping_errno(|| area.unlock());
    }
    result
}

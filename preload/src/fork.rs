//! Fork and `dlclose`, whose moments must be known. `vfork`, `posix_spawn` and `clone` are never wrapped: their child runs in the parent's
//! memory while the parent's thread stands still, so its events belong to the parent's ring.

use crate::unwind::rules;
use crate::{attach, guard, intern, real, stamp, sys, thread, tls};
use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering::Relaxed;

/// Forks by `real`. The child attaches by itself at its first event; the parent's time of the fork travels in its memory.
fn forking(real: impl FnOnce() -> c_int) -> c_int {
    let Some(area) = attach::area() else { return real() };
    attach::FORK_TICK.store(stamp::now(), Relaxed);
    let block = tls::get();
    // SAFETY: the thread's own block, mapped for ever.
    let interrupts = guard::is_traced(block) && unsafe { (*block).gate } & thread::BUSY != 0;
    let result = real();
    if result == 0 && interrupts {
        // A signal handler forked while a hook of this thread was at work. When the handler returns, the hook goes on in the child,
        // where the area is not mapped: give it pages to write to that nobody reads.
        let (rights, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
        sys::map(area.base(), area.layout().total as usize, rights, flags | libc::MAP_FIXED, -1);
    }
    result
}

/// `fork`.
pub unsafe extern "C" fn fork() -> c_int {
    // SAFETY: the program's own call.
    forking(|| unsafe { real::fork() })
}

/// `_Fork`, which runs no handlers.
pub unsafe extern "C" fn underscore_fork() -> c_int {
    // SAFETY: the program's own call.
    forking(|| unsafe { real::_Fork() })
}

/// `dlclose`: afterwards other code may stand where the closed module was, so rules, memos and nodes of vanished modules are dropped.
pub unsafe extern "C" fn dlclose(handle: *mut c_void) -> c_int {
    if attach::area().is_none() {
        // SAFETY: the program's own call.
        return unsafe { real::dlclose(handle) };
    }
    rules::closing();
    // SAFETY: the program's own call.
    let result = unsafe { real::dlclose(handle) };
    let gone = sys::keeping_errno(intern::retire_gone_modules);
    rules::closed(gone);
    result
}

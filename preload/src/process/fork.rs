//! Fork and `dlclose`, which the library must know of when they happen. `vfork` and `clone` are
//! never wrapped, and neither is what `posix_spawn` does: their child runs in the parent's memory
//! while the parent's thread waits, so its events belong to the parent's ring.

use crate::boot::{attach, inherited};
use crate::elf::tables;
use crate::hooks::operators;
use crate::process::exec;
use crate::session;
use crate::stack::modules;
use crate::stack::unwind::rules;
use crate::sys::{self, Need};
use crate::thread::{Activation, FORKING, ThreadState};
use crate::{dynsym, next, thread, timestamp};
use core::ffi::{c_int, c_long, c_void};
use core::sync::atomic::Ordering::Relaxed;

/// Arguments of a call that is passed on: at most those of `syscall`.
pub(crate) type Arguments = [usize; 7];

/// A call of a next definition. Closures would be copied into each function that takes one.
pub(crate) type NextCall = fn(&Arguments) -> c_long;

/// Forks by `call`. The child attaches by itself at its first event, as a new program does
/// ([`crate::boot::claim`]), and gets rings of its own. It finds the parent's time of the fork in its
/// memory.
///
/// The call may come from a signal handler that interrupted a hook of this thread. That hook
/// continues in the child when the handler returns, so the child keeps the state of this thread;
/// see [`inherited`].
#[inline(never)]
pub(crate) fn forking(call: NextCall, arguments: &Arguments) -> c_long {
    let state = thread::get();
    if session::area().is_none() || !thread::is_traced(state) {
        let result = call(arguments);
        session::note_fork(result == 0);
        if result == 0 && attach::has_given_up() {
            sys::keeping_errno(exec::note_forked);
        }
        return result;
    }
    attach::FORK_TICK.store(timestamp::now(), Relaxed);
    // SAFETY: the thread's own state, mapped for ever, which only this thread writes.
    let activation = unsafe { Activation::read(&raw const (*state).activation) };
    let is_idle = activation.low_byte() == thread::READY;
    let mut fields = [0u8; thread::BYTES_BEFORE_CACHE];
    // SAFETY: the state is mapped, and these are its first fields.
    unsafe { core::ptr::copy_nonoverlapping(state.cast::<u8>(), fields.as_mut_ptr(), fields.len()) };
    let is_allowed = Need::MAP.is_allowed();
    let is_kept = !is_idle && is_allowed && advise(state, libc::MADV_KEEPONFORK);
    // A handler that runs before a fork may fork, too.
    let is_marked = is_kept && !activation.has(FORKING);
    if is_marked {
        mark_forking(state, true);
    }
    let result = call(arguments);
    session::note_fork(result == 0);
    if result != 0 {
        // A fork that this library does not see must not use this time.
        attach::FORK_TICK.store(0, Relaxed);
        // The parent's events from here on must not seem to be before the fork, so its next event
        // gets a timestamp.
        // SAFETY: the thread's own state, which stays mapped.
        unsafe { (&raw mut (*state).writer.until_timestamp).write_volatile(0) };
        if is_marked {
            advise(state, libc::MADV_WIPEONFORK);
            mark_forking(state, false);
        }
    } else if is_allowed && session::area().is_none() {
        // SAFETY: the thread's own state, which is mapped in the child too.
        unsafe {
            if !is_kept {
                // The handler may have run right before a hook marked itself as running.
                core::ptr::copy_nonoverlapping(fields.as_ptr(), state.cast::<u8>(), fields.len());
            }
            inherited::leave_parent(state);
        }
    }
    result
}

/// Marks or unmarks the calling thread's state as one that a child keeps.
fn mark_forking(state: *mut ThreadState, is_forking: bool) {
    // SAFETY: the thread's own state, which stays mapped.
    unsafe { Activation::set(&raw mut (*state).activation, FORKING, is_forking) };
}

/// Advises the kernel about a state.
fn advise(state: *mut ThreadState, advice: i32) -> bool {
    sys::advise(state.cast(), thread::STATE_BYTES, advice)
}

/// The body of `fork`.
pub(crate) unsafe extern "C" fn fork() -> c_int {
    // SAFETY: the arguments are the program's, passed on unchanged.
    forking(|_| c_long::from(unsafe { next::fork() }), &[0; 7]) as c_int
}

/// The body of `_Fork`, which runs no handlers.
pub(crate) unsafe extern "C" fn underscore_fork() -> c_int {
    // SAFETY: the arguments are the program's, passed on unchanged.
    forking(|_| c_long::from(unsafe { next::_Fork() }), &[0; 7]) as c_int
}

/// The body of `dlclose`. Afterwards other code may be at the addresses of the closed modules, so
/// the definitions of the operators are looked up again.
pub(crate) unsafe extern "C" fn dlclose(handle: *mut c_void) -> c_int {
    let unloads = dynsym::unloads();
    // SAFETY: the arguments are the program's, passed on unchanged.
    let result = unsafe { if session::area().is_none() { next::dlclose(handle) } else { dlclose_recorded(handle) } };
    if dynsym::unloads() != unloads {
        operators::forget();
    }
    result
}

/// Closes a library in a recorded process. Rules, stack caches and nodes of unmapped modules are
/// dropped.
unsafe fn dlclose_recorded(handle: *mut c_void) -> c_int {
    // A mark in this frame. When it is overwritten, the call has been left.
    let mut mark = 0;
    let closing = rules::closing(core::hint::black_box(&mut mark));
    // SAFETY: the arguments are the program's, passed on unchanged.
    let result = unsafe { next::dlclose(handle) };
    let gone = sys::keeping_errno(modules::retire_gone);
    if gone {
        tables::forget_pages();
    }
    core::hint::black_box(&mark);
    rules::closed(&closing, gone);
    result
}

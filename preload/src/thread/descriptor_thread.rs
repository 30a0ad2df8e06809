//! Work that opens descriptors, in a process with other threads. These must not see the
//! descriptors, as a number that `dup` does not return to them, or one that they close. So the work
//! is done by a helper thread with its own descriptor table, while the calling thread waits.

use crate::{arch, session, sys, timestamp};
use core::ffi::c_void;

/// Size of the helper's stack in bytes.
const STACK: usize = 64 << 10;

/// Runs `body` where no other thread sees its descriptors. Does not run it if that is not possible.
pub fn run<F: FnMut()>(mut body: F) {
    // SAFETY: `call` gets the address of the closure whose type it is made for, which lives until
    // the helper has ended.
    unsafe { run_function(call::<F>, (&raw mut body).cast()) };
}

/// Calls the closure at an address.
///
/// # Safety
/// The address must be that of a closure of this type, which nothing else uses.
unsafe extern "C" fn call<F: FnMut()>(body: *mut c_void) {
    // SAFETY: `run` passes the address of such a closure, and waits.
    unsafe { (*body.cast::<F>())() }
}

/// Calls a function with an argument where no other thread sees its descriptors. A trait object
/// would be simpler, and is larger by a table and a copy of each closure.
///
/// # Safety
/// The function must be sound to call with this argument.
#[inline(never)]
unsafe fn run_function(function: unsafe extern "C" fn(*mut c_void), argument: *mut c_void) {
    // The child of a `vfork` in a process with a session has one thread, and its descriptor table
    // is its own. Without a session, nothing shows whether the process is such a child.
    let is_alone = || session::area().is_some() && sys::pid() != session::pid();
    if timestamp::is_single_threaded() || is_alone() {
        // SAFETY: the caller ensures that the call is sound.
        return unsafe { function(argument) };
    }
    let Some(stack) = sys::map_private(STACK) else { return };
    // The helper must not handle a signal of the process.
    let signals = sys::hold_signals();
    // SAFETY: the helper has the stack for itself, and ends before this call goes on.
    unsafe { arch::run_in_clone(FLAGS, stack.wrapping_add(STACK), function, argument) };
    sys::release_signals(signals);
    sys::unmap(stack, STACK);
}

/// What the helper shares with the process: everything but the descriptors. `CLONE_VFORK` suspends
/// the calling thread meanwhile.
const FLAGS: i32 = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_VFORK;

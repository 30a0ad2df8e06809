//! Work that opens descriptors, in a process with other threads. These must not see the
//! descriptors, as a number that `dup` does not return to them, or one that they close. So the work
//! is done by a helper thread with its own descriptor table, while the calling thread waits.

use crate::{arch, session, sys, timestamp};
use core::ffi::c_void;

/// Size of the helper's stack in bytes.
const STACK: usize = 64 << 10;

/// Runs `body` where no other thread sees its descriptors. Does not run it if that is not possible.
pub fn run(body: impl FnOnce()) {
    // A forked child that has not attached has one thread. So has the child of a `vfork`, whose
    // descriptor table is its own.
    if timestamp::is_single_threaded() || sys::pid() != session::pid() {
        return body();
    }
    let Some(stack) = sys::map_private(STACK) else { return };
    // The helper must not handle a signal of the process.
    let signals = sys::hold_signals();
    let mut body = Some(body);
    // SAFETY: the helper has the stack for itself, and ends before this call goes on.
    unsafe { arch::run_in_clone(FLAGS, stack.wrapping_add(STACK), call(&body), (&raw mut body).cast()) };
    sys::release_signals(signals);
    sys::unmap(stack, STACK);
}

type Body = unsafe extern "C" fn(*mut c_void);

/// Returns the function that runs a body of this type.
fn call<F: FnOnce()>(_: &Option<F>) -> Body {
    unsafe extern "C" fn call<F: FnOnce()>(body: *mut c_void) {
        // SAFETY: `run` gave the address of an `Option<F>`, and waits.
        if let Some(body) = unsafe { (*body.cast::<Option<F>>()).take() } {
            body();
        }
    }
    call::<F>
}

/// What the helper shares with the process: everything but the descriptors. `CLONE_VFORK` suspends
/// the calling thread meanwhile.
const FLAGS: i32 = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_VFORK;

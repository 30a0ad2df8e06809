//! Work that opens descriptors, in a process with other threads. These must not see the
//! descriptors, as a number that `dup` does not return to them, or one that they close. So the work
//! is done by a helper thread with its own descriptor table, while the calling thread waits.

use crate::{arch, session, sys, timestamp};
use core::ffi::c_void;

/// Size of the helper's stack in bytes.
const STACK: usize = 64 << 10;

/// Runs `body` where no other thread sees its descriptors. Does not run it if that is not possible.
pub fn run(mut body: impl FnMut()) {
    run_body(&mut body);
}

fn run_body(mut body: &mut dyn FnMut()) {
    // A forked child that has not attached has one thread. So has the child of a `vfork`, whose
    // descriptor table is its own.
    if timestamp::is_single_threaded() || sys::pid() != session::pid() {
        return body();
    }
    let Some(stack) = sys::map_private(STACK) else { return };
    // The helper must not handle a signal of the process.
    let signals = sys::hold_signals();
    // SAFETY: the helper has the stack for itself, and ends before this call goes on.
    unsafe { arch::run_in_clone(FLAGS, stack.wrapping_add(STACK), call, (&raw mut body).cast()) };
    sys::release_signals(signals);
    sys::unmap(stack, STACK);
}

/// Calls the function whose address is stored at `body`.
unsafe extern "C" fn call(body: *mut c_void) {
    // SAFETY: `run_body` passed the address of such a reference, and waits.
    unsafe { (*body.cast::<&mut dyn FnMut()>())() }
}

/// What the helper shares with the process: everything but the descriptors. `CLONE_VFORK` suspends
/// the calling thread meanwhile.
const FLAGS: i32 = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_VFORK;

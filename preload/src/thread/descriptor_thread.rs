//! Work that opens descriptors, which nobody else must see: other threads as a number that `dup`
//! does not return to them, or one that they close. And when a process closes any descriptor of a
//! file, the kernel drops the locks that the process has on that file (fcntl(2), `F_SETLK`). So the
//! work is done by a helper thread with its own descriptor table and its own working folder, while
//! the calling thread waits.

use crate::sys::{self, Need};
use crate::{arch, timestamp, workspace};
use core::ffi::c_void;

/// Work, and whether it runs in a helper.
#[repr(C)]
struct Work<F> {
    is_apart: bool,
    body: F,
}

/// Runs `body` where no other thread sees its descriptors, unless a sandbox forbids that, with whether
/// it is in a helper. Returns whether that was possible. With `keeps_locks` it may open any file.
pub(crate) fn run<F: FnMut(bool)>(keeps_locks: bool, body: F) -> bool {
    let mut work = Work { is_apart: false, body };
    // SAFETY: `call` gets the address of the work whose type it is made for, which lives until the
    // helper has ended.
    unsafe { run_function(call::<F>, (&raw mut work).cast(), keeps_locks) }
}

/// Does the work at an address.
///
/// # Safety
/// The address must be that of work of this type, which nothing else uses.
unsafe extern "C" fn call<F: FnMut(bool)>(work: *mut c_void) {
    // SAFETY: `run` passes the address of such work, and waits.
    let work = unsafe { &mut *work.cast::<Work<F>>() };
    (work.body)(work.is_apart);
}

/// Calls a function with the address of work where no other thread sees its descriptors. A trait
/// object would be simpler, and is larger by a table and a copy of each closure.
///
/// # Safety
/// The function must be sound to call with this argument.
#[inline(never)]
unsafe fn run_function(function: unsafe extern "C" fn(*mut c_void), work: *mut c_void, keeps_locks: bool) -> bool {
    // A child of `vfork` has its own table, and is one thread. Each may have locks, so only a helper
    // opens any file. Where the program must not be inspected, a helper may be forbidden, too.
    let is_alone = || timestamp::is_single_threaded() || !Need::INSPECT.is_allowed() || sys::has_one_thread();
    if !keeps_locks && is_alone() {
        // SAFETY: the caller ensures that the call is sound.
        unsafe { function(work) };
        return true;
    }
    // The helper must not handle a signal of the process.
    let signals = sys::hold_signals();
    let workspace = workspace::claim_stack();
    if let Some(workspace) = workspace {
        // SAFETY: the flag is the first field of each kind of work.
        unsafe { work.cast::<bool>().write(true) };
        let mut task = Task { function, work };
        // SAFETY: the helper has the stack for itself, and ends before this call goes on.
        unsafe { arch::run_in_clone(FLAGS, workspace.end_of_stack(), begin, (&raw mut task).cast()) };
        workspace.release();
    }
    sys::release_signals(signals);
    workspace.is_some()
}

/// What the helper does.
struct Task {
    function: unsafe extern "C" fn(*mut c_void),
    work: *mut c_void,
}

/// Begins the helper's work. A process without a free descriptor has one here: that of its copy of
/// the standard input.
unsafe extern "C" fn begin(task: *mut c_void) {
    sys::close(0);
    // SAFETY: `run_function` passes its own task.
    unsafe {
        let Task { function, work } = &*task.cast::<Task>();
        function(*work);
    }
}

/// What the helper shares with the process: everything but the descriptors and the working folder.
/// `CLONE_VFORK` suspends the calling thread meanwhile, and a tracer sees nothing of the helper: strace
/// would print its calls.
const FLAGS: i32 = libc::CLONE_VM
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_VFORK
    | libc::CLONE_UNTRACED;

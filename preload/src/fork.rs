//! Fork and `dlclose`, whose moments must be known. `vfork` and `clone` are never wrapped (nor is
//! what `posix_spawn` does): their child runs in the parent's memory while the parent's thread
//! stands still, so its events belong to the parent's ring.

use crate::thread::ThreadState;
use crate::unwind::{rules, tables};
use crate::{attach, board, guard, next, operators, sandbox, stack_table, sys, thread, timestamp, tls};
use core::ffi::{c_int, c_long, c_void};
use core::sync::atomic::Ordering::Relaxed;

/// Forks by `real`. The child attaches by itself at its first event; the parent's time of the fork
/// travels in its memory.
///
/// The call may come from a signal handler that interrupted a hook of this thread. When the handler
/// returns in the child, that hook goes on where the area is not mapped and its block reads as
/// zeros: so the child gets both back, as pages that nobody reads. Its own events go to a session
/// of its own.
pub fn forking(real: impl FnOnce() -> c_long) -> c_long {
    let state = tls::get();
    let Some(area) = attach::area().filter(|_| guard::is_traced(state)) else { return real() };
    attach::FORK_TICK.store(timestamp::now(), Relaxed);
    // SAFETY: the thread's own block, mapped for ever, of which only this thread writes.
    let activation = unsafe { (*state).activation };
    let is_busy = activation & thread::BUSY != 0;
    // Whether no hook of this thread was interrupted, so that none goes on in the child.
    let is_idle = activation & 0xff == thread::READY;
    let mut words = [0u8; thread::BYTES_BEFORE_CACHE];
    // SAFETY: as above; the words are the first of the block.
    unsafe { core::ptr::copy_nonoverlapping(state.cast::<u8>(), words.as_mut_ptr(), words.len()) };
    let whole = if is_busy && sandbox::allows(sandbox::MAP) { copied(state) } else { None };
    let result = real();
    // A handler of `pthread_atfork` may have allocated in the child: the child has attached by
    // then, and this thread has a block of the new session.
    let has_attached = result == 0 && is_idle && attach::area().is_some();
    if result == 0 && !has_attached && sandbox::allows(sandbox::MAP) {
        // The first page is shared with the recorder, for the board. A hook that goes on must not
        // write there.
        area.replace_in_child(is_busy);
        board::forked(area.base(), is_busy);
        // SAFETY: as above; the block is mapped in the child too.
        unsafe {
            match whole {
                Some(whole) => core::ptr::copy_nonoverlapping(whole, state.cast::<u8>(), thread::STATE_BYTES),
                None => core::ptr::copy_nonoverlapping(words.as_ptr(), state.cast::<u8>(), words.len()),
            }
        }
        if is_busy {
            attach::leave_old_memory();
        }
        tls::set(core::ptr::null_mut());
    } else if result != 0 {
        // A fork that does not come through here must not take this time for its own.
        attach::FORK_TICK.store(0, Relaxed);
        // What the parent does from here on must not look as if it had been done before the fork:
        // stamp the next event. SAFETY: as above.
        unsafe { (&raw mut (*state).until_timestamp).write_volatile(0) };
    }
    whole.into_iter().for_each(|whole| sys::unmap(whole, thread::STATE_BYTES));
    result
}

/// A copy of a whole block, which a hook that is at work needs.
#[cold]
fn copied(state: *mut ThreadState) -> Option<*mut u8> {
    let copy = sys::map_private(core::ptr::null_mut(), thread::STATE_BYTES, 0)?;
    // SAFETY: both are as long as a block; the hook that uses the block stands still below this
    // call.
    unsafe { core::ptr::copy_nonoverlapping(state.cast::<u8>(), copy, thread::STATE_BYTES) };
    Some(copy)
}

/// `fork`.
pub unsafe extern "C" fn fork() -> c_int {
    // SAFETY: the program's own call.
    forking(|| c_long::from(unsafe { next::fork() })) as c_int
}

/// `_Fork`, which runs no handlers.
pub unsafe extern "C" fn underscore_fork() -> c_int {
    // SAFETY: the program's own call.
    forking(|| c_long::from(unsafe { next::_Fork() })) as c_int
}

/// `dlclose`: afterwards other code may stand where the closed module was, so rules, memos and
/// nodes of vanished modules are dropped.
pub unsafe extern "C" fn dlclose(handle: *mut c_void) -> c_int {
    if attach::area().is_none() {
        // SAFETY: the program's own call.
        return unsafe { next::dlclose(handle) };
    }
    // A mark in this frame: when it is gone, so is the call.
    let mut mark = 0;
    let closing = rules::closing(core::hint::black_box(&mut mark));
    // SAFETY: the program's own call.
    let result = unsafe { next::dlclose(handle) };
    let gone = sys::keeping_errno(stack_table::retire_gone_modules);
    if gone {
        operators::forget();
        tables::forget_pages();
    }
    core::hint::black_box(&mark);
    rules::closed(&closing, gone);
    result
}

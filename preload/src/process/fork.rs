//! Fork and `dlclose`, which the library must know of when they happen. `vfork` and `clone` are
//! never wrapped, and neither is what `posix_spawn` does: their child runs in the parent's memory
//! while the parent's thread waits, so its events belong to the parent's ring.

use crate::boot::attach;
use crate::elf::tables;
use crate::hooks::operators;
use crate::session::{self, board};
use crate::stack::modules;
use crate::stack::unwind::rules;
use crate::sys::{self, Need};
use crate::thread::ThreadState;
use crate::{dynsym, next, thread, timestamp};
use core::ffi::{c_int, c_long, c_void};
use core::sync::atomic::Ordering::Relaxed;

/// Forks by `call`. The child attaches by itself at its first event. It finds the parent's time of
/// the fork in its memory.
///
/// The call may come from a signal handler that interrupted a hook of this thread. When the handler
/// returns in the child, that hook continues where the area is not mapped and its state reads as
/// zeros. So the child gets both back, as pages that nobody reads. Its own events go to a session
/// of its own.
pub fn forking(call: impl FnOnce() -> c_long) -> c_long {
    let state = thread::get();
    let Some(area) = session::area().filter(|_| thread::is_traced(state)) else { return call() };
    attach::FORK_TICK.store(timestamp::now(), Relaxed);
    // SAFETY: the thread's own state, mapped for ever, which only this thread writes.
    let activation = unsafe { (*state).activation };
    let is_busy = activation.has(thread::BUSY);
    // Whether no hook of this thread was interrupted, so that none continues in the child.
    let is_idle = activation.low_byte() == thread::READY;
    let mut fields = [0u8; thread::BYTES_BEFORE_CACHE];
    // SAFETY: the state is mapped, and these are its first fields.
    unsafe { core::ptr::copy_nonoverlapping(state.cast::<u8>(), fields.as_mut_ptr(), fields.len()) };
    let complete = if is_busy && Need::MAP.is_allowed() { copied(state) } else { None };
    let result = call();
    // A handler of `pthread_atfork` may have allocated in the child. The child has attached by
    // then, and this thread has a state in the new session.
    let has_attached = result == 0 && is_idle && session::area().is_some();
    if result == 0 && !has_attached && Need::MAP.is_allowed() {
        // The first page is shared with the recorder, for the board. A hook that continues must not
        // write there.
        area.replace_in_child(is_busy);
        board::forked(area.base(), is_busy);
        // SAFETY: the thread's own state, which is mapped in the child too.
        unsafe {
            match complete {
                Some(complete) => core::ptr::copy_nonoverlapping(complete, state.cast::<u8>(), thread::STATE_BYTES),
                None => core::ptr::copy_nonoverlapping(fields.as_ptr(), state.cast::<u8>(), fields.len()),
            }
        }
        if is_busy {
            attach::use_new_memory();
        }
        thread::set(core::ptr::null_mut());
    } else if result != 0 {
        // A fork that this library does not see must not use this time.
        attach::FORK_TICK.store(0, Relaxed);
        // The parent's events from here on must not seem to be before the fork, so its next event
        // gets a timestamp.
        // SAFETY: the thread's own state, which stays mapped.
        unsafe { (&raw mut (*state).writer.until_timestamp).write_volatile(0) };
    }
    complete.into_iter().for_each(|complete| sys::unmap(complete, thread::STATE_BYTES));
    result
}

/// Copies a complete state, which a running hook needs.
#[cold]
fn copied(state: *mut ThreadState) -> Option<*mut u8> {
    let copy = sys::map_private(core::ptr::null_mut(), thread::STATE_BYTES, 0)?;
    // SAFETY: both are as long as a state; the hook that uses the state is suspended below this
    // call.
    unsafe { core::ptr::copy_nonoverlapping(state.cast::<u8>(), copy, thread::STATE_BYTES) };
    Some(copy)
}

/// The body of `fork`.
pub unsafe extern "C" fn fork() -> c_int {
    // SAFETY: the arguments are the program's, passed on unchanged.
    forking(|| c_long::from(unsafe { next::fork() })) as c_int
}

/// The body of `_Fork`, which runs no handlers.
pub unsafe extern "C" fn underscore_fork() -> c_int {
    // SAFETY: the arguments are the program's, passed on unchanged.
    forking(|| c_long::from(unsafe { next::_Fork() })) as c_int
}

/// The body of `dlclose`. Afterwards other code may be at the addresses of the closed modules, so
/// the definitions of the operators are looked up again.
pub unsafe extern "C" fn dlclose(handle: *mut c_void) -> c_int {
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

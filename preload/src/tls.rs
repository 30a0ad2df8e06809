//! The address of the calling thread's [`ThreadState`], in its thread-local variable.

use crate::arch;
use crate::thread::ThreadState;

/// Returns the thread's state, or null if it is not known yet.
#[inline(always)]
pub fn get() -> *mut ThreadState {
    arch::thread_state().cast()
}

/// Sets the thread's state.
pub fn set(state: *mut ThreadState) {
    arch::set_thread_state(state.cast());
}

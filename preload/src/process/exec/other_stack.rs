//! Stacks for the child that `posix_spawn` of musl starts: it calls `execve` on 5 KiB, in a part of
//! its parent's stack, and in the memory of its parent. An inspection needs more.

use crate::{arch, session, sys};
use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Size of a stack in bytes.
const BYTES: usize = 64 << 10;

/// Stacks that are not in use. What a child has mapped stays mapped in its parent, and no system
/// call may come between the request to the recorder and the exec.
static STACKS: [AtomicPtr<u8>; 8] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 8];

/// An inspection of the program that an exec function starts: the arguments, and the number of the
/// function.
pub type Inspect = unsafe extern "C" fn(*const usize, usize) -> *mut c_void;

/// Calls a function on a stack that is large enough. Returns null if there is none.
///
/// # Safety
/// The function must be sound to call with these arguments.
pub unsafe fn run(inspect: Inspect, arguments: *const usize, which: usize) -> *mut c_void {
    if sys::pid() == session::pid() {
        // SAFETY: the caller ensures that the call is sound.
        return unsafe { inspect(arguments, which) };
    }
    let kept = STACKS.iter().map(|slot| slot.swap(core::ptr::null_mut(), Acquire)).find(|stack| !stack.is_null());
    let Some(stack) = kept.or_else(|| sys::map_private(BYTES)) else { return core::ptr::null_mut() };
    // SAFETY: the caller ensures that the call is sound. The stack was in no slot of the table, so
    // that nothing else uses it.
    let next = unsafe { arch::call_on_stack(arguments, which, inspect, stack.wrapping_add(BYTES)) };
    // If all slots are taken, the stack stays mapped, and is not used again.
    let put = |slot: &AtomicPtr<u8>| slot.compare_exchange(core::ptr::null_mut(), stack, Release, Relaxed).is_ok();
    let _ = STACKS.iter().any(put);
    next
}

//! The thread-local variables: the address of the thread's state, and one for the C++ operators.
//! They are declared in assembly with the initial-exec model, as on x86-64 and for its reasons: the
//! word is at the thread pointer (`tpidr_el0`) plus an offset that the loader stores.

use core::arch::{asm, global_asm};
use core::ffi::c_void;

global_asm!(
    ".pushsection .tbss.heaptape_thread_state,\"awT\",%nobits",
    ".balign 8",
    ".hidden heaptape_thread_state",
    ".globl heaptape_thread_state",
    ".type heaptape_thread_state, %object",
    ".size heaptape_thread_state, 8",
    "heaptape_thread_state: .zero 8",
    ".hidden heaptape_operator_caller",
    ".globl heaptape_operator_caller",
    ".type heaptape_operator_caller, %object",
    ".size heaptape_operator_caller, 8",
    "heaptape_operator_caller: .zero 8",
    ".popsection",
);

/// Returns the address of a thread-local word.
macro_rules! address_of {
    ($name:literal) => {{
        let address: *mut usize;
        // SAFETY: reads the thread pointer, and the offset that the loader has stored.
        unsafe {
            asm!(concat!("adrp {0}, :gottprel:", $name), concat!("ldr {0}, [{0}, :gottprel_lo12:", $name, "]"),
                "mrs {1}, tpidr_el0", "add {0}, {0}, {1}", out(reg) address, out(reg) _,
                options(nostack, pure, readonly, preserves_flags));
        }
        address
    }};
}

/// Returns the address of the thread's state, or null if it is not known yet.
#[inline(always)]
pub(crate) fn thread_state() -> *mut c_void {
    let word = address_of!("heaptape_thread_state");
    // SAFETY: reads the thread's own word. No other thread has its address.
    unsafe { word.read_volatile() as *mut c_void }
}

/// Sets the value that [`thread_state`] returns.
pub(crate) fn set_thread_state(state: *mut c_void) {
    let word = address_of!("heaptape_thread_state");
    // SAFETY: writes the thread's own word.
    unsafe { word.write_volatile(state as usize) };
}

/// Returns the last caller of an operator, outside this library, whose next definition was looked
/// up; 0 if there is none yet.
pub(crate) fn operator_caller() -> usize {
    let word = address_of!("heaptape_operator_caller");
    // SAFETY: reads the thread's own word.
    unsafe { word.read_volatile() }
}

/// Sets the value that [`operator_caller`] returns.
pub(crate) fn set_operator_caller(caller: usize) {
    let word = address_of!("heaptape_operator_caller");
    // SAFETY: writes the thread's own word.
    unsafe { word.write_volatile(caller) };
}

/// Returns the thread pointer. For threads made by libc it points to their control block, at the
/// top of their stack.
pub(crate) fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: reads a register.
    unsafe { asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, nomem, preserves_flags)) };
    pointer
}

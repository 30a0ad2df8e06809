//! Work that opens descriptors, in a process with other threads. These must not see the
//! descriptors, as a number that `dup` does not return to them, or one that they close. So the work
//! is done by a helper thread with its own descriptor table, while the calling thread waits.

use crate::{attach, sys, timestamp};
use core::arch::asm;
use core::ffi::c_void;

/// Size of the helper's stack in bytes.
const STACK: usize = 64 << 10;

/// Runs `body` where no other thread sees its descriptors. Does not run it if that is not possible.
pub fn run(body: impl FnOnce()) {
    // A forked child that has not attached has one thread. So has the child of a `vfork`, whose
    // descriptor table is its own.
    if timestamp::is_single_threaded() || sys::pid() != attach::pid() {
        return body();
    }
    let Some(stack) = sys::map_private(core::ptr::null_mut(), STACK, 0) else { return };
    // The helper must not handle a signal of the process.
    let signals = sys::hold_signals();
    let mut body = Some(body);
    // SAFETY: the helper has the stack for itself, and ends before this call goes on.
    unsafe { start(stack.wrapping_add(STACK), call(&body), (&raw mut body).cast()) };
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

/// Runs `body` in a thread that shares everything but the descriptors, and waits for its end. The
/// calling thread is suspended meanwhile, so both can use the same thread-local storage.
///
/// # Safety
/// `top` must be the end of a stack that nothing else uses, and a multiple of 16.
unsafe fn start(top: *mut u8, body: Body, argument: *mut c_void) {
    const FLAGS: i32 = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM
        | libc::CLONE_VFORK;
    // SAFETY: the child has a stack of its own and never leaves the block; the parent goes on when
    // it has ended.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r13",
            "call r12",
            "mov eax, {exit}",
            "xor edi, edi",
            "syscall",
            "ud2",
            "2:",
            exit = const libc::SYS_exit,
            inlateout("rax") libc::SYS_clone => _,
            in("rdi") FLAGS as usize,
            in("rsi") top,
            in("rdx") 0,
            in("r10") 0,
            in("r8") 0,
            in("r12") body,
            in("r13") argument,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
}

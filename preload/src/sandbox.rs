//! A program that shuts itself in (seccomp) may be killed for any system call that it does not know of. The two ways in that libc offers are
//! watched, `prctl` and `syscall`: from then on this library makes no call of its own that it can do without. A child forked in there is not
//! recorded, what is exec'd is not looked at, and a full ring is waited for without sleeping.

use crate::link::{self, Scope, Wanted};
use crate::sys;
use core::ffi::{c_int, c_long, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering::Relaxed};

static SANDBOXED: AtomicBool = AtomicBool::new(false);
static NEXT_SYSCALL: AtomicPtr<c_void> = AtomicPtr::new(first_syscall as *mut c_void);

/// Whether system calls may be deadly; inherited by children.
pub fn is_sandboxed() -> bool {
    SANDBOXED.load(Relaxed)
}

/// Finds the next definition; once, with the allocator's.
pub fn find_next() {
    let mut wanted = [Wanted::new(c"syscall")];
    link::find(Scope::Next, false, &mut wanted);
    let [Wanted { found, .. }] = wanted;
    NEXT_SYSCALL.store(if found.is_null() { no_syscall as *mut c_void } else { found }, Relaxed);
}

extern "C" fn no_syscall() -> c_long {
    sys::set_errno(libc::ENOSYS);
    -1
}

extern "C" fn resolve() {
    crate::real::resolve();
}

/// What `syscall` does until the next definition is known: finds it. All seven arguments stay where they are.
#[unsafe(naked)]
unsafe extern "C" fn first_syscall() {
    core::arch::naked_asm!(
        "push r9", "push r8", "push rcx", "push rdx", "push rsi", "push rdi", "sub rsp, 8",
        "call {resolve}",
        "add rsp, 8", "pop rdi", "pop rsi", "pop rdx", "pop rcx", "pop r8", "pop r9",
        "mov r11, qword ptr [rip + {next}]", "jmp r11",
        resolve = sym resolve, next = sym NEXT_SYSCALL)
}

/// `prctl`.
pub unsafe extern "C" fn prctl(option: c_int, a: u64, b: u64, c: u64, d: u64) -> c_int {
    if option == libc::PR_SET_SECCOMP {
        SANDBOXED.store(true, Relaxed);
    }
    // SAFETY: the program's own call; libc takes five words whatever the option.
    unsafe { crate::real::prctl(option, a, b, c, d) }
}

/// `syscall`: passed on as it came; a `seccomp` is noted.
#[cfg_attr(test, allow(dead_code))]
#[unsafe(naked)]
pub unsafe extern "C" fn syscall() {
    core::arch::naked_asm!(
        "endbr64",
        "cmp edi, {seccomp}",
        "je 3f",
        "2:",
        "mov r11, qword ptr [rip + {next}]",
        "jmp r11",
        "3:",
        "mov byte ptr [rip + {flag}], 1",
        "jmp 2b",
        seccomp = const libc::SYS_seccomp, next = sym NEXT_SYSCALL, flag = sym SANDBOXED)
}

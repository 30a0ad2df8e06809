//! The exported names of the functions that need nothing of their caller's state.

use core::ffi::{c_char, c_int, c_void};

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fork() -> c_int {
    // SAFETY: the arguments are the program's, passed on unchanged.
    unsafe { super::fork::fork() }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn _Fork() -> c_int {
    // SAFETY: the arguments are the program's, passed on unchanged.
    unsafe { super::fork::underscore_fork() }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn posix_spawn(
    pid: *mut c_int,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    argv: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    // SAFETY: the arguments are the program's, passed on unchanged.
    unsafe { super::exec::posix_spawn(pid, path, actions, attributes, argv, environment) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn posix_spawnp(
    pid: *mut c_int,
    name: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    argv: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    // SAFETY: the arguments are the program's, passed on unchanged.
    unsafe { super::exec::posix_spawnp(pid, name, actions, attributes, argv, environment) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn prctl(option: c_int, a: u64, b: u64, c: u64, d: u64) -> c_int {
    // SAFETY: the arguments are the program's, passed on unchanged.
    unsafe { super::sandbox::prctl(option, a, b, c, d) }
}

#[unsafe(no_mangle)]
#[unsafe(link_section = "heaptape_stubs")]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn syscall() {
    crate::arch::jump_stub!(super::sandbox::syscall)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    // SAFETY: the arguments are the program's, passed on unchanged.
    unsafe { super::memory_lock::mlockall(flags) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn dlclose(handle: *mut c_void) -> c_int {
    // SAFETY: the arguments are the program's, passed on unchanged.
    unsafe { super::fork::dlclose(handle) }
}

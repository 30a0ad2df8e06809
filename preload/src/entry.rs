//! The exported stubs: naked functions that add the caller's stack pointer and frame pointer to the arguments and jump to the body. At their
//! first instruction rsp is the address of the return address and rbp is still the caller's: two moves and a jump.

/// Exports `name` with so many arguments of its own; the body takes two more.
macro_rules! exports {
    ($($name:ident $count:tt $body:ident;)*) => {
        /// The exported names.
        #[cfg(not(test))]
        #[allow(missing_docs)]
        pub mod exported {
            $(
                #[unsafe(no_mangle)]
                #[unsafe(naked)]
                pub unsafe extern "C" fn $name() {
                    crate::entry::stub!($count, crate::hooks::$body);
                }
            )*
        }
    };
}

/// The instructions of a stub for a body with so many arguments before the two.
macro_rules! stub {
    (1, $body:path) => {
        core::arch::naked_asm!("endbr64", "mov rsi, rsp", "mov rdx, rbp", "jmp {body}", body = sym $body)
    };
    (2, $body:path) => {
        core::arch::naked_asm!("endbr64", "mov rdx, rsp", "mov rcx, rbp", "jmp {body}", body = sym $body)
    };
    (3, $body:path) => {
        core::arch::naked_asm!("endbr64", "mov rcx, rsp", "mov r8, rbp", "jmp {body}", body = sym $body)
    };
}

/// A C++ operator. `delete` never throws and is a plain body. `new` may: the stub keeps a frame of its own, described to the unwinder, without
/// a landing pad, and calls begin, the next definition, and end.
macro_rules! operator_stub {
    ($symbol:ident, $index:literal, delete) => {
        #[cfg(not(test))]
        #[allow(missing_docs)]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $symbol() {
            core::arch::naked_asm!("endbr64", "mov ecx, {which}", "mov r8, rsp", "mov r9, rbp", "jmp {body}",
                which = const $index, body = sym crate::hooks::delete)
        }
    };
    ($symbol:ident, $index:literal, new) => {
        #[cfg(not(test))]
        #[allow(missing_docs)]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $symbol() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "endbr64",
                "sub rsp, 40",
                ".cfi_adjust_cfa_offset 40",
                "mov [rsp], rdi",
                "mov [rsp + 8], rsi",
                "mov [rsp + 16], rdx",
                "mov rcx, rsi",
                "mov esi, {which}",
                "lea rdx, [rsp + 40]",
                "call {begins}",
                "mov rdi, [rsp]",
                "mov rsi, [rsp + 8]",
                "mov rdx, [rsp + 16]",
                "call rax",
                "mov rdi, rax",
                "mov rsi, [rsp]",
                "mov edx, {which}",
                "lea rcx, [rsp + 40]",
                "mov r8, rbp",
                "call {ends}",
                "add rsp, 40",
                ".cfi_adjust_cfa_offset -40",
                "ret",
                ".cfi_endproc",
                which = const $index, begins = sym crate::hooks::new_begins, ends = sym crate::hooks::new_ends)
        }
    };
}

pub(crate) use {exports, operator_stub, stub};

/// `operator new` where nobody defines one (never seen: whoever calls it links it): the allocator's plain block.
pub unsafe extern "C" fn new_without_next(size: usize) -> *mut u8 {
    // SAFETY: the program's own call, in C's words.
    unsafe { crate::real::malloc(size.max(1)) }
}

/// Functions that need nothing of their caller's state.
#[cfg(not(test))]
#[allow(missing_docs)]
pub mod plain {
    use core::ffi::{c_char, c_int, c_void};

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn malloc_usable_size(block: *mut u8) -> usize {
        // SAFETY: the program's own call.
        unsafe { crate::hooks::malloc_usable_size(block) }
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn fork() -> c_int {
        // SAFETY: the program's own call.
        unsafe { crate::fork::fork() }
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn _Fork() -> c_int {
        // SAFETY: the program's own call.
        unsafe { crate::fork::underscore_fork() }
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn posix_spawn(
        pid: *mut c_int,
        path: *const c_char,
        actions: *const c_void,
        attributes: *const c_void,
        argv: *const *const c_char,
        environment: *const *const c_char,
    ) -> c_int {
        // SAFETY: the program's own call.
        unsafe { crate::exec::posix_spawn(pid, path, actions, attributes, argv, environment) }
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn posix_spawnp(
        pid: *mut c_int,
        name: *const c_char,
        actions: *const c_void,
        attributes: *const c_void,
        argv: *const *const c_char,
        environment: *const *const c_char,
    ) -> c_int {
        // SAFETY: the program's own call.
        unsafe { crate::exec::posix_spawnp(pid, name, actions, attributes, argv, environment) }
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn prctl(option: c_int, a: u64, b: u64, c: u64, d: u64) -> c_int {
        // SAFETY: the program's own call.
        unsafe { crate::sandbox::prctl(option, a, b, c, d) }
    }

    #[unsafe(no_mangle)]
    #[unsafe(naked)]
    pub unsafe extern "C" fn syscall() {
        core::arch::naked_asm!("endbr64", "jmp {body}", body = sym crate::sandbox::syscall)
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn dlclose(handle: *mut c_void) -> c_int {
        // SAFETY: the program's own call.
        unsafe { crate::fork::dlclose(handle) }
    }
}

//! The exported stubs: naked functions that add the caller's stack pointer and frame pointer to the
//! arguments and jump to the body. At their first instruction rsp is the address of the return
//! address, and rbp is still the caller's. So a stub is two moves and a jump.
//!
//! The target of the exports is chosen for the whole process ([`choose`]), so that neither a
//! dormant process nor one that samples pays for full tracing. A pair of malloc and free takes 10.8
//! ns without the library, 12.6 ns dormant (15.1 through the body), 13.3 ns sampled (16.1 through
//! the body). Every mode is correct at any time and in any thread: if it finds another state than
//! the one that it is made for, it continues like the full one.

use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// The target of all exports.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum EntryMode {
    /// The bodies of the hooks, which record every event.
    Full,
    /// Bodies that first check whether sampling skips the call, for functions where that can be
    /// decided before the call.
    Sampled,
    /// A check of the thread's activation, and a jump to the allocator.
    Untraced,
}

impl EntryMode {
    /// Returns the mode for a sampling interval of `sample_bytes`, or for all events if it is 0.
    pub fn of_interval(sample_bytes: u64) -> EntryMode {
        if sample_bytes == 0 { EntryMode::Full } else { EntryMode::Sampled }
    }
}

/// Sets the target of all exports.
pub fn choose(mode: EntryMode) {
    static NOW: AtomicU8 = AtomicU8::new(EntryMode::Full as u8);
    // This is called at each thread's start, so the shared cache line is written only if the mode
    // changes.
    if NOW.load(Relaxed) != mode as u8 && NOW.swap(mode as u8, Relaxed) != mode as u8 {
        crate::hooks::choose_exports(mode);
        crate::hooks::choose_operators(mode);
    }
}

/// Exports `name` with its number of arguments and with its bodies for the full and the sampled
/// mode, which take two more arguments.
macro_rules! exports {
    ($($name:ident $count:tt $full:ident $sampled:ident;)*) => {
        /// The exported names.
        #[cfg(not(test))]
        #[allow(missing_docs)]
        pub mod exported {
            $(
                #[unsafe(no_mangle)]
                #[unsafe(naked)]
                pub unsafe extern "C" fn $name() {
                    crate::entry::stub!($count, super::targets::$name);
                }
            )*
        }
        #[allow(non_upper_case_globals)]
        mod targets {
            use core::{ffi::c_void, sync::atomic::AtomicPtr};
            $(pub static $name: AtomicPtr<c_void> = AtomicPtr::new(crate::hooks::$full as *mut c_void);)*
        }
        mod untraced {
            $(
                #[unsafe(naked)]
                pub unsafe extern "C" fn $name() {
                    crate::entry::untraced!("{next}", (next = sym crate::next::pointers::$name, full = sym crate::hooks::$full))
                }
            )*
        }
        /// Sets the target of the exported names.
        pub fn choose_exports(mode: crate::entry::EntryMode) {
            use core::{ffi::c_void, sync::atomic::Ordering::Relaxed};
            $(
                targets::$name.store(match mode {
                    crate::entry::EntryMode::Full => $full as *mut c_void,
                    crate::entry::EntryMode::Sampled => $sampled as *mut c_void,
                    crate::entry::EntryMode::Untraced => untraced::$name as *mut c_void,
                }, Relaxed);
            )*
        }
    };
}

/// The instructions of a stub whose body has this number of arguments before the two added ones.
macro_rules! stub {
    (1, $mode:path) => {
        core::arch::naked_asm!("endbr64", "mov rsi, rsp", "mov rdx, rbp", "jmp qword ptr [rip + {target}]", target = sym $mode)
    };
    (2, $mode:path) => {
        core::arch::naked_asm!("endbr64", "mov rdx, rsp", "mov rcx, rbp", "jmp qword ptr [rip + {target}]", target = sym $mode)
    };
    (3, $mode:path) => {
        core::arch::naked_asm!("endbr64", "mov rcx, rsp", "mov r8, rbp", "jmp qword ptr [rip + {target}]", target = sym $mode)
    };
}

/// The instructions of the untraced mode. They jump to `next` if the thread's activation says that
/// nothing is recorded and the first argument is not a block of the bootstrap arena, and else to
/// `full`. The next function ignores further arguments that a stub has set.
macro_rules! untraced {
    ($next:literal, ($($operand:tt)*)) => {
        core::arch::naked_asm!(
            "endbr64",
            "mov rax, qword ptr [rip + heaptape_thread_state@GOTTPOFF]",
            "mov rax, qword ptr fs:[rax]",
            "test rax, rax",
            "jz 2f",
            "cmp byte ptr [rax], {untraced}",
            "jne 2f",
            "lea r10, [rip + {arena}]",
            "mov r11, rdi",
            "sub r11, r10",
            "cmp r11, {arena_bytes}",
            "jb 2f",
            concat!("mov rax, qword ptr [rip + ", $next, "]"),
            "test rax, rax",
            "jz 2f",
            "jmp rax",
            "2:",
            "jmp {full}",
            untraced = const crate::thread::UNTRACED,
            arena = sym crate::bootstrap_arena::ARENA,
            arena_bytes = const crate::bootstrap_arena::BYTES,
            $($operand)*
        )
    };
}

/// The target of a C++ operator's export in the full mode. `delete` never throws, so its target is
/// a plain body. `new` may throw: its target keeps a frame of its own, which is described to the
/// unwinder and has no landing pad, and calls `new_begins`, the next definition, and `new_ends`.
macro_rules! operator_full {
    ($symbol:ident, $index:literal, delete) => {
        pub use crate::hooks::delete as $symbol;
    };
    ($symbol:ident, $index:literal, new) => {
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

/// The exported stub of a C++ operator.
macro_rules! operator_stub {
    ($symbol:ident, $index:literal, delete) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $symbol() {
            core::arch::naked_asm!("endbr64", "mov ecx, {which}", "mov r8, rsp", "mov r9, rbp", "jmp qword ptr [rip + {target}]",
                which = const $index, target = sym super::operator_targets::$symbol)
        }
    };
    ($symbol:ident, $index:literal, new) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $symbol() {
            core::arch::naked_asm!("endbr64", "jmp qword ptr [rip + {target}]", target = sym super::operator_targets::$symbol)
        }
    };
}

/// The exports of the C++ operators, their targets, and the choice of the targets.
macro_rules! operator_exports {
    ($($index:literal $symbol:ident $shape:ident;)*) => {
        /// The exported operators.
        #[cfg(not(test))]
        #[allow(missing_docs)]
        pub mod exported_operators {
            $(crate::entry::operator_stub!($symbol, $index, $shape);)*
        }
        #[allow(non_upper_case_globals)]
        mod operator_targets {
            use core::{ffi::c_void, sync::atomic::AtomicPtr};
            $(pub static $symbol: AtomicPtr<c_void> = AtomicPtr::new(super::operator_full::$symbol as *mut c_void);)*
        }
        #[allow(non_snake_case)]
        mod operator_full {
            $(crate::entry::operator_full!($symbol, $index, $shape);)*
        }
        #[allow(non_snake_case)]
        mod untraced_operators {
            $(
                #[unsafe(naked)]
                pub unsafe extern "C" fn $symbol() {
                    crate::entry::untraced!("{next} + 8 * {which}",
                        (next = sym crate::operators::NEXT, which = const $index, full = sym super::operator_full::$symbol))
                }
            )*
        }
        /// Sets the target of the operators.
        pub fn choose_operators(mode: crate::entry::EntryMode) {
            use core::sync::atomic::Ordering::Relaxed;
            $(
                operator_targets::$symbol.store(match mode {
                    crate::entry::EntryMode::Full | crate::entry::EntryMode::Sampled => operator_full::$symbol as *mut c_void,
                    crate::entry::EntryMode::Untraced => untraced_operators::$symbol as *mut c_void,
                }, Relaxed);
            )*
        }
    };
}

pub(crate) use {exports, operator_exports, operator_full, operator_stub, stub, untraced};

/// Implements `operator new` where no library defines one, by a plain block of the allocator. This
/// has never been seen, because a program that calls the operator links a definition.
pub unsafe extern "C" fn new_without_next(size: usize) -> *mut u8 {
    // SAFETY: the arguments are the program's, passed on unchanged.
    unsafe { crate::next::malloc(size.max(1)) }
}

/// Exports that need nothing of their caller's state.
#[cfg(not(test))]
#[allow(missing_docs)]
pub mod plain {
    use core::ffi::{c_char, c_int, c_void};

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn malloc_usable_size(block: *mut u8) -> usize {
        // SAFETY: the arguments are the program's, passed on unchanged.
        unsafe { crate::hooks::malloc_usable_size(block) }
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn fork() -> c_int {
        // SAFETY: the arguments are the program's, passed on unchanged.
        unsafe { crate::fork::fork() }
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn _Fork() -> c_int {
        // SAFETY: the arguments are the program's, passed on unchanged.
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
        // SAFETY: the arguments are the program's, passed on unchanged.
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
        // SAFETY: the arguments are the program's, passed on unchanged.
        unsafe { crate::exec::posix_spawnp(pid, name, actions, attributes, argv, environment) }
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn prctl(option: c_int, a: u64, b: u64, c: u64, d: u64) -> c_int {
        // SAFETY: the arguments are the program's, passed on unchanged.
        unsafe { crate::sandbox::prctl(option, a, b, c, d) }
    }

    #[unsafe(no_mangle)]
    #[unsafe(naked)]
    pub unsafe extern "C" fn syscall() {
        core::arch::naked_asm!("endbr64", "jmp {body}", body = sym crate::sandbox::syscall)
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn dlclose(handle: *mut c_void) -> c_int {
        // SAFETY: the arguments are the program's, passed on unchanged.
        unsafe { crate::fork::dlclose(handle) }
    }
}

//! The exported stubs: naked functions that add the caller's stack pointer and frame pointer to the
//! arguments and jump to the body. At their first instruction rsp is the address of the return
//! address and rbp is still the caller's: two moves and a jump.
//!
//! What an export jumps to is chosen for the whole process ([`choose`]), so that neither a dormant
//! process nor a sampled one pays for the traced one's way: a pair of malloc and free is 10.8 ns
//! bare, 12.6 dormant (15.1 by way of the body), 13.3 sampled (16.1). Each lane is right at any
//! time and in any thread: one that finds another state than it is for goes on as the full one
//! does.

use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// What the exports jump to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum EntryMode {
    /// The bodies.
    Full,
    /// Bodies that first ask whether the call is passed over, where that is asked before it.
    Sampled,
    /// A look at the thread's gate, and a jump to the allocator.
    Untraced,
}

impl EntryMode {
    /// For threads that record one block in so many bytes, or all.
    pub fn of_interval(sample_bytes: u64) -> EntryMode {
        if sample_bytes == 0 { EntryMode::Full } else { EntryMode::Sampled }
    }
}

/// Chooses what all exports jump to.
pub fn choose(mode: EntryMode) {
    static NOW: AtomicU8 = AtomicU8::new(EntryMode::Full as u8);
    // Asked at each thread's start: a line that all share is written only when there is something
    // to write.
    if NOW.load(Relaxed) != mode as u8 && NOW.swap(mode as u8, Relaxed) != mode as u8 {
        crate::hooks::choose_exports(mode);
        crate::hooks::choose_operators(mode);
    }
}

/// Exports `name` with its number of arguments, with its bodies for the full and the sampled
/// lane; they take two more.
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
        /// Chooses what the exported names jump to.
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

/// The instructions of a stub for a body with so many arguments before the two.
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

/// The instructions of the untraced lane: on to `next` when the thread's gate says that nothing is
/// recorded, unless the first argument is a block of the cradle; else to `full`. Further arguments
/// that a stub has set are not the next function's.
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

/// What a C++ operator's export jumps to in the full lane. `delete` never throws and is a plain
/// body. `new` may: it keeps a frame of its own, described to the unwinder, without a landing pad,
/// and calls begin, the next definition, and end.
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

/// A C++ operator's export.
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

/// The C++ operators: exports, lanes, and the choice.
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
        /// Chooses what the operators jump to.
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

/// `operator new` where nobody defines one (never seen: a program that calls it links it): the
/// allocator's plain block.
pub unsafe extern "C" fn new_without_next(size: usize) -> *mut u8 {
    // SAFETY: the program's own call, in C's words.
    unsafe { crate::next::malloc(size.max(1)) }
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

//! The exported stubs ([`crate::arch`]): functions that add the caller's stack pointer and frame
//! pointer to the arguments and jump to the body.
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
                    crate::arch::entry_stub!($count, super::targets::$name)
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
                    crate::arch::untraced_stub!("{next}", (
                        next = sym crate::next::pointers::$name, full = sym crate::hooks::$full,
                        untraced = const crate::thread::UNTRACED,
                        arena = sym crate::bootstrap_arena::ARENA, arena_bytes = const crate::bootstrap_arena::BYTES))
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

/// The target of a C++ operator's export in the full mode. `delete` never throws, so its target is
/// a plain body. `new` may throw: its target keeps a frame of its own, and calls `new_begins`, the
/// next definition, and `new_ends`.
macro_rules! operator_full {
    ($symbol:ident, $index:literal, delete) => {
        pub use crate::hooks::delete as $symbol;
    };
    ($symbol:ident, $index:literal, new) => {
        #[unsafe(naked)]
        pub unsafe extern "C" fn $symbol() {
            crate::arch::operator_new_frame!($index, crate::hooks::new_begins, crate::hooks::new_ends)
        }
    };
}

/// The exported stub of a C++ operator.
macro_rules! operator_stub {
    ($symbol:ident, $index:literal, delete) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $symbol() {
            crate::arch::operator_delete_stub!($index, super::operator_targets::$symbol)
        }
    };
    ($symbol:ident, $index:literal, new) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $symbol() {
            crate::arch::operator_new_stub!(super::operator_targets::$symbol)
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
                    crate::arch::untraced_stub!("{next} + 8 * {which}", (
                        next = sym crate::operators::NEXT, which = const $index,
                        full = sym super::operator_full::$symbol, untraced = const crate::thread::UNTRACED,
                        arena = sym crate::bootstrap_arena::ARENA, arena_bytes = const crate::bootstrap_arena::BYTES))
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

pub(crate) use {exports, operator_exports, operator_full, operator_stub};

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
        crate::arch::jump_stub!(crate::sandbox::syscall)
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn dlclose(handle: *mut c_void) -> c_int {
        // SAFETY: the arguments are the program's, passed on unchanged.
        unsafe { crate::fork::dlclose(handle) }
    }
}

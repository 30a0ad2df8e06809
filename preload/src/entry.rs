//! The exported stubs ([`crate::arch`]): functions that add the caller's stack pointer and frame
//! pointer to the arguments and jump to the body.
//! The target of the exports is chosen by [`crate::mode`].

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
        pub fn choose_exports(mode: crate::mode::EntryMode) {
            use core::{ffi::c_void, sync::atomic::Ordering::Relaxed};
            $(
                targets::$name.store(match mode {
                    crate::mode::EntryMode::Full => $full as *mut c_void,
                    crate::mode::EntryMode::Sampled => $sampled as *mut c_void,
                    crate::mode::EntryMode::Untraced => untraced::$name as *mut c_void,
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
        pub fn choose_operators(mode: crate::mode::EntryMode) {
            use core::sync::atomic::Ordering::Relaxed;
            $(
                operator_targets::$symbol.store(match mode {
                    crate::mode::EntryMode::Full | crate::mode::EntryMode::Sampled => operator_full::$symbol as *mut c_void,
                    crate::mode::EntryMode::Untraced => untraced_operators::$symbol as *mut c_void,
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
        unsafe { crate::process::fork::fork() }
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn _Fork() -> c_int {
        // SAFETY: the arguments are the program's, passed on unchanged.
        unsafe { crate::process::fork::underscore_fork() }
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
        unsafe { crate::process::exec::posix_spawn(pid, path, actions, attributes, argv, environment) }
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
        unsafe { crate::process::exec::posix_spawnp(pid, name, actions, attributes, argv, environment) }
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn prctl(option: c_int, a: u64, b: u64, c: u64, d: u64) -> c_int {
        // SAFETY: the arguments are the program's, passed on unchanged.
        unsafe { crate::process::sandbox::prctl(option, a, b, c, d) }
    }

    #[unsafe(no_mangle)]
    #[unsafe(naked)]
    pub unsafe extern "C" fn syscall() {
        crate::arch::jump_stub!(crate::process::sandbox::syscall)
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn dlclose(handle: *mut c_void) -> c_int {
        // SAFETY: the arguments are the program's, passed on unchanged.
        unsafe { crate::process::fork::dlclose(handle) }
    }
}

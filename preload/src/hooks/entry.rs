//! The exported stubs ([`crate::arch`]): functions that add the caller's stack pointer and frame
//! pointer to the arguments and jump to the body.
//! The target of the exports is chosen by [`crate::mode`].

use crate::hooks;
use crate::mode::EntryMode;
use core::ffi::c_void;
use core::sync::atomic::Ordering::Relaxed;

/// Exports `name` with its number of arguments and with its bodies for the full and the sampled
/// mode, which take two more arguments.
macro_rules! exports {
    ($($name:ident $count:tt $full:ident $sampled:ident;)*) => {
        /// The stubs with the exported names.
        #[cfg(not(any(test, feature = "standalone")))]
        pub(crate) mod exported {
            $(
                #[unsafe(no_mangle)]
                #[unsafe(link_section = "heaptape_stubs")]
                #[unsafe(naked)]
                pub(crate) unsafe extern "C" fn $name() {
                    crate::arch::entry_stub!($count, super::targets::$name)
                }
            )*
        }
        #[allow(non_upper_case_globals)]
        mod targets {
            use core::{ffi::c_void, sync::atomic::AtomicPtr};
            $(pub(crate) static $name: AtomicPtr<c_void> = AtomicPtr::new(crate::hooks::$full as *mut c_void);)*
        }
        mod untraced {
            $(
                #[unsafe(link_section = "heaptape_stubs")]
                #[unsafe(naked)]
                pub(crate) unsafe extern "C" fn $name() {
                    crate::arch::untraced_stub!((
                        next = sym crate::next::pointers::$name, full = sym crate::hooks::$full,
                        untraced = const crate::thread::UNTRACED,
                        arena = sym crate::bootstrap_arena::ARENA, arena_bytes = const crate::bootstrap_arena::BYTES))
                }
            )*
        }
        /// Sets the target of the exported names.
        pub(crate) fn choose_exports(mode: crate::mode::EntryMode) {
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

/// The exported stub of a C++ operator, with its number and its shape.
macro_rules! operator_stub {
    ($symbol:ident, $index:literal, $shape:ident) => {
        #[unsafe(no_mangle)]
        #[unsafe(link_section = "heaptape_stubs")]
        #[unsafe(naked)]
        pub(crate) unsafe extern "C" fn $symbol() {
            crate::arch::operator_stub!($index, crate::hooks::entry::operator_targets::$shape)
        }
    };
}

/// The targets of the operators' exports: one for all forms of `new`, one for all of `delete`.
#[allow(non_upper_case_globals)]
pub(crate) mod operator_targets {
    use core::{ffi::c_void, sync::atomic::AtomicPtr};
    /// The target of the forms of `new`.
    pub(crate) static new: AtomicPtr<c_void> = AtomicPtr::new(super::new_full as *mut c_void);
    /// The function that the full and the sampled `new` try first.
    pub(crate) static new_direct: AtomicPtr<c_void> = AtomicPtr::new(crate::hooks::new_direct as *mut c_void);
    /// The target of the forms of `delete`.
    pub(crate) static delete: AtomicPtr<c_void> = AtomicPtr::new(crate::hooks::delete as *mut c_void);
}

/// Sets the targets of the operators.
pub(crate) fn choose_operators(mode: EntryMode) {
    let (mut new, mut delete) = (new_full as *mut c_void, hooks::delete as *mut c_void);
    let mut new_direct = hooks::new_direct as *mut c_void;
    match mode {
        EntryMode::Full => {}
        EntryMode::Sampled => {
            (new_direct, delete) = (hooks::new_direct_sampled as *mut c_void, hooks::delete_sampled as *mut c_void);
        }
        EntryMode::Untraced => (new, delete) = (untraced_new as *mut c_void, untraced_delete as *mut c_void),
    }
    operator_targets::new.store(new, Relaxed);
    operator_targets::new_direct.store(new_direct, Relaxed);
    operator_targets::delete.store(delete, Relaxed);
}

/// The full and the sampled mode of `new`. It calls `new_direct`. If that returns null, it calls
/// `new_begins`, the next definition, and `new_ends`.
#[unsafe(naked)]
unsafe extern "C" fn new_full() {
    crate::arch::operator_new_frame!(operator_targets::new_direct, hooks::new_begins, hooks::new_ends)
}

#[unsafe(link_section = "heaptape_stubs")]
#[unsafe(naked)]
unsafe extern "C" fn untraced_new() {
    crate::arch::untraced_operator_stub!((
        next = sym super::operators::NEXT, full = sym new_full, untraced = const crate::thread::UNTRACED,
        arena = sym crate::bootstrap_arena::ARENA, arena_bytes = const crate::bootstrap_arena::BYTES))
}

#[unsafe(link_section = "heaptape_stubs")]
#[unsafe(naked)]
unsafe extern "C" fn untraced_delete() {
    crate::arch::untraced_operator_stub!((
        next = sym super::operators::NEXT, full = sym hooks::delete, untraced = const crate::thread::UNTRACED,
        arena = sym crate::bootstrap_arena::ARENA, arena_bytes = const crate::bootstrap_arena::BYTES))
}

pub(crate) use {exports, operator_stub};

/// Implements `operator new` where no library defines one, by a plain block of the allocator. This
/// has never been seen, because a program that calls the operator links a definition.
pub(crate) unsafe extern "C" fn new_without_next(size: usize) -> *mut u8 {
    // SAFETY: the arguments are the program's, passed on unchanged.
    unsafe { crate::next::malloc(size.max(1)) }
}

/// The export that needs nothing of its caller's state.
#[cfg(not(any(test, feature = "standalone")))]
pub(crate) mod plain {
    #[unsafe(no_mangle)]
    pub(crate) unsafe extern "C" fn malloc_usable_size(block: *mut u8) -> usize {
        // SAFETY: the arguments are the program's, passed on unchanged.
        unsafe { crate::hooks::malloc_usable_size(block) }
    }
}

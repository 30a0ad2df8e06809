//! `libheaptape.so`, the library inside the traced process. A hook takes a timestamp, unwinds the
//! stack, writes a record and returns.
//!
//! The rules of this crate:
//!
//! 1. Do no harm. When in doubt we stop tracing, not the program: no abort, no message, no changed
//!    result, no changed `errno`.
//! 2. No `std` and no `alloc`, so nobody can even write an allocation inside the allocator. System
//!    calls are made directly (`sys`), so they are no cancellation points and never touch `errno`.
//! 3. After the attach there is no descriptor, no thread, no signal handler, no lock, and no system
//!    call on the fast path.
//! 4. Calls go on to the next definition (`RTLD_NEXT`), never to libc's own one. Blocks belong to
//!    the allocator; we don't touch them.
//! 5. A signal may interrupt a hook at any instruction, and its handler may allocate, fork, or jump
//!    away.
//! 6. Whatever we read from the program's stack is bounded by what is known to be mapped.
//! 7. Every event is published or counted as dropped.
// Where panics unwind, as in builds for tests, this is a library like any other, which nobody loads.
#![cfg_attr(all(not(test), panic = "abort"), no_std)]
#![allow(clippy::missing_safety_doc)]
// The exports are switched off in the test program, which must keep its own allocator, and in the
// standalone library, which replaces no function by name: what only they use is not dead.
#![cfg_attr(any(test, feature = "standalone"), allow(dead_code, unused_imports, unused_macros))]

use core::ffi::c_void;
use core::sync::atomic::AtomicPtr;

mod arch;
mod boot;
mod bootstrap_arena;
mod caller;
mod dynsym;
mod elf;
mod hooks;
mod mode;
mod next;
mod probe;
mod process;
mod record;
mod sampling;
mod session;
mod stack;
#[cfg(feature = "standalone")]
mod standalone;
mod sys;
mod thread;
mod timestamp;
mod workspace;

/// The entry of all functions inside the program that are hooked. It is here for [`boot`], which
/// writes the jumps and is a layer below [`hooks`].
static PATCHED_ENTRY: AtomicPtr<c_void> = AtomicPtr::new(hooks::patched::enter as *mut c_void);

/// The functions that replace functions of the program, by their number in
/// [`heaptape_wire::patches::REPLACEMENTS`], each with the variable for the address of the original
/// one.
#[cfg(feature = "standalone")]
static REPLACEMENTS: [(AtomicPtr<c_void>, &AtomicPtr<c_void>); heaptape_wire::patches::REPLACEMENTS.len()] = [
    (AtomicPtr::new(process::sandbox::prctl as *mut c_void), &next::pointers::prctl),
    (AtomicPtr::new(process::sandbox::syscall as *mut c_void), &process::sandbox::NEXT_SYSCALL),
    (AtomicPtr::new(process::exec::replacements::execve as *mut c_void), &process::exec::NEXT[0]),
    (AtomicPtr::new(process::exec::replacements::execveat as *mut c_void), &process::exec::NEXT[8]),
    (AtomicPtr::new(process::fork::fork as *mut c_void), &next::pointers::fork),
];

#[cfg(all(not(test), panic = "abort"))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // Arithmetic here is wrapping or checked and every index is bounded; if a panic is ever
    // reached, spinning would hang the program.
    sys::exit_by_abort()
}

/// A debug build refers to this symbol although nothing unwinds. The release build does not.
#[cfg(all(not(test), panic = "abort", debug_assertions))]
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

/// Runs when the library is loaded: attaches before `main`, unless an earlier allocation has done
/// so.
#[cfg(not(any(test, feature = "standalone")))]
#[ctor::ctor(unsafe)]
fn start() {
    stack::note_main_thread();
    next::resolve();
    process::exec::find_next();
    hooks::mappings::find_next();
    process::sandbox::find_next();
    mode::switch_by(hooks::choose_targets);
    // The main thread gets its state now and not at its first event, and the unwind tables are looked at that
    // its stacks need: until then the program may have installed a filter that kills for the system calls.
    let here = 0;
    if thread::is_traced(boot::claim::state(&raw const *core::hint::black_box(&here) as usize)) {
        // libc links its first function, which calls `main`, next to this one.
        let near_start = libc::__errno_location as *const () as u64;
        [sys::auxiliary(libc::AT_ENTRY) as u64, near_start].into_iter().for_each(stack::unwind::rules::look_ahead);
    }
    process::exit::prepare();
}

/// Runs when the process ends by `exit`, after the destructors of the program.
#[cfg(not(any(test, feature = "standalone")))]
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;

#[cfg(not(any(test, feature = "standalone")))]
extern "C" fn at_exit() {
    process::exit::announce_exit();
}

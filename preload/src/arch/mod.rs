//! Everything that depends on the processor, with one interface. Another processor needs another
//! folder beside `x86_64` with the same items:
//!
//! * `thread_state`, `set_thread_state`, `operator_caller`, `set_operator_caller`: two thread-local
//!   words, read and written without a call; in the standalone library, the first one by a table;
//! * `thread_pointer`: the address that libc keeps for each thread; in the standalone library
//!   `thread_register`, and where the thread's number is near to it;
//! * `signal_atomic_add`, `signal_atomic_and`, `signal_atomic_or`, `signal_atomic_increment`: a
//!   change of a word that a signal handler of the same thread cannot divide;
//! * `store_four`: stores four words that are copied later as two halves;
//! * `counter`: the processor's timestamp, read at most the latency of a load before earlier loads;
//! * `register_barrier`: lets the recorder make what this process has stored visible;
//! * `syscall` and `AUDIT_ARCHITECTURE`: system calls, and the number of their table in seccomp
//!   filters;
//! * `FUNCTION_RELOCATIONS`: relocations of words that hold a function's address;
//! * `poll`, `POLL`, `fork`, `FORK`: two system calls that not all processors have;
//! * `run_in_clone`: runs a function in a new thread without libc's help;
//! * `is_under_valgrind`: whether valgrind runs the process;
//! * `registers`: what the unwinder follows, by DWARF numbers, and the kernel's signal frame;
//! * `ends_with_call` and `MAX_CALL`: whether bytes of code end with a call;
//! * `entry_stub!`, `untraced_stub!`: entries of the allocator's functions;
//! * `operator_stub!`, `operator_new_frame!`, `untraced_operator_stub!`: entries of the C++
//!   operators;
//! * `patched_stub!`: the entry of functions that are hooked by a jump in their first bytes, with
//!   `KEPT_BYTES` of registers in its frame; `write_jump`, which writes the jump;
//! * `program_entry_stub!`: the entry of a program without a loader;
//! * `visit_stub!`: the entries of the library in a program that's already running;
//! * `report_stub!`: the entry of functions to which the program reports;
//! * `numbered_stub!`, `numbered_frame!`: entries of functions that share a body;
//! * `syscall_stub!`, `first_syscall_stub!`, `jump_stub!`: entries of other functions;
//! * `saved_frame!`: the entry of a function that keeps its caller's registers on the stack;
//! * `capture_stub!`: the entry of the unwinder's tests.
//!
//! The macros are bodies of naked functions. They name nothing of the rest of this crate: what they
//! call is passed to them. Those that change the stack pointer describe it to the unwinder. All
//! others are in a section of their own, so that [`is_stub`] knows them.

#[cfg(feature = "standalone")]
mod thread_table;
#[cfg(feature = "standalone")]
pub(crate) use thread_table::*;

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::stubs::*;
#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::*;
#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::stubs::*;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;

// The linker would export them, and does not know them where it has left out all stubs: in unit tests.
core::arch::global_asm!(
    ".hidden __start_heaptape_stubs",
    ".hidden __stop_heaptape_stubs",
    ".weak __start_heaptape_stubs",
    ".weak __stop_heaptape_stubs",
);
unsafe extern "C" {
    #[link_name = "__start_heaptape_stubs"]
    static STUBS: u8;
    #[link_name = "__stop_heaptape_stubs"]
    static STUBS_END: u8;
}

/// Returns whether an address is in a stub, which leaves the stack pointer as it is unless it has unwind
/// data.
pub(crate) fn is_stub(address: u64) -> bool {
    (&raw const STUBS as u64..&raw const STUBS_END as u64).contains(&address)
}

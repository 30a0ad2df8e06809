//! The AArch64 implementation of the interface that [`crate::arch`] states.

mod calls;
mod instructions;
pub(crate) mod linker_stubs;
pub(crate) mod registers;
pub(crate) mod stubs;
#[cfg(not(feature = "standalone"))]
mod thread_local;
#[cfg(feature = "standalone")]
pub(crate) mod thread_register;

pub(crate) use calls::*;
pub(crate) use instructions::*;
#[cfg(not(feature = "standalone"))]
pub(crate) use thread_local::*;

/// The name of this processor's system calls in `struct seccomp_data`: `AUDIT_ARCH_AARCH64`
/// (`<linux/audit.h>`).
pub(crate) const AUDIT_ARCHITECTURE: u32 = 0xc000_00b7;

/// The kinds of relocations of words that hold the address of a function of another object:
/// `R_AARCH64_GLOB_DAT` and `R_AARCH64_JUMP_SLOT` (ELF for the Arm 64-bit Architecture, 5.7.12).
pub(crate) const FUNCTION_RELOCATIONS: [u32; 2] = [1025, 1026];

/// The system call that waits for a descriptor.
pub(crate) const POLL: i64 = libc::SYS_ppoll;
/// The system call that copies the process and has no arguments: there is none.
pub(crate) const FORK: Option<i64> = None;

//! The x86-64 implementation of the interface that [`crate::arch`] states.

mod calls;
mod instructions;
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

/// The name of this processor's system calls in `struct seccomp_data`: `AUDIT_ARCH_X86_64`
/// (`<linux/audit.h>`).
pub(crate) const AUDIT_ARCHITECTURE: u32 = 0xc000_003e;

/// The kinds of relocations of words that hold the address of a function of another object:
/// `R_X86_64_GLOB_DAT` and `R_X86_64_JUMP_SLOT` (psABI, table 4.9).
pub(crate) const FUNCTION_RELOCATIONS: [u32; 2] = [6, 7];

/// The system call that waits for a descriptor.
pub(crate) const POLL: i64 = libc::SYS_poll;
/// The system call that copies the process and has no arguments.
pub(crate) const FORK: Option<i64> = Some(libc::SYS_fork);

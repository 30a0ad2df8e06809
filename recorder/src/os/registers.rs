//! The general registers of a stopped thread. What works in stopped threads (`attach`, static
//! programs) is for x86-64: a program of another machine is refused by its file's header before a
//! thread of it is stopped.

#[cfg(not(target_arch = "x86_64"))]
mod unknown;

#[cfg(not(target_arch = "x86_64"))]
pub(crate) use unknown::{getregs, setregs, user_regs_struct};

#[cfg(target_arch = "x86_64")]
pub(crate) use nix::libc::user_regs_struct;
#[cfg(target_arch = "x86_64")]
pub(crate) use nix::sys::ptrace::{getregs, setregs};

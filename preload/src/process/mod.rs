//! Functions of libc that change the process: fork, exec, the system calls that make a sandbox,
//! `dlclose`, and `mlockall`.

pub(crate) mod exec;
#[cfg(not(any(test, feature = "standalone")))]
pub(crate) mod exit;
#[cfg(not(any(test, feature = "standalone")))]
mod exports;
pub(crate) mod fork;
pub(crate) mod memory_lock;
pub(crate) mod sandbox;

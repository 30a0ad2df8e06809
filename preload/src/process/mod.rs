//! Functions of libc that change the process: fork, exec, the system calls that make a sandbox,
//! `dlclose`, and `mlockall`.

pub mod exec;
#[cfg(not(any(test, feature = "standalone")))]
pub mod exit;
#[cfg(not(any(test, feature = "standalone")))]
mod exports;
pub mod fork;
pub mod memory_lock;
pub mod sandbox;

//! Functions of libc that change the process: fork, exec, the system calls that make a sandbox, and
//! `dlclose`.

pub mod exec;
#[cfg(not(any(test, feature = "standalone")))]
mod exports;
pub mod fork;
pub mod sandbox;

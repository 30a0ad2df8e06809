//! `heaptape daemon`: records all processes of a machine that load the preload library, for months,
//! within fixed limits.
//!
//! ```text
//! programs ──> entrance ─> service ──> stages ──> process folders ─┐
//! ctl      ──>  clients    (drain, digest, store)    ├─> epochs: STATE/UID/EPOCH/
//! metrics  ──>  budgets         └── contributions ──>┘     archive: programs, flows, retention
//! senders  ──>  streams ──> receive (a thread each) ──>┘
//! ```
//! The thread of the service accepts processes and answers requests; it never waits for a disk. The
//! thread of the archive owns the files of the epochs. They communicate by messages.

mod answers;
mod archive;
mod budget;
mod clients;
pub mod config;
pub mod control;
mod dcpi_profiles;
mod entrance;
mod epoch;
pub mod fd_store;
mod intake;
mod metrics;
mod notify;
mod programs;
pub mod protocol;
mod receive;
mod retention;
mod rotation;
pub mod send;
pub mod service;
mod streams;

pub use service::run;

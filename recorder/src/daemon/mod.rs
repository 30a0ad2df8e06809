//! `heaptape daemon`: every process of a machine that has the library preloaded, for months, within
//! fixed bounds.
//!
//! ```text
//! programs ──> entrance ─> service ──> stages ──> image folders ─┐
//! ctl      ──>  clients    (drain, digest, store)    ├─> epochs: STATE/UID/EPOCH/
//! metrics  ──>  budgets         └── contributions ──>┘     archive: programs, flows, retention
//! senders  ──>  streams ──> receive (a thread each) ──>┘
//! ```
//! The service's thread takes processes in and answers questions; nothing that it does waits for a
//! disk. The archive's thread owns what is in the epochs. Both speak in messages.

mod answers;
mod archive;
mod budget;
mod clients;
pub mod config;
pub mod control;
mod entrance;
mod epoch;
pub mod fd_store;
mod flows;
mod intake;
mod metrics;
mod notify;
mod programs;
mod receive;
mod retention;
pub mod send;
pub mod service;
mod streams;
mod turns;

pub use service::run;

//! `heaptape daemon`: records all processes of a machine that load the preload library, for months,
//! within fixed limits.
//!
//! ```text
//! programs ──> entrance ─┐            ┌─> stages ──> folders of processes ─┐
//! ctl      ──> control ──┼─> service ─┤                                    ├─> epochs
//! metrics  ──> metrics ──┤            └─> archive: sums, DCPI, retention ──┘
//! senders  ──> streams ──┘ (receive: a thread for each)       ship <── sealed epochs
//!                                                             push <── served processes
//! ```
//! The thread of the service accepts processes and answers requests; it never waits for a disk. The
//! thread of the archive owns the files of the epochs. They communicate by messages.
//!
//! The service owns no state but its sockets. `registry` has the processes, `epochs` the folders to
//! which they are written, `budget` the limits, `streams` the files that others send, `successor`
//! what the next daemon gets. None of these five knows the service.
//!
//! The command calls [`run`] with a [`config::Config`] for the daemon, and [`fd_store::run`] for the
//! process that outlives it. `ctl`, `top` and their kin [`ask`] the daemon in the words of
//! [`protocol`]; [`send()`](send::send) sends it a file.

#![forbid(unsafe_code)]

extern crate heaptape_formats as formats;
extern crate heaptape_wire as wire;

mod address;
mod archive;
mod attacher;
mod budget;
mod clients;
mod clock_jumps;
pub mod config;
mod control;
mod dcpi_profiles;
mod disk;
mod entrance;
mod epoch;
mod epochs;
mod fair_map;
pub mod fd_store;
mod folders;
mod growth;
mod helper_command;
mod http;
mod incidents;
mod inquiries;
mod late;
mod left_open;
mod log_limit;
mod marks;
mod metrics;
mod notify;
mod orphans;
mod out_of_memory;
mod peer;
mod pressure;
mod programs;
pub mod protocol;
mod push;
mod receive;
mod registry;
mod reload;
mod retention;
pub mod send;
mod service;
mod ship;
mod streams;
mod successor;
mod verdicts;

pub use address::Address;
pub use control::ask;
pub use reload::Reread;
pub use service::run;
pub use verdicts::{Judged, JudgedProgram, JudgedSite, MAX_PROGRAMS, MAX_SITES, Unjudged};

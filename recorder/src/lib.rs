//! The recorder as a library: accepts traced processes, drains their rings, writes a recording.
//!
//! ```text
//! rings ─> drain ──batches──> digest ──────────────────write jobs──> store ─> files
//!          slots              process_recording: threads, heap       trace.mtrc, events.tape,
//!          merge              (live, profile), stacks (modules),     profile.mptl
//!                             output (trace, journal), schedule
//! ```
//! Each stage is a thread with a bounded queue in front of it. A full queue stops the stage before
//! it, in the end the rings, and then the program waits (or drops events and counts them).
//! A thread beside them reads which pages of the processes are in memory ([`pipeline::residency`]).
//! [`run::recorder::Recorder`] is the interface: it owns the listening sockets ([`session::listener`]), the
//! processes and their ends, and `recording.json`. [`run::launch`] runs a program with it.
//!
//! Invariants: data from a client is copied, validated, then used. Every amount that a client
//! controls is bounded. A corrupt ring is closed, and others continue. `emitted = recorded + lost +
//! sampled out` holds for every thread of a process that ended by itself. The trace is always
//! valid: an index is allocated before it is resized or freed. Files only grow, and a chunk exists
//! once the tape commits it.
#![deny(unsafe_code)]

extern crate heaptape_formats as formats;
extern crate heaptape_wire as wire;

pub use wire::{WIRE_MINOR, WIRE_VERSION};

pub mod digest;
pub mod heap;
pub mod inject;
pub mod os;
pub mod pipeline;
pub mod references;
pub mod rings;
pub mod run;
pub mod session;
pub mod store;
pub mod target;

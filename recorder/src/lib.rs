//! The recorder as a library: accepts traced processes, drains their rings, writes a recording.
//!
//! ```text
//! rings ─> drain ──batches──> digest ──────────────────write jobs──> store ─> files
//!          slots              process_recording: threads, heap       trace.mtrc, events.tape,
//!          merge              (live, profile), stacks (modules),     profile.mptl
//!                             output (trace, journal), schedule
//! ```
//! Each stage is a thread with a bounded queue in front of it. If a queue is full, the stage before
//! it waits, and so on back to the rings; then the program waits too, or drops events and counts
//! them. One more thread reads which pages of the processes are in memory
//! ([`pipeline::residency`]).
//!
//! What others use:
//!
//! - [`run::launch`] records a program that it starts, [`run::attach`] one that already runs. That is
//!   all of `heaptape record` and `heaptape attach`; [`session::options`] has their options.
//! - `heaptape daemon` has an event loop of its own. It takes programs in by [`run::admission`],
//!   gives each [`session::Session`] to the [`pipeline::Stages`], and leaves its descriptors to a
//!   [`session::keeper`] for the next daemon.
//! - [`target`] knows `/proc`, [`inject`] the places where hooks go, and [`os`] what Linux offers.
//! - [`digest`], [`heap`], [`rings`] and [`store`] show a little of themselves to the daemon's
//!   answers and to `examples/stages`, which measures each stage alone.
//!
//! The file of a folder lists what the folder offers.
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
mod references;
pub mod rings;
pub mod run;
pub mod session;
pub mod store;
pub mod target;

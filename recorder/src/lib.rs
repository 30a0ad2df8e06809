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
//! A thread beside them reads which pages of the processes are in memory ([`residency`]).
//! [`recorder::Recorder`] is the interface: it owns the listening sockets ([`attach`]), the
//! processes and their ends, and `recording.json`. [`launch`] runs a program with it.
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

pub mod access;
pub mod annotations;
pub mod attach;
pub mod attachment;
pub mod batch;
pub mod boards;
pub mod cgroup;
pub mod chunk_journal;
pub mod clock;
pub mod code;
pub mod compression;
pub mod crash;
pub mod digest;
pub mod division;
pub mod drain;
pub mod files;
pub mod handover;
pub mod heart;
pub mod history;
#[allow(unsafe_code)]
pub mod huge_pages;
pub mod index;
pub mod journal;
pub mod journal_files;
pub mod kept_file;
pub mod launch;
pub mod limit;
pub mod live;
pub mod merge;
pub mod module_files;
pub mod modules;
pub mod name_store;
pub mod options;
pub mod patch;
pub mod process;
pub mod process_maps;
pub mod process_recording;
pub mod profile;
pub mod profile_delta;
pub mod quota;
pub mod readiness;
pub mod recorder;
pub mod release;
pub mod release_state;
pub mod replace;
pub mod residency;
pub mod running_process;
pub mod sanitizer;
pub mod session;
pub mod signals;
pub mod slots;
pub mod socket_dir;
#[allow(unsafe_code)]
pub mod spawn;
pub mod stacks;
pub mod stages;
pub mod static_program;
pub mod store;
pub mod survivor;
pub mod symbols;
pub mod sync;
#[allow(unsafe_code)]
pub mod sys;
pub mod text;
pub mod trace;
pub mod tree;
pub mod vdso;

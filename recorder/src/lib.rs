//! The recorder as a library: takes traced processes in, drains their rings, writes a recording.
//!
//! ```text
//! rings ─> drain ──batches──> digest ────────pieces────────> store ─> files
//!          slots              image: live (index, journal),           trace.mtrc, events.tape,
//!          merge              stacks (modules), profile, trace        profile.mptl
//! ```
//! Each stage is a thread with a bounded queue in front; a full queue holds back the stage before
//! it, in the end the rings, and then the program waits (or drops and counts).
//! [`recorder::Recorder`] is what an owner holds: the door ([`attach`]), the processes and their
//! ends, `recording.json`. [`launch`] runs a program with it.
//!
//! Laws: what comes from a client is copied, judged, then used; every count of a client's is
//! bounded; a ring that makes no sense is closed, others go on. `emitted = recorded + lost +
//! sampled out` for every thread of a process that ended by itself. The trace is always legal: an
//! index is allocated before it is resized or freed. Files only grow, and a chunk exists once the
//! tape says so.
#![deny(unsafe_code)]

extern crate heaptape_formats as formats;
extern crate heaptape_wire as wire;

pub mod attach;
pub mod batch;
pub mod boards;
pub mod cgroup;
pub mod clock;
pub mod code;
pub mod contribution;
pub mod course;
pub mod crash;
pub mod daemon;
pub mod digest;
pub mod drain;
pub mod files;
pub mod heart;
pub mod image;
pub mod index;
pub mod journal;
pub mod launch;
pub mod live;
pub mod merge;
pub mod module_files;
pub mod modules;
pub mod options;
pub mod process;
pub mod profile;
pub mod quota;
pub mod recorder;
pub mod sanitizer;
pub mod session;
pub mod signals;
pub mod slots;
pub mod socket_dir;
#[allow(unsafe_code)]
pub mod spawn;
pub mod stacks;
pub mod stages;
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

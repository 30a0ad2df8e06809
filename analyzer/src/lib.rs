//! Reads recordings: load, replay, model, report, export.
//!
//! ```text
//! load ──> Process ──> replay ──> model ──> sums ──> report            text and JSON
//!            └─ stacks ──> symbols ───────────┘  └──> export, convert   files for other tools
//! ```
//! Modules depend only on those to the left. Models do not depend on files. Everything that is
//! missing from a recording is listed as [`Missing`], and every report prints it.
//!
//! What others use:
//!
//! - [`open`], [`open_all`] and [`epochs`] read whatever a path leads to: a recording, an epoch of the
//!   daemon, the folder of one process, a file of another tool.
//! - [`replay()`] passes the events of a [`Process`] to [`model`]s. [`sums()`] has totals and sums by
//!   call site, from whatever is cheapest.
//! - [`report`] has `report`, `leaks` and `diff`, and the grouping, naming and printing that all other
//!   reports share (the crate `heaptape-reports` has those). [`symbols`] names addresses.
//! - [`export`], [`convert`] and [`follow`] write files for other tools, [`import`] reads theirs.
//! - [`text`] is for whoever prints, and [`Progress`] for whoever takes long.
//!
//! # Examples
//!
//! ```
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/tape/v1/trace");
//! use heaptape_analyzer::event::{Kind, Span};
//! use heaptape_analyzer::{Progress, open};
//!
//! let recording = open(path.as_ref())?;
//! assert!(recording.is_complete());
//! for process in &recording.processes {
//!     let mut reallocations = 0;
//!     let missing = process.for_each(Span::ALL, &Progress::new("counting"), &mut |events| {
//!         reallocations += events.iter().filter(|event| event.kind == Kind::Resize).count();
//!     });
//!     assert!(missing.is_empty());
//!     println!("{}: {reallocations} reallocations", process.about.exe);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

// What commands, reports and tests use. Everything else is private to the crate.
pub mod convert;
pub mod epochs;
pub mod event;
pub mod export;
pub mod follow;
pub mod import;
pub mod model;
pub mod mptrace;
pub mod report;
pub mod suppress;
pub mod symbols;
pub mod text;
pub mod unpack;

pub mod annotations;
mod archive;
pub mod charts;
mod dump;
mod early_ends;
mod frame;
mod kept_file;
mod load;
mod missing;
mod pack;
mod pattern;
pub mod processes;
mod program_frames;
mod progress;
mod replay;
mod saved_names;
pub mod short_name;
pub mod similar;
pub mod source_files;
pub mod stack_ids;
mod stacks;
mod sums;
mod system_libraries;
mod types;

pub use archive::{has_names, write_archive};
pub use charts::sparkline;
pub use dump::{Error as DumpError, dump};
pub use kept_file::KeptFile;
pub use load::bare::{open as open_file, unpacking};
#[doc(hidden)]
pub use load::tape::read as read_tape;
pub use load::tape::{PageSnapshot, Tape, TraceRange};
pub use load::{
    Accounting, Clock, Core, Events, Failure, Joined, Process, Recording, Segment, is_core, is_recording, open,
    open_all, process_of_core, recording_around,
};
pub use missing::{Missing, lines as missing_lines};
pub use pack::{Packed, pack};
pub use processes::ProcessFilter;
pub use program_frames::{Role, Roles, blamed};
pub use progress::Progress;
pub use replay::{Outcome, Replay, replay, replay_all, replay_from};
#[doc(hidden)]
pub use saved_names::SavedTable;
pub use stacks::{Module, Site, Stacks};
pub use sums::{Sums, sums, sums_within};

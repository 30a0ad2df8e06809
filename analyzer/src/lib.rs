//! Reads recordings: load, replay, model, report, export.
//!
//! ```text
//! load ──> Process ──> replay ──> model ──> sums ──> report            text and JSON
//!            └─ stacks ──> symbols ───────────┘  ├──> export, convert   files for other tools
//!                                                └──> compat            views of other tools
//! ```
//! Modules depend only on those to the left, and compat views are on top of all. Models do not
//! depend on files. Everything that is missing from a recording is listed as [`Missing`],
//! and every report prints it.
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

pub mod charts;
pub mod compat;
pub mod convert;
pub mod epochs;
pub mod event;
pub mod export;
pub mod follow;
mod frame;
pub mod import;
pub mod load;
mod missing;
pub mod model;
pub mod pack;
mod pattern;
pub mod processes;
pub mod program_frames;
mod progress;
pub mod replay;
pub mod report;
#[doc(hidden)]
pub mod saved_names;
mod similar;
pub mod stacks;
pub mod sums;
pub mod suppress;
pub mod symbols;
pub mod text;
pub mod unpack;

pub use load::{Process, Recording, open};
pub use missing::Missing;
pub use progress::Progress;
pub use replay::replay;

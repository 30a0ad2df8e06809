//! The reading side: load, replay, model, report, export.
//!
//! ```text
//! load ──> Image ──> replay ──> model::*  ──> report::*   (text and JSON for people and scripts)
//!            └─ stacks ──> symbols ──> program_frames ──┘
//! ```
//! Models know nothing of files; reports know nothing of replay. Whatever a recording lacks comes
//! along as [`missing::Missing`], and every report says it.
#![forbid(unsafe_code)]

pub mod charts;
pub mod compat;
pub mod convert;
pub mod epochs;
pub mod event;
pub mod export;
pub mod follow;
pub mod import;
pub mod load;
pub mod missing;
pub mod model;
pub mod pack;
pub mod pattern;
pub mod processes;
pub mod program_frames;
pub mod progress;
pub mod replay;
pub mod report;
mod similar;
pub mod stacks;
pub mod suppress;
pub mod symbols;
pub mod text;
pub mod unpack;

pub use load::{Image, Recording, open};
pub use missing::Missing;
pub use progress::Progress;
pub use replay::replay;

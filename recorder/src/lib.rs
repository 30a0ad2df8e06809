//! The recorder as a library.
#![deny(unsafe_code)]

extern crate heaptape_formats as formats;
extern crate heaptape_wire as wire;

pub mod attach;
pub mod batch;
pub mod clock;
pub mod digest;
pub mod drain;
pub mod image;
pub mod index;
pub mod journal;
pub mod launch;
pub mod live;
pub mod merge;
pub mod modules;
pub mod options;
pub mod process;
pub mod profile;
pub mod recorder;
pub mod session;
pub mod slots;
pub mod stacks;
pub mod store;
#[allow(unsafe_code)]
pub mod sys;
pub mod trace;

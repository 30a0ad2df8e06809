//! The recorder as a library.
#![deny(unsafe_code)]

extern crate heaptape_formats as formats;
extern crate heaptape_wire as wire;

pub mod batch;
pub mod clock;
pub mod index;
pub mod merge;
pub mod modules;
pub mod profile;
pub mod stacks;
#[allow(unsafe_code)]
pub mod sys;

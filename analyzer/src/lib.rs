//! The reading side: load, replay, model, report, export.
#![forbid(unsafe_code)]

pub mod foreign;
pub mod unpack;

//! Files: chunks, traces and tapes, and what they are made of.

pub(crate) mod division;
pub(crate) mod files;
pub mod trace;
pub mod writer;

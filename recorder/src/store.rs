//! Files: chunks, traces and tapes, and what they are made of.

pub mod division;
pub mod files;
pub mod trace;
pub mod writer;

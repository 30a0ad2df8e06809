//! Writes chunks to disk: the trace first, then the commit record in the tape. [`writer`] is the
//! thread that does it, and knows what to do when the disk is full.

pub(crate) mod division;
pub(crate) mod files;
pub(crate) mod trace;
pub mod writer;

pub use trace::Chunk;

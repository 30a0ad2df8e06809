//! Readers and writers of every file format that heaptape knows, a folder for each.
//!
//! No input makes this crate panic, and it has no `unsafe` code. Memory is bounded by the size of
//! the input. A truncated file is an [`Ending`], not an error. The `layout.rs` of a folder is the
//! only place that describes the bytes of its format.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod abi;
pub mod core_file;
pub mod cursor;
pub mod date;
pub mod dcpi;
pub mod dhat;
mod encode_buf;
pub mod error;
pub mod foreign;
pub mod glibc_heap;
pub mod gmon;
pub mod heap_text;
pub mod heaptrack;
pub mod leak_log;
pub mod leb128;
pub mod massif;
pub mod mptl;
pub mod mtrc;
pub mod pattern;
pub mod perf_map;
pub mod perfetto;
pub mod pprof;
mod prefix;
pub mod quantity;
pub mod recording;
pub mod references;
pub mod regular;
pub mod replace;
pub mod resident;
pub mod sniff;
pub mod tape;

pub use abi::Abi;
pub use cursor::Cursor;
pub use encode_buf::EncodeBuf;
pub use error::{Ending, Error, Format, Kind, ReadError, Result, Validation};

//! Every file that heaptape reads or writes, one folder each, reader beside writer.
//!
//! Laws of this crate: no `unsafe`, no panic on any input, memory bounded by the size of the input, and a cut file is an
//! [`Ending`], not an error. `layout.rs` of each folder holds the only description of its bytes.
#![forbid(unsafe_code)]

pub mod cursor;
pub mod dcpi;
pub mod dhat;
pub mod error;
pub mod flavour;
pub mod gmon;
pub mod heaptrack;
pub mod leb128;
pub mod massif;
pub mod mptl;
pub mod mtrc;
pub mod pattern;
pub mod perf_map;
pub mod pprof;
pub mod recording;
pub mod sniff;
pub mod tape;

pub use cursor::Cursor;
pub use error::{Ending, Error, Failure, Format, Kind, Result, Walked};
pub use flavour::Flavour;

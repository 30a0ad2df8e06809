//! pprof's `profile.proto`: samples with several values each, by stack, with names, mappings and labels. Written by Go, jemalloc's
//! and TCMalloc's tools, and read by `go tool pprof` and many servers.
//!
//! The message as a whole is a sequence of records, so a file is read and written one record at a time: no table needs to lie in
//! memory, and of a cut file everything before the cut is given.

mod dump;
pub mod layout;
mod reader;
mod sniff;
mod writer;

pub use dump::dump;
pub use layout::{Function, Label, Line, Location, Mapping, Record, Sample, ValueType};
pub use reader::Reader;
pub use sniff::sniff;
pub use writer::{Writer, record};

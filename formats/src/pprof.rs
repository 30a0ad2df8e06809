//! pprof's `profile.proto`: samples with several values each, by call stack, with names, mappings
//! and labels. Go and the tools of jemalloc and TCMalloc write it; `go tool pprof` and many servers
//! read it.
//!
//! The whole message is a sequence of records, so a file is read and written one record at a time:
//! no table must be in memory, and of a truncated file everything before its end is read.

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

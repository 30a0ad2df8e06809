//! Text heap profiles: what jemalloc (`prof:true`) and gperftools (`HEAPPROFILE`) write, Go's
//! `/debug/pprof/heap?debug=1`, and Java's `heapz`. `jeprof`, `google-pprof` and `go tool pprof`
//! read them.

mod dump;
pub mod layout;
mod reader;

pub use dump::dump;
pub use layout::{Counts, Dialect, Header, Mapping, Name, Record, Sample, sniff};
pub use reader::Reader;

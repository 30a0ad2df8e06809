//! heaptrack's data file: lines of text with every allocation and deallocation, in order, as
//! `heaptrack_interpret` writes them and `heaptrack_print` and `heaptrack_gui` read them. It is
//! usually compressed with gzip or zstd.

mod dump;
pub mod layout;
mod reader;

pub use crate::ReadError;
pub use dump::dump;
pub use layout::{FrameName, Line, put, sniff};
pub use reader::Reader;

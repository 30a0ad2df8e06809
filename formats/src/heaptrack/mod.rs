//! heaptrack's data file: lines of text with every allocation and free, in order, as `heaptrack_interpret` writes them and
//! `heaptrack_print` and `heaptrack_gui` read them. Usually packed with gzip or zstd.

mod dump;
pub mod layout;
mod reader;

pub use dump::dump;
pub use layout::{Line, NameOf, put, sniff};
pub use reader::{Failure, Reader};

//! Massif's output: live bytes at some moments of a run, at some of these by stack. `ms_print` shows it.

mod dump;
pub mod layout;
mod reader;
mod writer;

pub use dump::dump;
pub use layout::{Head, Kind as TreeKind, Node, Snapshot, sniff};
pub use reader::Reader;
pub use writer::{head, snapshot};

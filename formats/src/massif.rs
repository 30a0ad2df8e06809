//! Massif's output: live bytes at some points in time of a run, at some of these by call stack.
//! `ms_print` shows it.

mod dump;
pub mod layout;
mod reader;
mod writer;

pub use dump::dump;
pub use layout::{Header, Kind as TreeKind, Node, Snapshot, sniff};
pub use reader::Reader;
pub use writer::{write_header, write_snapshot};

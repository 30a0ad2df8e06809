//! DHAT's data file: sums of blocks by call stack, with lifetimes, as JSON. Valgrind's DHAT and
//! Rust's `dhat` crate write it, and `dh_view.html` shows it.

mod dump;
pub mod layout;
mod reader;

pub use dump::dump;
pub use layout::{File, Point};

//! mpatrol's profile (MPTL): sums of allocations and frees per size and per call stack, without order.
//!
//! [`Profile::read`] checks every reference, so that whoever has a [`Profile`] may follow indexes and parents blindly.
//! [`Profile::write`] gives the bytes of a file that was read back unchanged; [`Builder`] makes a new profile as the real
//! library would number it. [`validate`] checks one that comes piece by piece, in constant memory.

mod builder;
mod dump;
pub mod layout;
mod naming;
mod reader;
mod validate;
mod writer;

pub use builder::{Builder, Symbol};
pub use dump::dump;
pub use layout::{Bins, Data, Profile, Site, Sums};
pub use naming::{FunctionNames, add_names};
pub use reader::needs_whole_file;
pub use validate::validate;

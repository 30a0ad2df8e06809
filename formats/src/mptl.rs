//! mpatrol's profile (MPTL): sums of allocations and deallocations by size and by call stack,
//! without their order.
//!
//! [`Profile::read`] checks every reference, so that a [`Profile`] can be used without further
//! checks of indexes and parents. [`Profile::write`] returns a file that was read to the same
//! bytes. [`Builder`] makes a new profile and numbers it as the real library does. [`validate()`]
//! checks a profile that arrives in several reads, in constant memory.

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

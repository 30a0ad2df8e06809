//! The rings of one process. Each thread of a program writes its own; here they become one sequence
//! of events in the order in which they happened ([`merge`]).

pub(crate) mod batch;
pub(crate) mod counts;
pub(crate) mod heartbeat;
pub mod merge;
pub(crate) mod ring_space;
pub(crate) mod slots;

pub use batch::{Batch, Run};

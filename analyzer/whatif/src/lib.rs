//! Replays the allocations of a recorded process under another allocator, and measures the resident
//! memory, the time and the page faults that it takes.
//!
//! [`write_operations`] writes what the process did with its heap to a file of [`operations`].
//! [`replay_under`] starts a process under an allocator that is preloaded ([`Allocator`]). In that
//! process [`play`] performs the operations: the same sizes and alignments, in the recorded order
//! across threads, each by a thread of its own. Every page of a block is written once when the
//! block is allocated, since a recording does not tell which pages the program wrote to.

mod allocators;
mod child;
mod comparison;
pub mod operations;
mod player;
mod recorded;

pub use allocators::{Allocator, AllocatorError, installed};
pub use child::{ReplayError, replay_under};
pub use comparison::{Comparison, Row};
pub use player::{Measured, PlayError, play};
pub use recorded::{LiveBytes, Unplayable, write_operations};

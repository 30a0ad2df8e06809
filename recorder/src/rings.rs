//! The rings of the threads of one process, and the order of their events.

pub mod batch;
pub(crate) mod heartbeat;
pub mod merge;
pub mod ring_space;
pub(crate) mod slots;

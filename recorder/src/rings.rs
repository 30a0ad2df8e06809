//! The rings of the threads of one process, and the order of their events.

pub mod batch;
pub mod heartbeat;
pub mod merge;
pub mod ring_space;
pub mod slots;

//! Applies events to the heap and makes chunks of them.

pub mod chunks;
pub mod process;

//! Applies events to the heap and makes chunks of them.

pub(crate) mod chunks;
pub mod process;

//! The threads that drain, digest and store.

pub mod drain;
pub mod residency;
pub mod stages;

//! The threads of a recorder, with a bounded queue before each: [`drain`] reads the rings, the
//! digest applies the events, the store writes. [`stages`] starts and ends them.

pub(crate) mod drain;
pub mod residency;
pub(crate) mod stages;

pub use drain::Command;
pub use stages::Stages;

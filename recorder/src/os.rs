//! Linux for the rest of the crate: system calls, clocks, files, helper processes. Nothing here
//! knows what a recording is.

pub mod aside;
pub(crate) mod atomics;
pub mod clock;
pub(crate) mod compression;
pub mod confine;
pub mod crash;
#[allow(unsafe_code)]
pub(crate) mod huge_pages;
pub mod permissions;
pub mod poll;
pub(crate) mod process_events;
#[allow(unsafe_code)]
pub mod processor;
pub(crate) mod regular_file;
pub(crate) mod replace_file;
pub(crate) mod signals;
#[allow(unsafe_code)]
pub(crate) mod spawn;
#[allow(unsafe_code)]
pub(crate) mod start_again;
pub mod sync;
#[allow(unsafe_code)]
pub mod sys;

pub use compression::Compression;
pub use huge_pages::HugePages;
pub use replace_file::{Durability, replace_file};

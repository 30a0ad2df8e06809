//! What the operating system gives: system calls, clocks, files, processes of our own.

pub mod aside;
pub(crate) mod atomics;
pub mod clock;
pub mod compression;
pub mod confine;
pub mod crash;
#[allow(unsafe_code)]
pub mod huge_pages;
pub mod permissions;
pub mod poll;
#[allow(unsafe_code)]
pub mod processor;
pub(crate) mod registers;
pub(crate) mod regular_file;
pub mod replace_file;
pub(crate) mod signals;
#[allow(unsafe_code)]
pub(crate) mod spawn;
pub mod sync;
#[allow(unsafe_code)]
pub mod sys;

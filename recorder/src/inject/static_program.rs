//! Static programs: there is no loader that could load our library.
//!
//! `heaptape record` stops such a program at its exec, before its first instruction, maps the
//! standalone library into it, and lets the library run first. The library attaches the process and
//! hooks its allocator, and then the program begins. Nothing traces the program then.
//!
//! The same is done with a static program that a recorded process starts. The library in that
//! process requests it right before the exec, and a thread of the recorder ([`Loader`]) follows the
//! process to the exec.
//!
//! A program is left alone, and runs unrecorded, if it has no function of an allocator that can be
//! hooked, or gets other rights by its file: the kernel refuses these rights to a traced program.

mod image;
mod loader;
mod program;
mod tracee;
mod unwind_header;

pub(crate) use image::{Image, ImageError};
pub use loader::Loader;
pub(crate) use loader::{Follow, Loaded, NOT_PERMITTED};
pub(crate) use program::{StaticProgram, find};
pub(crate) use tracee::Tracee;

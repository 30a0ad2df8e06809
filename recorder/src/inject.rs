//! Hooks for programs that the dynamic linker doesn't help with: jumps into allocators that are
//! inside a program ([`patch`]), and the library for static programs ([`static_program`]).

pub(crate) mod frames;
pub(crate) mod maps;
pub mod patch;
mod search_tables;
pub(crate) mod static_program;

pub use static_program::Loader;

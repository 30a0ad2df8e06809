//! Puts hooks into programs: jumps into allocators, the library into static programs.

pub(crate) mod frames;
pub(crate) mod maps;
pub mod patch;
mod search_tables;
pub mod static_program;

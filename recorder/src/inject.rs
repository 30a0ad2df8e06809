//! Puts hooks into programs: jumps into allocators, the library into static programs.

pub mod patch;
pub mod static_program;

//! What takes too long for every submission and is no long form of a pipeline test: `scripts/dev
//! torture`.
#![forbid(unsafe_code)]

mod big_programs;
mod damage;
mod large;

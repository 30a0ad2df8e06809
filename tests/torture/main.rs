//! Tests that take too long for every submission: `scripts/dev torture`.
#![forbid(unsafe_code)]

mod big_programs;
mod damage;
mod large;

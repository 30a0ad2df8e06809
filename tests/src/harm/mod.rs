//! Finds unexpected harm: generated programs mix what programs do, run bare and recorded, and must
//! see no difference.
//!
//! A [`Case`] is data, a list of steps. `tests/programs/harm_steps.c` executes it, so no case needs
//! a compiler. [`mod@generate`] makes cases, [`mod@run`] runs one and reads what it saw,
//! [`mod@shrink`] shrinks a case that differs, and [`mod@hunt`] does all of it until a deadline.

mod case;
mod generate;
mod hunt;
mod linkage;
mod recording;
mod run;
mod shrink;

pub use case::{Case, Step};
pub use generate::generate;
pub use hunt::{Found, Hunt, Summary};
pub use linkage::Linkage;
pub use run::{Bench, Observation, Way};
pub use shrink::shrink;

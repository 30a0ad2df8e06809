//! The reports: text and JSON for people and scripts. One file each; what they share stands here.
//!
//! Text goes through a [`crate::text::Screen`]; JSON goes through [`json::print`], which escapes
//! what could steer a terminal.

pub mod diff;
mod filter;
pub mod fragmentation;
mod frames;
pub mod free_sites;
pub(crate) mod grouping;
mod hints;
pub mod json;
pub mod leaks;
pub mod lifetimes;
pub mod peak;
pub mod profile_names;
mod questions;
mod range;
pub mod realloc;
pub mod sites;
pub mod sizes;
mod stack_text;
pub mod summary;
pub mod sums;
pub mod temporary;
pub mod threads;
pub mod threshold;
pub mod timeline;
pub mod verify;

pub use filter::Filter;
pub use frames::{FrameJson, Place, frames_of, place, stack_json};
pub use grouping::By;
pub use profile_names::{PLAIN_LIMIT, name_profile};
pub use questions::{Head, Query};
pub use stack_text::text_stack;
pub use summary::after_record;

use crate::load::Image;
use crate::missing::{self, Missing};
use crate::text::{self, Screen};
use std::io;

/// Why a report could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing can be read.
    #[error(transparent)]
    Load(#[from] crate::load::Failure),
    /// It could not be printed, or a file not be written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The question cannot be asked of this file.
    #[error("{0}")]
    Unanswerable(String),
}

/// How a report came out, for the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing is missing.
    Complete,
    /// Something is.
    Incomplete,
    /// It was printed that nothing was recorded.
    NoAnswer,
}

impl Outcome {
    /// Incomplete when something is missing.
    pub fn of(missing: usize) -> Self {
        if missing == 0 { Outcome::Complete } else { Outcome::Incomplete }
    }

    /// Both together.
    #[must_use]
    pub fn and(self, other: Outcome) -> Self {
        if self == Outcome::Complete { other } else { self }
    }
}

/// How many missing things are printed one by one.
const SHOWN: usize = 5;

/// Says what is missing, the first few things one by one.
pub(crate) fn say_missing(screen: &mut Screen, of: &str, missing: &[Missing]) -> io::Result<()> {
    say_lines(screen, of, &missing::lines(missing))
}

/// Says of a sampled recording that it is one.
pub(crate) fn say_sampled(screen: &mut Screen, of: &str, image: &Image) -> io::Result<()> {
    if !image.tape.is_sampled() {
        return Ok(());
    }
    let passed = text::count(image.tape.sampled_out());
    screen.line(&format!(
        "{of}sampled: {passed} events were passed over; bytes are estimates, blocks are those of the sample"
    ))
}

/// Names the programs that have a `malloc` of their own, which is called instead of heaptape's.
pub(crate) fn say_own_malloc<'a>(
    screen: &mut Screen,
    programs: impl Iterator<Item = (&'a str, u32)>,
) -> io::Result<()> {
    for (name, pid) in programs.take(SHOWN) {
        screen.warning(&format!(
            "! {name} (pid {pid}): the program has its own malloc, in itself or in a library preloaded before heaptape's; what this \
             does not pass on is not recorded"
        ))?;
    }
    Ok(())
}

pub(crate) fn say_lines(screen: &mut Screen, of: &str, missing: &[String]) -> io::Result<()> {
    for one in missing.iter().take(SHOWN) {
        screen.warning(&format!("! {of}{one}"))?;
    }
    if missing.len() > SHOWN {
        screen
            .warning(&format!("! {of}{} things more are missing; heaptape verify lists them", missing.len() - SHOWN))?;
    }
    Ok(())
}

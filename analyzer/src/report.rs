//! The reports, as text for people and as JSON for scripts: one file for each, and here what they
//! share.
//!
//! Text goes through a [`crate::text::Screen`]. JSON goes through [`json::print`], which escapes
//! what could control a terminal.

pub mod ancestors;
pub mod bills;
mod blocks_by_address;
mod core_references;
pub mod coverage;
pub mod diff;
pub mod filter;
pub mod frames;
pub mod functions;
pub mod grouping;
mod hints;
pub mod holders;
pub mod json;
pub mod leaks;
pub mod lost;
pub mod mapped;
pub mod mapping_filter;
pub mod pinned;
mod point_in_time;
mod process_header;
pub mod profile_names;
mod query;
pub mod range;
pub mod resident;
mod scope;
pub mod segments;
mod site_groups;
pub mod stack_text;
pub mod summary;
pub mod unanswerable;
pub mod verify;
mod view;
pub mod written;

pub use core_references::ask_of_core;
pub use filter::{Filter, FilterError};
pub(crate) use frames::frames_of;
pub use frames::{CallSite, FrameJson, call_site, stack_json};
pub use grouping::GroupBy;
pub use mapping_filter::MappingFilter;
pub use point_in_time::PointInTime;
pub use process_header::ProcessHeader;
pub use profile_names::{PLAIN_LIMIT, name_profile};
pub use query::Query;
pub(crate) use range::RangeError;
pub use scope::Scope;
pub use site_groups::{Grouping, SiteDescription, SiteGroup};
pub use stack_text::text_stack;
pub use summary::after_record;
pub use unanswerable::Unanswerable;
pub(crate) use unanswerable::needs_frees;
pub use view::View;

use crate::load::{Events, Process};
use crate::missing::{self, Missing};
use crate::text::{self, Screen};
use std::io;

/// The reason why a report could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A recording or file cannot be read.
    #[error(transparent)]
    Load(#[from] crate::load::Failure),
    /// The report cannot be printed, or a file cannot be written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// No process is selected.
    #[error(transparent)]
    Select(#[from] crate::processes::SelectError),
    /// No process of one side of a comparison is selected.
    #[error("{}", .path.display())]
    SelectSide {
        path: std::path::PathBuf,
        /// Why no process is selected.
        source: crate::processes::SelectError,
    },
    /// The time range selects nothing.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// The filter of blocks selects nothing.
    #[error(transparent)]
    Filter(#[from] FilterError),
    /// A file of suppressions cannot be read.
    #[error("{path}")]
    Open { path: String, source: io::Error },
    /// A file of suppressions has a syntax error.
    #[error(transparent)]
    Suppressions(#[from] crate::suppress::Error),
    /// The recording does not hold what the report needs.
    #[error(transparent)]
    Unanswerable(#[from] Unanswerable),
}

/// The outcome of a report, which determines the exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing is missing from the recordings.
    Complete,
    /// Something is missing from the recordings.
    Incomplete,
    /// Nothing was recorded, as the report states.
    NoAnswer,
}

impl Outcome {
    /// Returns the outcome for a number of missing things.
    pub fn of(missing: usize) -> Self {
        if missing == 0 { Outcome::Complete } else { Outcome::Incomplete }
    }

    /// Returns the outcome of two reports together.
    #[must_use]
    pub fn and(self, other: Outcome) -> Self {
        if self == Outcome::Complete { other } else { self }
    }
}

/// Maximum number of missing things that are printed one by one.
const SHOWN: usize = 5;

/// Prints what is missing, the first few things one by one. Each line begins with `of`.
///
/// # Errors
/// When the screen cannot be written.
pub fn print_missing(screen: &mut Screen, of: &str, missing: &[Missing]) -> io::Result<()> {
    print_lines(screen, of, &missing::lines(missing))
}

/// Prints that the recording is sampled, if it is.
///
/// # Errors
/// When the screen cannot be written.
pub fn print_state(screen: &mut Screen, of: &str, process: &Process) -> io::Result<()> {
    for note in &process.import_notes {
        screen.line(&format!("{of}{note}"))?;
    }
    if process.is_being_written() {
        screen.line(&format!("{of}still running: the recording has its events up to now"))?;
    }
    if !process.tape.is_sampled() {
        return Ok(());
    }
    let skipped = text::count(process.tape.sampled_out());
    let estimates = match process.events {
        Events::Taped { trace: None, .. } | Events::Profile | Events::Sums => "bytes and blocks are estimates",
        _ => "bytes are estimates, blocks are those of the sample",
    };
    screen.line(&format!("{of}sampled: {skipped} events were sampled out; {estimates}"))
}

/// Prints the names of the programs that have their own `malloc`, which is called instead of
/// heaptape's.
///
/// # Errors
/// When the screen cannot be written.
pub(crate) fn print_own_malloc<'a>(
    screen: &mut Screen,
    programs: impl Iterator<Item = (&'a str, u32)>,
) -> io::Result<()> {
    for (name, pid) in programs.take(SHOWN) {
        screen.warning(&format!(
            "! {name} (pid {pid}): the program has its own malloc, in itself or in a library preloaded before heaptape's; only what it \
             passes on to the next malloc is recorded"
        ))?;
    }
    Ok(())
}

/// Prints the first few lines about missing things, and the number of the others.
///
/// # Errors
/// When the screen cannot be written.
pub(crate) fn print_lines(screen: &mut Screen, of: &str, missing: &[String]) -> io::Result<()> {
    for one in missing.iter().take(SHOWN) {
        screen.warning(&format!("! {of}{one}"))?;
    }
    if missing.len() > SHOWN {
        screen
            .warning(&format!("! {of}{} more things are missing; heaptape verify lists them", missing.len() - SHOWN))?;
    }
    Ok(())
}

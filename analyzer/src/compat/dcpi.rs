//! The views of the DCPI tools: [`prof`] by procedure or image, [`list`] of one procedure line by
//! line, [`cat`] as plain text, [`diff`] of two sets. Options and columns follow the published
//! manual pages. `docs/dcpi.md` lists the differences.
//!
//! Each view takes a [`Set`]: profiles summed by image, address and event, each image with its ELF
//! file if one was found.

pub mod cat;
pub mod diff;
mod disassembly;
mod elf;
pub mod list;
pub mod prof;
mod set;
mod text;

pub use elf::Elf;
pub use set::{Event, Image, Inputs, Set};

use crate::unpack;
use std::io;

/// The error of a view.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A named file could not be opened.
    #[error(transparent)]
    Open(#[from] unpack::Error),
    /// No file could be read. The text lists the fault of each file.
    #[error("no DCPI profile could be read{0}")]
    NoProfile(String),
    /// The requested event is not in the files.
    #[error("no samples of event {wanted}; there are {present}")]
    NoEvent {
        /// Name of the requested event.
        wanted: String,
        /// The events in the files, separated by commas.
        present: String,
    },
    /// The requested procedure was not found, or is ambiguous. The text is the complete message.
    #[error("{0}")]
    NoProcedure(String),
    /// The result could not be written.
    #[error("writing the result")]
    Write(#[from] io::Error),
}

/// The result of a view.
pub type Result<T> = std::result::Result<T, Error>;

//! The views of the DCPI tools: [`prof`] by procedure or image, [`list`] of one procedure line by line, [`cat`] as plain text,
//! [`diff`] of two sets. Options and columns follow the published manual pages; docs/dcpi.md says where they differ.
//!
//! Each view takes a [`Set`]: profiles summed by image, address and event, each image with its ELF file if there is one.

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

/// Why a view could not be given.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file that was named could not be opened.
    #[error(transparent)]
    Open(#[from] unpack::Error),
    /// No file could be read; the text says what was wrong with each.
    #[error("no DCPI profile could be read{0}")]
    Nothing(String),
    /// No such event in the files.
    #[error("no samples of event {wanted}; there are {present}")]
    NoEvent {
        /// What was asked for.
        wanted: String,
        /// What is there.
        present: String,
    },
    /// No such procedure in the images.
    #[error("{0}")]
    NoProcedure(String),
    /// The result could not be written.
    #[error("writing the result")]
    Write(#[from] io::Error),
}

/// The result of a view.
pub type Result<T> = std::result::Result<T, Error>;

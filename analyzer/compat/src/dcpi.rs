//! The views of the DCPI tools: [`prof`] by procedure or image, [`list`] of one procedure line by
//! line, [`cat`] as plain text, [`diff`] of two sets, [`graph`] as a picture; and [`scan`] of
//! programs and libraries. Options and columns follow the published
//! manual pages. `docs/dcpi.md` lists the differences.
//!
//! Each view of profiles takes a [`Set`]: profiles summed by image, address and event, each image with its ELF
//! file if one was found.

pub mod cat;
pub mod diff;
mod disassembly;
mod elf;
pub mod graph;
pub mod list;
pub mod prof;
pub mod scan;
mod set;
mod text;

pub use elf::Elf;
pub use set::{Event, Image, Inputs, Set};

use heaptape_analyzer::unpack;
use std::io;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A named file could not be opened.
    #[error(transparent)]
    Open(#[from] unpack::Error),
    /// No file could be read.
    #[error("no DCPI profile could be read{}", .faults.iter().map(|fault| format!("\n  {fault}")).collect::<String>())]
    NoProfile { faults: Vec<String> },
    /// The requested event is not in the files.
    #[error("no samples of event {wanted}; there are {present}")]
    NoEvent {
        /// Name of the requested event.
        wanted: String,
        /// The events in the files, separated by commas.
        present: String,
    },
    /// No image has symbols, so that no procedure can be found.
    #[error("{0}: no image has symbols; name its ELF file (--image)")]
    NoSymbols(String),
    /// The requested procedure was not found.
    #[error("{0}: no such procedure in the images")]
    NoProcedure(String),
    /// Several procedures have the requested name, and no samples.
    #[error("{name}: {count} procedures, none with samples")]
    NoSamples {
        /// Name that was requested.
        name: String,
        /// Number of procedures with this name.
        count: usize,
    },
    /// Several procedures with samples have the requested name.
    #[error("{name}: several procedures, name an address: {}", .locations.join(", "))]
    SeveralProcedures {
        /// Name that was requested.
        name: String,
        /// Address and image of each procedure.
        locations: Vec<String>,
    },
    /// The picture could not be drawn.
    #[error(transparent)]
    Draw(#[from] heaptape_analyzer::export::Error),
    /// The result could not be written.
    #[error("writing the result")]
    Write(#[from] io::Error),
}

pub type Result<T> = std::result::Result<T, Error>;

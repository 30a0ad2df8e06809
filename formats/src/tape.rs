//! heaptape's own file beside `trace.mtrc`, `events.tape`, for what MTRC and MPTL cannot hold.
//!
//! A file is [`layout::FILE_MAGIC`] and a version, then records. Each record is framed with magic,
//! kind, length and checksum, so that a reader skips damaged bytes and finds the next intact
//! record. The record [`Chunk`] commits a run of bytes of `trace.mtrc`: it has their offset, their
//! checksum, and the columns that MTRC lacks.

pub mod codec;
mod division;
mod dump;
mod elf_head;
pub mod field;
pub mod frame;
pub mod journal;
pub mod layout;
mod mappings;
mod origin;
mod references;
mod residency;
pub mod stream;
mod symbols;
mod waiting;

pub use codec::{Codec, Packer, Unpacker};
pub use division::*;
pub use dump::dump;
pub use elf_head::head;
pub use frame::{Reader, Step, Writer};
pub use layout::*;
pub use mappings::*;
pub use origin::Origin;
pub use references::*;
pub use residency::*;
pub use stream::{Source, Stream};
pub use symbols::*;

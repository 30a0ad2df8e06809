//! `events.tape`: heaptape's own file beside `trace.mtrc`, holding what MTRC and MPTL cannot.
//!
//! A file is [`layout::FILE_MAGIC`] and a version, then records, each framed with magic, kind, length and checksum, so that
//! a reader passes over what is torn and finds the next whole record. The record [`Chunk`] is what makes a piece of
//! `trace.mtrc` exist: it says where the bytes lie, their checksum, and holds the columns that MTRC lacks.

pub mod codec;
mod dump;
pub mod field;
pub mod frame;
pub mod layout;
pub mod stream;
mod symbols;

pub use codec::{Codec, Unpacker};
pub use dump::dump;
pub use frame::{Reader, Step, Writer};
pub use layout::*;
pub use stream::{Source, Stream};
pub use symbols::*;

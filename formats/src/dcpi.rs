//! DCPI profile files: the samples of one program or library (in DCPI's terms, an image) and one
//! event, by address (Digital Continuous Profiling Infrastructure, Alpha, 1996-2004;
//! dcpiformat(4)).
//!
//! [`read`] borrows the bytes of the file and allocates memory for errors only. [`Builder`] builds
//! files from addresses and counts, [`write()`] writes a file that was read, and [`dump()`] prints
//! a file with one record per line.

mod builder;
mod dump;
mod header;
pub mod layout;
mod lines;
mod reader;
mod remarks;
mod sniff;
mod time;
mod writer;

pub use crate::date::Date as Epoch;
pub use builder::{Builder, Built, HeaderFields};
pub use dump::dump;
pub use header::{Header, Version};
pub use lines::{Line, LineIter, Lines};
pub use reader::{Chunk, Chunks, Profile, read, read_at};
pub use remarks::Remarks;
pub use sniff::sniff;
pub use writer::write;

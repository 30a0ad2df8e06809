//! DCPI profile files: the samples of one image and one event, address by address (Digital
//! Continuous Profiling Infrastructure, Alpha, 1996-2004; dcpiformat(4)).
//!
//! [`read`] borrows the file's bytes: the only memory taken is for what is wrong with the file.
//! [`Builder`] makes files from addresses and counts, [`write()`] writes one that was read,
//! [`dump()`] prints any, one record a line.

mod builder;
mod dump;
mod header;
pub mod layout;
mod lines;
mod reader;
mod sniff;
mod time;
mod writer;

pub use builder::{Builder, Built, HeaderFields};
pub use dump::dump;
pub use header::{Header, Version};
pub use lines::{Line, LineIter, Lines};
pub use reader::{Chunk, Chunks, Profile, Remarks, read, read_at};
pub use sniff::sniff;
pub use time::Epoch;
pub use writer::write;

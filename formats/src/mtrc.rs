//! mpatrol's event trace (MTRC): every allocation, reallocation and deallocation of heap memory, in
//! order.
//!
//! [`Reader`] reads bytes in memory, a whole file or one chunk of it. [`Stream`] reads from any
//! source in constant memory, and [`validate()`] checks such a source without returning its
//! records. [`Writer`] appends to a `Vec`, and [`ColumnWriter`] writes columns instead. [`Shape`]
//! describes what a record does not say of its encoding.

mod column_writer;
mod columns;
mod dump;
pub mod layout;
mod names;
mod reader;
mod rewrite;
mod shape;
mod stream;
mod window;
mod writer;

pub use crate::ReadError;
pub use column_writer::ColumnWriter;
pub use columns::{COLUMNS, Columns, Item, Items, join, most_bytes, restore};
pub use dump::dump;
pub use layout::{Header, Location, Record};
pub use reader::{Numbers, Reader};
pub use rewrite::rewrite;
pub use shape::{Name, Shape};
pub use stream::{Stream, validate};
pub use window::Window;
pub use writer::{Block, Options, RECORD_BUFFER_LEN, Writer};

//! mpatrol's event trace (MTRC): every taking, resize and giving back of heap memory, in order.
//!
//! [`Reader`] reads bytes that lie in memory, a whole file or one chunk of it; [`Stream`] reads from anything that can be
//! read, in constant memory, and [`validate`] checks without looking; [`Writer`] appends to a `Vec`. What each keeps of the way in which numbers and names were
//! encoded is said at [`Shape`].

mod dump;
pub mod layout;
mod names;
mod reader;
mod shape;
mod stream;
mod window;
mod writer;

pub use crate::ReadError;
pub use dump::dump;
pub use layout::{Header, Location, Record};
pub use reader::{Numbers, Reader};
pub use shape::{Name, Shape, rewrite};
pub use stream::{Stream, validate};
pub use window::Window;
pub use writer::{Options, RECORD_BUFFER_LEN, Writer};

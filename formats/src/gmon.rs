//! gprof's gmon.out: histograms of the addresses of samples (or bytes), arcs of the call graph,
//! counts of basic blocks.
//!
//! [`read`] keeps the file as it is, and [`write()`] returns the same bytes. [`Union`] is the sum
//! of several records and files in 64 bits. [`Builder`] makes a file of sums that are larger than
//! its fields. [`dump()`] prints a file.

mod bins;
mod bsd;
mod builder;
mod detect;
mod dump;
pub mod layout;
mod reader;
mod union;
mod writer;

pub use builder::Builder;
pub use dump::dump;
pub use layout::{Arc, Block, Blocks, Form, Gmon, Histogram, Histograms, Record, Unit};
pub use reader::{Hints, read};
pub use union::{Sum, Union};
pub use writer::write;

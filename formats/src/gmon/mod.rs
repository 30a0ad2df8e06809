//! gprof's gmon.out: histograms of where samples (or bytes) fell, arcs of the call graph, counts of basic blocks.
//!
//! [`read`] keeps the file as it is, [`write()`] gives the same bytes again; [`Union`] is what several records and files mean
//! together, in 64 bits; [`Builder`] makes a file of sums that are larger than its fields; [`dump()`] prints one.

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

//! Writes a trace as HATF (Heap Allocation Trace Format) text: a header of five lines, then one
//! line for each event.

use crate::text::clean;
use std::io::{self, Write};

/// A writer of HATF text.
pub struct Hatf<'a>(&'a mut dyn Write);

impl<'a> Hatf<'a> {
    /// Writes the header. `name` is the name of the HATF file.
    ///
    /// # Errors
    /// Returns an error if writing to `out` fails.
    pub fn new(name: &str, out: &'a mut dyn Write) -> io::Result<Self> {
        let name = clean(name);
        write!(
            out,
            "## Tracename: {name}\n## Author: Unknown\n## Date: Unknown\n## DTDURL: hatf.dtd\n\
            ## Description: Converted to HATF by mptrace 1.4.\n\n"
        )?;
        Ok(Hatf(out))
    }

    pub(super) fn alloc(&mut self, address: u64, size: u64) -> io::Result<()> {
        writeln!(self.0, "1 {size} {address:#x}")
    }

    pub(super) fn free(&mut self, address: u64) -> io::Result<()> {
        writeln!(self.0, "2 {address:#x}")
    }

    pub(super) fn resize(&mut self, old: u64, new: u64, size: u64) -> io::Result<()> {
        writeln!(self.0, "4 {size} {old:#x} {new:#x}")
    }
}

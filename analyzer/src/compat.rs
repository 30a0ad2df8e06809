//! The views of the foreign tools, as those print them. Each is a function over the format's own tables.

pub mod dcpi;
mod demangle;
pub mod gprof;
pub mod input;
pub mod mleak;
pub mod mprof;
pub mod mptrace;

use crate::load::bare;
use heaptape_formats::{Format, sniff};
use std::io::Read;
use std::path::Path;

/// Bytes by which every format is known.
const SNIFF_LENGTH: u64 = 4096;

/// The format of a file, packed or not, when it is one that heaptape knows.
pub fn format_of(path: &Path) -> Option<Format> {
    let mut head = Vec::new();
    bare::open(path).and_then(|file| file.take(SNIFF_LENGTH).read_to_end(&mut head)).ok()?;
    sniff::format(&head)
}

/// For whoever gave a file to the wrong view: what it is, and who shows it.
pub fn wrong_format_hint(format: Format) -> String {
    let by = match format {
        Format::Mtrc => "mptrace",
        Format::Mptl => "mprof",
        Format::Gmon => "gprof",
        Format::Dcpi => "dcpiprof",
        Format::Tape | Format::Recording | Format::Pprof | Format::Heaptrack | Format::Dhat | Format::Massif => {
            "report"
        }
    };
    format!("the file's format is {format}; `heaptape {by}` shows it")
}

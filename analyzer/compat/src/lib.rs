//! Compat views: what the tools of earlier days would print, byte for byte.
//!
//! `mprof`, `mptrace` and `mleak` follow mpatrol, `gprof` follows GNU gprof, and `dcpi` follows the
//! DCPI tools. A view is a function over the tables of its file format, so it shows a file of the
//! original tool and a recording alike. The tables are short; loops over events are in the
//! analyzer, as is [`mptrace`].
#![forbid(unsafe_code)]

pub mod dcpi;
pub mod gprof;
pub mod input;
pub mod mleak;
pub mod mprof;

pub use heaptape_analyzer::mptrace;

use heaptape_formats::{Format, sniff};
use std::io::Read;
use std::path::Path;

/// Number of leading bytes that suffice to recognize every format.
const SNIFF_LENGTH: u64 = 4096;

/// Returns the format of a file, compressed or not, or `None` if the file cannot be read or has an
/// unknown format.
pub fn format_of(path: &Path) -> Option<Format> {
    if !path.is_file() {
        // What was read of a pipe is gone.
        return None;
    }
    let mut start = Vec::new();
    heaptape_analyzer::open_file(path).and_then(|file| file.take(SNIFF_LENGTH).read_to_end(&mut start)).ok()?;
    sniff::format(&start)
}

/// Returns a hint for a file that was passed to the wrong view: its format and the command that
/// shows it.
pub fn wrong_format_hint(format: Format) -> String {
    let command = match format {
        Format::Mtrc => "mptrace",
        Format::Mptl => "mprof",
        Format::Gmon => "gprof",
        Format::Dcpi => "dcpiprof",
        Format::Core => "core",
        Format::Tape
        | Format::Recording
        | Format::Pprof
        | Format::Heaptrack
        | Format::Dhat
        | Format::Massif
        | Format::HeapText
        | Format::LeakLog => "report",
    };
    format!("the file's format is {format}; `heaptape {command}` shows it")
}

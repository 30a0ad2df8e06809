//! Leak reports of other tools: what LeakSanitizer and AddressSanitizer, valgrind's memcheck (text
//! and XML), glibc's `mtrace` and bcc's `memleak` print.

mod dump;
pub mod layout;
mod memcheck;
mod memleak;
mod mtrace;
mod sanitizer;
mod xml;

pub use dump::dump;
pub use layout::{Counts, Frame, Leak, LeakLog, Tool, find, sniff};

use crate::{Ending, Error, Format, Kind, Result};

/// Reads a file.
///
/// # Examples
///
/// ```
/// use heaptape_formats::leak_log::{self, Tool};
///
/// let text = b"= Start\n@ /srv/shop:[0x117f] + 0x55a0 0xa\n@ /srv/shop:[0x1199] - 0x55a0\n= End\n";
/// let (log, _) = leak_log::read(text)?;
/// assert_eq!((log.tool, log.leaks[0].allocated.bytes, log.leaks[0].live.bytes), (Tool::Mtrace, 10, 0));
/// # Ok::<(), heaptape_formats::Error>(())
/// ```
///
/// # Errors
/// When the file is none of these reports, has none of their lines, or is about another error.
pub fn read(bytes: &[u8]) -> Result<(LeakLog, Ending)> {
    let wrong = |kind| Error { format: Format::LeakLog, offset: 0, field: "report", kind };
    match find(bytes).ok_or_else(|| wrong(Kind::Magic))? {
        Tool::Sanitizer => sanitizer::read(bytes),
        Tool::Memcheck => Ok(memcheck::read(bytes)),
        Tool::MemcheckXml => Ok(xml::read(bytes)),
        Tool::Mtrace => mtrace::read(bytes),
        Tool::Memleak => Ok(memleak::read(bytes)),
    }
}

//! Dump of a leak report: one leak or frame per line.

use super::layout::Counts;
use crate::Ending;
use std::io::{self, Write};

/// Prints the content of a file, and how it ended.
///
/// # Errors
/// When `out` fails. An error in the bytes is printed as the last line.
pub fn dump(bytes: &[u8], out: &mut dyn Write) -> io::Result<()> {
    let (log, ending) = match super::read(bytes) {
        Ok(read) => read,
        Err(error) => return writeln!(out, "error {error}"),
    };
    let counts = |Counts { blocks, bytes }| format!("{blocks} blocks {bytes} bytes");
    writeln!(out, "{} pid {} processes {} command {:?}", log.tool.name(), log.pid, log.processes, log.command)?;
    if let Some(live) = log.live {
        writeln!(out, "live {}", counts(live))?;
    }
    if let Some((allocated, frees)) = log.allocated {
        writeln!(out, "allocated {} frees {frees}", counts(allocated))?;
    }
    for leak in &log.leaks {
        let [live, allocated, peak] = [leak.live, leak.allocated, leak.peak].map(counts);
        writeln!(out, "leak {:?} live {live} allocated {allocated} peak {peak}", leak.kind)?;
        for frame in &leak.stack {
            let offset = frame.offset.map(|offset| format!("+{offset:#x}")).unwrap_or_default();
            writeln!(
                out,
                "  {:#x} {:?} {:?} line {} in {:?}{offset}",
                frame.address, frame.function, frame.file, frame.line, frame.module
            )?;
        }
    }
    match ending {
        Ending::Truncated { offset, field } => writeln!(out, "cut at {offset} in {field}"),
        Ending::Complete => writeln!(out, "end"),
    }
}

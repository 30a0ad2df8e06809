//! Dump of a DHAT file: one program point or frame a line.

use super::layout::{File, Point};
use crate::Ending;
use std::io::{self, Write};

/// Prints the content of a file, and how it ended.
///
/// # Errors
/// When `out` fails. An error in the bytes is printed as the only line.
pub fn dump(bytes: &[u8], out: &mut dyn Write) -> io::Result<()> {
    let (file, ending) = match File::read(bytes) {
        Ok(read) => read,
        Err(error) => return writeln!(out, "error {error}"),
    };
    writeln!(out, "dhat version {} mode {:?} verb {:?} unit {:?}", file.version, file.mode, file.verb, file.tu)?;
    writeln!(out, "command {:?} pid {} end {} peak {:?}", file.cmd, file.pid, file.te, file.tg)?;
    for Point { tb, tbk, tl, mb, mbk, gb, gbk, eb, ebk, fs } in &file.pps {
        write!(out, "point bytes {tb} blocks {tbk}")?;
        for (name, value) in [
            ("lifetimes", tl),
            ("most", mb),
            ("most-blocks", mbk),
            ("peak", gb),
            ("peak-blocks", gbk),
            ("end", eb),
            ("end-blocks", ebk),
        ] {
            if let Some(value) = value {
                write!(out, " {name} {value}")?;
            }
        }
        writeln!(out, " stack {fs:?}")?;
    }
    for (index, frame) in file.ftbl.iter().enumerate() {
        writeln!(out, "frame {index} {frame:?}")?;
    }
    match ending {
        Ending::Truncated { offset, field } => writeln!(out, "cut at {offset} in {field}"),
        Ending::Complete => writeln!(out, "end"),
    }
}

//! Dump of a heaptrack data file: its lines, with decimal numbers and names.

use super::layout::Line;
use super::reader::Reader;
use crate::{Ending, ReadError};
use std::io::{self, BufRead, Write};

/// Prints every line of an uncompressed file, and how it ended.
///
/// # Errors When `out` fails, or the file cannot be read. What is wrong with the bytes is printed
/// as the last line.
pub fn dump(from: impl BufRead, out: &mut dyn Write) -> io::Result<()> {
    let mut reader = Reader::new(from);
    let (mut texts, mut addresses, mut stacks, mut infos) = (0u64, 0u64, 0u64, 0u64);
    let next = |counter: &mut u64| {
        *counter += 1;
        *counter
    };
    loop {
        let line = match reader.next() {
            Ok(Some(line)) => line,
            Ok(None) => break,
            Err(ReadError::Io(error)) => return Err(error),
            Err(ReadError::Format(error)) => return writeln!(out, "error {error}"),
        };
        match line {
            Line::Version { heaptrack, file } => writeln!(out, "heaptrack {heaptrack:#x} version {file}")?,
            Line::Command(text) => writeln!(out, "command \"{}\"", text.escape_ascii())?,
            Line::System { page_size, pages } => writeln!(out, "page {page_size} pages {pages}")?,
            Line::Attached => writeln!(out, "attached")?,
            Line::Text(text) => writeln!(out, "text {} \"{}\"", next(&mut texts), text.escape_ascii())?,
            Line::Address { address, module, names } => {
                write!(out, "address {} {address:#x} module {module}", next(&mut addresses))?;
                for name in names {
                    write!(out, " function {} file {} line {}", name.function, name.file, name.line)?;
                }
                writeln!(out)?;
            }
            Line::Stack { address, parent } => {
                writeln!(out, "stack {} address {address} parent {parent}", next(&mut stacks))?;
            }
            Line::Info { size, stack } => {
                writeln!(out, "info {infos} size {size} stack {stack}")?;
                infos += 1;
            }
            Line::Alloc(info) => writeln!(out, "alloc {info}")?,
            Line::Free(info) => writeln!(out, "free {info}")?,
            Line::Milliseconds(time) => writeln!(out, "time {time} ms")?,
            Line::Resident(pages) => writeln!(out, "resident {pages}")?,
            Line::Suppression(text) => writeln!(out, "suppression \"{}\"", text.escape_ascii())?,
            Line::Other(text) => writeln!(out, "other \"{}\"", text.escape_ascii())?,
        }
    }
    match reader.ending() {
        Some(Ending::Truncated { offset, field }) => writeln!(out, "cut at {offset} in {field}"),
        _ => writeln!(out, "end"),
    }
}

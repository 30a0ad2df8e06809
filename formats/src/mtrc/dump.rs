//! Dump of a trace: one record per line.

use super::layout::{Location, Record};
use super::reader::Reader;
use crate::Ending;
use std::io::{self, Write};

/// Prints every record of a file, and how it ended. Numbers are decimal, addresses hexadecimal,
/// names quoted and escaped.
///
/// # Errors
/// When `out` fails. An error in the bytes is printed as the last line.
pub fn dump(bytes: &[u8], out: &mut dyn Write) -> io::Result<()> {
    let mut reader = match Reader::new(bytes) {
        Ok(reader) => reader,
        Err(error) => return writeln!(out, "error {error}"),
    };
    let header = reader.header();
    writeln!(out, "mtrc {} version {}", header.abi.name(), header.version)?;
    loop {
        match reader.next() {
            Ok(Some(record)) => line(&record, header.has_location(), out)?,
            Ok(None) => break,
            Err(error) => return writeln!(out, "error {error}"),
        }
    }
    match reader.ending() {
        Some(Ending::Truncated { offset, field }) => writeln!(out, "cut at {offset} in {field}"),
        _ => writeln!(out, "end at {}", reader.offset()),
    }
}

fn line(record: &Record, has_location: bool, out: &mut dyn Write) -> io::Result<()> {
    let location = match *record {
        Record::Heap { address, size } => return writeln!(out, "heap {address:#x} {size}"),
        Record::Internal { address, size } => return writeln!(out, "internal {address:#x} {size}"),
        Record::Alloc { index, address, size, location } => {
            write!(out, "alloc {index} {address:#x} {size}")?;
            location
        }
        Record::Resize { index, address, size, location } => {
            write!(out, "resize {index} {address:#x} {size}")?;
            location
        }
        Record::Free { index, location } => {
            write!(out, "free {index}")?;
            location
        }
    };
    if has_location {
        let Location { thread, function, file, line } = location;
        write!(out, " thread {thread}")?;
        for (field, name) in [("function", function), ("file", file)] {
            if let Some(name) = name {
                write!(out, " {field} \"{}\"", name.escape_ascii())?;
            }
        }
        if line != 0 {
            write!(out, " line {line}")?;
        }
    }
    writeln!(out)
}

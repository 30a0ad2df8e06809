//! A trace as plain text, one record a line.

use super::layout::{Place, Record};
use super::reader::Reader;
use crate::Ending;
use std::io::{self, Write};

/// Prints every record of a file, and how it ended. Numbers are decimal, addresses hexadecimal, names quoted and escaped.
///
/// # Errors
/// When `out` fails. What is wrong with the bytes is printed as the last line.
pub fn dump(bytes: &[u8], out: &mut dyn Write) -> io::Result<()> {
    let mut reader = match Reader::new(bytes) {
        Ok(reader) => reader,
        Err(error) => return writeln!(out, "error {error}"),
    };
    let header = reader.header();
    writeln!(out, "mtrc {} version {}", header.flavour.name(), header.version)?;
    loop {
        match reader.next() {
            Ok(Some(record)) => line(&record, header.has_place(), out)?,
            Ok(None) => break,
            Err(error) => return writeln!(out, "error {error}"),
        }
    }
    match reader.ending() {
        Some(Ending::Cut { offset, field }) => writeln!(out, "cut at {offset} in {field}"),
        _ => writeln!(out, "end at {}", reader.offset()),
    }
}

fn line(record: &Record, has_place: bool, out: &mut dyn Write) -> io::Result<()> {
    let place = match *record {
        Record::Heap { address, size } => return writeln!(out, "heap {address:#x} {size}"),
        Record::Internal { address, size } => return writeln!(out, "internal {address:#x} {size}"),
        Record::Alloc { index, address, size, place } => {
            write!(out, "alloc {index} {address:#x} {size}")?;
            place
        }
        Record::Resize { index, address, size, place } => {
            write!(out, "resize {index} {address:#x} {size}")?;
            place
        }
        Record::Free { index, place } => {
            write!(out, "free {index}")?;
            place
        }
    };
    if has_place {
        let Place { thread, function, file, line } = place;
        write!(out, " thread {thread}")?;
        for (word, name) in [("function", function), ("file", file)] {
            if let Some(name) = name {
                write!(out, " {word} \"{}\"", name.escape_ascii())?;
            }
        }
        if line != 0 {
            write!(out, " line {line}")?;
        }
    }
    writeln!(out)
}

//! Dump of a text heap profile: one record per line.

use super::layout::{Counts, Record};
use super::reader::Reader;
use crate::Ending;
use std::io::{self, Write};

/// Prints the content of a file, and how it ended.
///
/// # Errors
/// When `out` fails. An error in the bytes is printed as the last line.
pub fn dump(bytes: &[u8], out: &mut dyn Write) -> io::Result<()> {
    let mut reader = match Reader::new(bytes) {
        Ok(reader) => reader,
        Err(error) => return writeln!(out, "error {error}"),
    };
    let head = reader.head();
    writeln!(out, "heap profile {:?} {:?} mean {}", head.dialect, head.kind, head.mean())?;
    let counts = |Counts { blocks, bytes }| format!("{blocks} blocks {bytes} bytes");
    loop {
        match reader.next() {
            Ok(Some(Record::Sample(sample))) => {
                write!(out, "sample live {} allocated {} at", counts(sample.live), counts(sample.allocated))?;
                sample.addresses.iter().try_for_each(|address| write!(out, " {address:#x}"))?;
                writeln!(out)?;
            }
            Ok(Some(Record::Frame(name))) => {
                writeln!(out, "frame {:#x} {:?} {:?} line {}", name.address, name.function, name.file, name.line)?;
            }
            Ok(Some(Record::Name(name))) => {
                writeln!(out, "name {:#x} {:?} {:?} line {}", name.address, name.function, name.file, name.line)?;
            }
            Ok(Some(Record::Mapping(map))) => {
                let offset = map.offset.map_or("unknown".into(), |offset| format!("{offset:#x}"));
                let code = if map.executable { " code" } else { "" };
                writeln!(out, "mapping {:#x}-{:#x} offset {offset}{code} {:?}", map.start, map.end, map.path)?;
            }
            Ok(None) => break,
            Err(error) => return writeln!(out, "error {error}"),
        }
    }
    match reader.ending() {
        Some(Ending::Truncated { offset, field }) => writeln!(out, "cut at {offset} in {field}"),
        _ => writeln!(out, "end"),
    }
}

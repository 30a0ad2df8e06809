//! Dump of a profile: one record per line.

use super::layout::Record;
use super::reader::Reader;
use crate::Ending;
use std::io::{self, Write};

/// Prints every record of an uncompressed file, and how it ended.
///
/// # Errors
/// When `out` fails. An error in the bytes is printed as the last line.
pub fn dump(bytes: &[u8], out: &mut dyn Write) -> io::Result<()> {
    let mut reader = Reader::new(bytes);
    let mut texts = 0;
    loop {
        let record = match reader.next() {
            Ok(Some(record)) => record,
            Ok(None) => break,
            Err(error) => return writeln!(out, "error {error}"),
        };
        match record {
            Record::SampleType(value) => writeln!(out, "sample type {} unit {}", value.kind, value.unit)?,
            Record::Sample(sample) => {
                write!(out, "sample {:?} at {:?}", sample.value, sample.location)?;
                for label in &sample.label {
                    write!(out, " label {}={}/{}", label.key, label.text, label.number)?;
                }
                writeln!(out)?;
            }
            Record::Mapping(map) => writeln!(
                out,
                "mapping {} {:#x}-{:#x} offset {:#x} file {} build-id {}",
                map.id, map.start, map.limit, map.offset, map.file, map.build_id
            )?,
            Record::Location(location) => {
                write!(out, "location {} mapping {} address {:#x}", location.id, location.mapping, location.address)?;
                for line in &location.line {
                    write!(out, " function {} line {}", line.function, line.line)?;
                }
                writeln!(out)?;
            }
            Record::Function(f) => {
                writeln!(out, "function {} name {} system {} file {}", f.id, f.name, f.system_name, f.file)?;
            }
            Record::Text(text) => {
                writeln!(out, "text {texts} \"{}\"", text.escape_ascii())?;
                texts += 1;
            }
            Record::TimeNanos(value) => writeln!(out, "time {value} ns")?,
            Record::DurationNanos(value) => writeln!(out, "duration {value} ns")?,
            Record::PeriodType(value) => writeln!(out, "period type {} unit {}", value.kind, value.unit)?,
            Record::Period(value) => writeln!(out, "period {value}")?,
            Record::Comment(value) => writeln!(out, "comment {value}")?,
            Record::DefaultSampleType(value) => writeln!(out, "default sample type {value}")?,
            Record::Other(number) => writeln!(out, "field {number}")?,
        }
    }
    match reader.ending() {
        Some(Ending::Truncated { offset, field }) => writeln!(out, "cut at {offset} in {field}"),
        _ => writeln!(out, "end"),
    }
}

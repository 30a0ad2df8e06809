//! Copy of a trace, record by record, with every byte unchanged.

use super::layout::MAGIC;
use super::reader::Reader;
use super::shape::Shape;
use super::writer::{Options, Writer};
use crate::{Ending, Error, Format, Kind, Result};

/// Reads a whole file and writes it again, record by record, each in its shape. The result equals
/// the input. Bytes after the end mark are kept.
///
/// # Errors
/// When the file is not a trace or is truncated.
pub fn rewrite(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut reader = Reader::new(bytes)?;
    let header = reader.header();
    let mut writer = Writer::new(Options { header, padding: false });
    let mut out = Vec::with_capacity(bytes.len());
    writer.header(&mut out);
    while let Some((record, raw)) = reader.next_raw()? {
        writer.shaped(&mut out, &record, &Shape::of(raw, header.has_location())?);
    }
    if let Some(Ending::Truncated { offset, field }) = reader.ending() {
        return Err(Error { format: Format::Mtrc, offset, field, kind: Kind::Truncated });
    }
    writer.end(&mut out);
    out.extend_from_slice(reader.rest().get(MAGIC.len()..).unwrap_or_default());
    Ok(out)
}

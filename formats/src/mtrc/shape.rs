//! Encoding of a record, where the format leaves a choice.
//!
//! A [`Record`](super::Record) is the content of a record. A [`Shape`] is the rest: how many bytes
//! each number has (overlong encodings are allowed), and the slot of each name, defined there or
//! used from there. Record and shape together determine the bytes. Files of the real library need
//! no shapes, since this crate's [`Writer`](super::Writer) chooses as that library does.

use super::layout::{ALLOC, FREE, RESIZE};
use crate::{Cursor, Format, Kind, Result};

/// Encoding of a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Name {
    /// There is no name.
    #[default]
    None,
    /// The name is that of a slot, which may never have been defined.
    Use(u8),
    /// The name is written in full, as the definition of a slot.
    Define(u8),
}

/// Number widths and name slots of one record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of each number, in the order of the record; 0 after the last.
    pub widths: [u8; 5],
    /// Encoding of the function's name.
    pub function: Name,
    /// Encoding of the file's name.
    pub file: Name,
}

impl Shape {
    /// Returns the shape of a record from its bytes, as
    /// [`Reader::next_raw`](super::Reader::next_raw) returns them.
    ///
    /// # Errors
    /// When the bytes are not one record.
    pub fn of(raw: &[u8], has_location: bool) -> Result<Shape> {
        let mut cursor = Cursor::new(Format::Mtrc, raw);
        let mut shape = Shape::default();
        let mut widths = shape.widths.iter_mut();
        let mut number = |cursor: &mut Cursor| -> Result<()> {
            let before = cursor.remaining();
            cursor.leb("number")?;
            if let Some(width) = widths.next() {
                *width = (before - cursor.remaining()) as u8;
            }
            Ok(())
        };
        let tag = cursor.byte("record")?;
        let located = matches!(tag, ALLOC | RESIZE | FREE);
        let numbers = if tag == FREE { 1 } else { 2 + usize::from(located) };
        for _ in 0..numbers {
            number(&mut cursor)?;
        }
        if located && has_location {
            number(&mut cursor)?;
            shape.function = name(&mut cursor, "function")?;
            shape.file = name(&mut cursor, "file")?;
            number(&mut cursor)?;
        }
        Ok(shape)
    }
}

fn name(cursor: &mut Cursor, field: &'static str) -> Result<Name> {
    let byte = cursor.byte(field)?;
    if byte & 0x80 == 0 {
        return Ok(if byte == 0 { Name::None } else { Name::Use(byte) });
    }
    let end = cursor.rest().iter().position(|&byte| byte == 0).ok_or_else(|| cursor.error(field, Kind::Truncated))?;
    cursor.skip(end + 1);
    Ok(Name::Define(byte & 0x7f))
}

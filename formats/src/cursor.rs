//! Bounds-checked reading that always knows its offset, so that every error can name it.

use crate::{Error, Flavour, Format, Kind, Result, leb128};

/// A place in bytes that are being read.
#[derive(Clone, Debug)]
pub struct Cursor<'a> {
    format: Format,
    bytes: &'a [u8],
    at: usize,
    base: u64,
}

impl<'a> Cursor<'a> {
    /// Starts at the first of `bytes`.
    pub const fn new(format: Format, bytes: &'a [u8]) -> Self {
        Cursor { format, bytes, at: 0, base: 0 }
    }

    /// The same for bytes that lie at `base` in their file, so that offsets in errors count from the file's start.
    pub const fn at_offset(format: Format, bytes: &'a [u8], base: u64) -> Self {
        Cursor { format, bytes, at: 0, base }
    }

    /// Bytes from the start of the file.
    pub const fn offset(&self) -> u64 {
        self.base + self.at as u64
    }

    /// Bytes not yet read.
    pub const fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// What has not been read.
    pub fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    /// Moves `count` bytes on, at most to the end.
    pub fn skip(&mut self, count: usize) {
        self.at = self.bytes.len().min(self.at.saturating_add(count));
    }

    /// An error at the present place.
    pub fn error(&self, field: &'static str, kind: Kind) -> Error {
        Error { format: self.format, offset: self.offset(), field, kind }
    }

    /// An error: `value` stands where `expected` should.
    pub fn bad(&self, field: &'static str, value: u64, expected: &'static str) -> Error {
        self.error(field, Kind::Bad(value, expected))
    }

    /// The next `count` bytes.
    pub fn take(&mut self, field: &'static str, count: usize) -> Result<&'a [u8]> {
        let end = self.at.checked_add(count).filter(|&end| end <= self.bytes.len());
        let Some(end) = end else { return Err(self.error(field, Kind::Cut)) };
        let bytes = &self.bytes[self.at..end];
        self.at = end;
        Ok(bytes)
    }

    /// One byte.
    #[inline]
    pub fn byte(&mut self, field: &'static str) -> Result<u8> {
        match self.bytes.get(self.at) {
            Some(&byte) => {
                self.at += 1;
                Ok(byte)
            }
            None => Err(self.error(field, Kind::Cut)),
        }
    }

    /// The next byte, without moving on.
    pub fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    /// Exactly these bytes.
    pub fn magic(&mut self, field: &'static str, expected: &[u8]) -> Result<()> {
        let start = self.at;
        let found = self.take(field, expected.len())?;
        if found == expected {
            return Ok(());
        }
        self.at = start;
        Err(self.error(field, Kind::Magic))
    }

    /// A number of `size` bytes (at most 8) in the flavour's byte order.
    pub fn number(&mut self, field: &'static str, flavour: Flavour, size: usize) -> Result<u64> {
        Ok(flavour.number(self.take(field, size)?))
    }

    /// A native word.
    pub fn word(&mut self, field: &'static str, flavour: Flavour) -> Result<u64> {
        self.number(field, flavour, usize::from(flavour.word))
    }

    /// A little-endian 32-bit number.
    pub fn u32(&mut self, field: &'static str) -> Result<u32> {
        Ok(Flavour::LE64.number(self.take(field, 4)?) as u32)
    }

    /// A little-endian 64-bit number.
    pub fn u64(&mut self, field: &'static str) -> Result<u64> {
        Ok(Flavour::LE64.number(self.take(field, 8)?))
    }

    /// An unsigned LEB128 number.
    #[inline]
    pub fn leb(&mut self, field: &'static str) -> Result<u64> {
        match leb128::read(self.bytes.get(self.at..).unwrap_or_default()) {
            Ok((value, size)) => {
                self.at += size;
                Ok(value)
            }
            Err(leb128::Failure::Cut) => Err(self.error(field, Kind::Cut)),
            Err(leb128::Failure::TooLong) => Err(self.error(field, Kind::Text("a number of more than 64 bits".into()))),
        }
    }

    /// A LEB128 count of things that take at least `least` bytes each: refused when the bytes cannot hold them, so that
    /// a count from a file never decides how much memory is taken.
    pub fn count(&mut self, field: &'static str, least: usize) -> Result<usize> {
        let start = self.clone();
        let value = self.leb(field)?;
        match usize::try_from(value) {
            Ok(count) if count <= self.remaining() / least.max(1) => Ok(count),
            _ => Err(start.bad(field, value, "the bytes that remain hold fewer")),
        }
    }

    /// A LEB128 length and as many bytes.
    pub fn bytes(&mut self, field: &'static str) -> Result<&'a [u8]> {
        let count = self.count(field, 1)?;
        self.take(field, count)
    }
}

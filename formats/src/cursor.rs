//! Bounds-checked reading of bytes. The cursor knows its offset, so that every error can name it.

use crate::{Abi, Error, Format, Kind, Result, leb128};
use std::ops::Range;

/// A read position in a slice of bytes of one format.
///
/// # Examples
///
/// ```
/// use heaptape_formats::{Cursor, Format};
///
/// let mut cursor = Cursor::new(Format::Tape, b"\x03abc");
/// assert_eq!(cursor.bytes("name")?, b"abc");
/// let error = cursor.byte("flags").unwrap_err();
/// assert_eq!(error.to_string(), "tape: offset 4: flags: the file ends here");
/// # Ok::<(), heaptape_formats::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Cursor<'a> {
    format: Format,
    bytes: &'a [u8],
    at: usize,
    base: u64,
}

impl<'a> Cursor<'a> {
    /// Creates a cursor at the first of `bytes`.
    pub const fn new(format: Format, bytes: &'a [u8]) -> Self {
        Cursor { format, bytes, at: 0, base: 0 }
    }

    /// Creates a cursor over bytes from offset `base` of their file, so that offsets in errors
    /// count from the start of the file.
    pub const fn at_offset(format: Format, bytes: &'a [u8], base: u64) -> Self {
        Cursor { format, bytes, at: 0, base }
    }

    /// Returns the offset of the next byte from the start of the file.
    pub const fn offset(&self) -> u64 {
        self.base + self.at as u64
    }

    /// Returns the number of bytes that have not been read.
    pub const fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Returns the bytes that have not been read.
    pub fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    /// Skips `count` bytes, or all that remain if these are fewer.
    pub fn skip(&mut self, count: usize) {
        self.at = self.bytes.len().min(self.at.saturating_add(count));
    }

    /// Returns an error at the present offset.
    pub fn error(&self, field: &'static str, kind: Kind) -> Error {
        Error { format: self.format, offset: self.offset(), field, kind }
    }

    /// Returns an error at the present offset for `value`, where `expected` describes a valid one.
    pub fn bad(&self, field: &'static str, value: u64, expected: &'static str) -> Error {
        self.error(field, Kind::Bad(value, expected))
    }

    /// Reads the next `count` bytes.
    ///
    /// # Errors
    ///
    /// [`Kind::Truncated`] if fewer bytes remain.
    pub fn take(&mut self, field: &'static str, count: usize) -> Result<&'a [u8]> {
        let end = self.at.checked_add(count).filter(|&end| end <= self.bytes.len());
        let Some(end) = end else { return Err(self.error(field, Kind::Truncated)) };
        let bytes = &self.bytes[self.at..end];
        self.at = end;
        Ok(bytes)
    }

    /// Reads the next byte.
    ///
    /// # Errors
    ///
    /// [`Kind::Truncated`] if no byte remains.
    #[inline]
    pub fn byte(&mut self, field: &'static str) -> Result<u8> {
        match self.bytes.get(self.at) {
            Some(&byte) => {
                self.at += 1;
                Ok(byte)
            }
            None => Err(self.error(field, Kind::Truncated)),
        }
    }

    /// Returns the next byte without reading it.
    pub fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    /// Reads bytes that must equal `expected`.
    ///
    /// # Errors
    ///
    /// [`Kind::Truncated`] if fewer bytes remain, [`Kind::Magic`] if they differ.
    pub fn magic(&mut self, field: &'static str, expected: &[u8]) -> Result<()> {
        let start = self.at;
        let found = self.take(field, expected.len())?;
        if found == expected {
            return Ok(());
        }
        self.at = start;
        Err(self.error(field, Kind::Magic))
    }

    /// Reads a number of `size` bytes (at most 8) in the byte order of `abi`.
    ///
    /// # Errors
    ///
    /// [`Kind::Truncated`] if fewer bytes remain.
    pub fn number(&mut self, field: &'static str, abi: Abi, size: usize) -> Result<u64> {
        Ok(abi.number(self.take(field, size)?))
    }

    /// Reads a machine word of `abi`.
    ///
    /// # Errors
    ///
    /// [`Kind::Truncated`] if fewer bytes remain.
    pub fn word(&mut self, field: &'static str, abi: Abi) -> Result<u64> {
        self.number(field, abi, usize::from(abi.word_size))
    }

    /// Reads how a file of mpatrol starts: its magic bytes, a machine word 1 that shows the ABI, and
    /// the version, which must be in `known`.
    pub(crate) fn start_of_mpatrol(&mut self, magic: &[u8], known: Range<u64>) -> Result<(Abi, u64)> {
        self.magic("magic", magic)?;
        let Some(abi) = Abi::detect(self.rest()) else {
            let kind = if self.remaining() < 8 { Kind::Truncated } else { Kind::Text("not a machine word 1".into()) };
            return Err(self.error("byte order mark", kind));
        };
        self.word("byte order mark", abi)?;
        let before = self.clone();
        let version = self.word("version", abi)?;
        if !known.contains(&version) {
            return Err(before.error("version", Kind::Version(version)));
        }
        Ok((abi, version))
    }

    /// Reads a little-endian 32-bit number.
    ///
    /// # Errors
    ///
    /// [`Kind::Truncated`] if fewer bytes remain.
    pub fn u32(&mut self, field: &'static str) -> Result<u32> {
        Ok(Abi::LE64.number(self.take(field, 4)?) as u32)
    }

    /// Reads a little-endian 64-bit number.
    ///
    /// # Errors
    ///
    /// [`Kind::Truncated`] if fewer bytes remain.
    pub fn u64(&mut self, field: &'static str) -> Result<u64> {
        Ok(Abi::LE64.number(self.take(field, 8)?))
    }

    /// Reads an unsigned LEB128 number.
    ///
    /// # Errors
    ///
    /// [`Kind::Truncated`] if the bytes end inside it, [`Kind::Text`] if it has more than 64 bits.
    #[inline]
    pub fn leb(&mut self, field: &'static str) -> Result<u64> {
        match leb128::read(self.bytes.get(self.at..).unwrap_or_default()) {
            Ok((value, size)) => {
                self.at += size;
                Ok(value)
            }
            Err(leb128::DecodeError::Truncated) => Err(self.error(field, Kind::Truncated)),
            Err(leb128::DecodeError::TooLong) => {
                Err(self.error(field, Kind::Text("a number of more than 64 bits".into())))
            }
        }
    }

    /// Reads a LEB128 count of items that take at least `least` bytes each. A count that the
    /// remaining bytes cannot hold is refused, so that a count from a file never decides how much
    /// memory is allocated.
    ///
    /// # Errors
    ///
    /// As for [`Cursor::leb`], and [`Kind::Bad`] if the remaining bytes cannot hold the items.
    pub fn count(&mut self, field: &'static str, least: usize) -> Result<usize> {
        let start = self.clone();
        let value = self.leb(field)?;
        match usize::try_from(value) {
            Ok(count) if count <= self.remaining() / least.max(1) => Ok(count),
            _ => Err(start.bad(field, value, "the bytes that remain hold fewer")),
        }
    }

    /// Reads a LEB128 length and that number of bytes.
    ///
    /// # Errors
    ///
    /// As for [`Cursor::count`].
    pub fn bytes(&mut self, field: &'static str) -> Result<&'a [u8]> {
        let count = self.count(field, 1)?;
        self.take(field, count)
    }
}

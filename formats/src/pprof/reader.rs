//! Reader of profiles, one record at a time.

use super::layout::{Record, field};
use crate::{Cursor, Ending, Error, Format, Kind, Result};
use prost::Message;

/// Wire types of protocol buffers: how the value of a field is stored.
const NUMBER: u64 = 0;
const EIGHT: u64 = 1;
const BYTES: u64 = 2;
const FOUR: u64 = 5;

/// Reader of the records of an uncompressed profile.
///
/// # Examples
///
/// ```
/// use heaptape_formats::pprof::{Reader, Record};
///
/// let profile = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/import/go-heap.pb"))?;
/// let (mut reader, mut samples) = (Reader::new(&profile), 0);
/// while let Some(record) = reader.next()? {
///     samples += usize::from(matches!(record, Record::Sample(_)));
/// }
/// assert!(samples > 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    cursor: Cursor<'a>,
    /// Values of field 13 that have not been returned yet: one field may hold several.
    comments: Vec<i64>,
    ending: Option<Ending>,
}

impl<'a> Reader<'a> {
    /// Creates a reader at the first record.
    pub const fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { cursor: Cursor::new(Format::Pprof, bytes), comments: Vec::new(), ending: None }
    }

    /// Returns how the file ended, once there is no further record.
    pub const fn ending(&self) -> Option<Ending> {
        self.ending
    }

    /// Reads the next record. Returns `None` at the end of the file and where it is truncated.
    ///
    /// # Errors
    /// When the bytes are not a profile.
    #[allow(clippy::should_implement_trait, reason = "it can fail")]
    pub fn next(&mut self) -> Result<Option<Record>> {
        if let Some(comment) = self.comments.pop() {
            return Ok(Some(Record::Comment(comment)));
        }
        if self.ending.is_some() {
            return Ok(None);
        }
        if self.cursor.remaining() == 0 {
            self.ending = Some(Ending::Complete);
            return Ok(None);
        }
        let start = self.cursor.offset();
        match self.record() {
            Err(Error { kind: Kind::Truncated, field, .. }) => {
                self.ending = Some(Ending::Truncated { offset: start, field });
                Ok(None)
            }
            other => other.map(Some),
        }
    }

    fn record(&mut self) -> Result<Record> {
        let cursor = &mut self.cursor;
        let before = cursor.clone();
        let key = cursor.leb("key")?;
        let (number, name) = (key >> 3, field(key >> 3));
        match key & 7 {
            NUMBER => {
                let value = cursor.leb(name)?.cast_signed();
                Ok(match number {
                    9 => Record::TimeNanos(value),
                    10 => Record::DurationNanos(value),
                    12 => Record::Period(value),
                    13 => Record::Comment(value),
                    14 => Record::DefaultSampleType(value),
                    1..=6 | 11 => return Err(before.bad(name, key, "a field of bytes belongs")),
                    other => Record::Other(other),
                })
            }
            BYTES => {
                let length = cursor.leb(name)?;
                let value_start = cursor.clone();
                let bytes = cursor.take(name, usize::try_from(length).unwrap_or(usize::MAX))?;
                let wrong = |error: prost::DecodeError| value_start.error(name, Kind::Text(error.to_string()));
                Ok(match number {
                    1 => Record::SampleType(Message::decode(bytes).map_err(wrong)?),
                    2 => Record::Sample(Message::decode(bytes).map_err(wrong)?),
                    3 => Record::Mapping(Message::decode(bytes).map_err(wrong)?),
                    4 => Record::Location(Message::decode(bytes).map_err(wrong)?),
                    5 => Record::Function(Message::decode(bytes).map_err(wrong)?),
                    6 => Record::Text(bytes.to_vec()),
                    11 => Record::PeriodType(Message::decode(bytes).map_err(wrong)?),
                    13 => {
                        let mut packed = Cursor::at_offset(Format::Pprof, bytes, value_start.offset());
                        while packed.remaining() > 0 {
                            let comment = packed.leb(name).map_err(|error| match error.kind {
                                // The message is complete, so this is not a truncated file.
                                Kind::Truncated => {
                                    value_start.error(name, Kind::Text("a number ends outside its field".into()))
                                }
                                _ => error,
                            })?;
                            self.comments.push(comment.cast_signed());
                        }
                        self.comments.reverse();
                        self.comments.pop().map_or(Record::Other(13), Record::Comment)
                    }
                    other => Record::Other(other),
                })
            }
            EIGHT => cursor.take(name, 8).map(|_| Record::Other(number)),
            FOUR => cursor.take(name, 4).map(|_| Record::Other(number)),
            _ => Err(before.bad("key", key, "0, 1, 2 or 5 (a wire type) belongs in the low three bits")),
        }
    }
}

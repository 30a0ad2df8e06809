//! Frame of each record: `magic 4 | kind u16 | 0 u16 | length u32 | crc32 u32`, little-endian, then
//! the payload. The checksum covers kind to length and the payload. A reader that finds a bad frame
//! searches for the next magic.

use super::layout::{FILE_MAGIC, FILE_VERSION, Record};
use crate::{Cursor, Ending, Error, Format, Kind, Result};

/// First bytes of each record. They are not valid UTF-8 and not the start of any other format here.
pub const MAGIC: [u8; 4] = [0xb7, b'R', b'e', b'c'];
/// Length of the frame before the payload in bytes.
pub const FRAME_HEADER_LEN: usize = 16;
/// Length of the file before the first record in bytes: magic 8, version u32, 0 u32.
pub const FILE_HEADER_LEN: usize = 16;
/// Maximum length of a payload that is written or read.
pub const MAX_PAYLOAD: usize = 64 << 20;

fn checksum(kind_to_length: &[u8], payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(kind_to_length);
    hasher.update(payload);
    hasher.finalize()
}

/// Encodes a tape into a buffer that the caller writes out.
#[derive(Debug, Default)]
pub struct Writer {
    payload: Vec<u8>,
}

impl Writer {
    /// Appends the first bytes of a file.
    pub fn file_header(out: &mut Vec<u8>) {
        out.extend_from_slice(&FILE_MAGIC);
        out.extend_from_slice(&FILE_VERSION.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
    }

    /// Appends one framed record.
    pub fn record(&mut self, record: &Record, out: &mut Vec<u8>) {
        self.payload.clear();
        let kind = record.put(&mut self.payload);
        Writer::frame(kind, &self.payload, out);
    }

    /// Appends a frame with a payload.
    pub(super) fn frame(kind: u16, payload: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&kind.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        let sum = checksum(&out[start + 4..], payload);
        out.extend_from_slice(&sum.to_le_bytes());
        out.extend_from_slice(payload);
    }
}

/// Returns kind and payload of the record at the start of `bytes`, which are at `offset` of their
/// file.
pub(super) fn frame(bytes: &[u8], offset: u64) -> Result<(u16, &[u8])> {
    let mut cursor = Cursor::at_offset(Format::Tape, bytes, offset);
    cursor.magic("record magic", &MAGIC)?;
    let head = cursor.take("record head", 8)?;
    let kind = u16::from_le_bytes([head[0], head[1]]);
    let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
    if length as usize > MAX_PAYLOAD {
        return Err(cursor.bad("record length", length.into(), "at most 64 MiB belong"));
    }
    let sum = cursor.u32("record checksum")?;
    let payload = cursor.take("record payload", length as usize)?;
    if checksum(head, payload) != sum {
        return Err(cursor.error("record checksum", Kind::Text("does not match the bytes".into())));
    }
    Ok((kind, payload))
}

/// Result of one step of a reader.
#[derive(Debug)]
pub enum Step {
    /// An intact record and its offset.
    Record(u64, Record),
    /// An intact record of a kind that this version does not know: offset and kind.
    Unknown(u64, u16),
    /// Skipped bytes that are not an intact record: first offset, end offset, and the error at the
    /// first.
    Damage(u64, u64, Error),
    /// The end of the bytes.
    End(Ending),
}

/// Reads a tape from bytes in memory (or mapped).
///
/// # Examples
///
/// ```
/// use heaptape_formats::tape::{Note, Reader, Record, Step, Writer};
///
/// let mut tape = Vec::new();
/// Writer::file_header(&mut tape);
/// Writer::default().record(&Record::Note(Note { tick: 7, text: "disk full".into() }), &mut tape);
///
/// let mut reader = Reader::new(&tape)?;
/// loop {
///     match reader.step() {
///         Step::Record(offset, record) => println!("{offset}: {record:?}"),
///         Step::Unknown(offset, kind) => println!("{offset}: unknown kind {kind}"),
///         Step::Damage(from, to, error) => println!("{from} to {to}: damaged: {error}"),
///         Step::End(ending) => break assert!(ending.is_complete()),
///     }
/// }
/// # Ok::<(), heaptape_formats::Error>(())
/// ```
#[derive(Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Creates a reader and checks the header of the file.
    ///
    /// # Errors
    ///
    /// When the bytes are not a tape of a known version.
    pub fn new(bytes: &'a [u8]) -> Result<Self> {
        let mut cursor = Cursor::new(Format::Tape, bytes);
        cursor.magic("file magic", &FILE_MAGIC)?;
        let version = cursor.u32("version")?;
        if version == 0 || version > FILE_VERSION {
            return Err(Error {
                format: Format::Tape,
                offset: 8,
                field: "version",
                kind: Kind::Version(version.into()),
            });
        }
        cursor.u32("reserved")?;
        Ok(Reader { bytes, at: FILE_HEADER_LEN })
    }

    /// Returns the next record, damage, or the end. Never fails: bytes that cannot be read are
    /// skipped and reported.
    pub fn step(&mut self) -> Step {
        let start = self.at;
        if start >= self.bytes.len() {
            return Step::End(Ending::Complete);
        }
        match frame(&self.bytes[start..], start as u64) {
            Ok((kind, payload)) => {
                self.at = start + FRAME_HEADER_LEN + payload.len();
                match Record::get(kind, payload, (start + FRAME_HEADER_LEN) as u64) {
                    Ok(Some(record)) => Step::Record(start as u64, record),
                    Ok(None) => Step::Unknown(start as u64, kind),
                    Err(error) => Step::Damage(start as u64, self.at as u64, error),
                }
            }
            Err(error) => {
                let from = (start + 1).min(self.bytes.len());
                let next = self.bytes[from..].windows(MAGIC.len()).position(|window| window == MAGIC);
                match next {
                    Some(distance) => {
                        self.at = from + distance;
                        Step::Damage(start as u64, self.at as u64, error)
                    }
                    None => {
                        self.at = self.bytes.len();
                        match error.kind {
                            Kind::Truncated => {
                                Step::End(Ending::Truncated { offset: start as u64, field: error.field })
                            }
                            _ => Step::Damage(start as u64, self.at as u64, error),
                        }
                    }
                }
            }
        }
    }
}

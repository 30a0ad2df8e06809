//! Reader of a tape of any size, record by record, without the file in memory. Damaged bytes are
//! skipped and reported, as [`super::Reader`] does for bytes in memory.

use super::frame::{FILE_HEADER_LEN, FRAME_HEADER_LEN, MAGIC, MAX_PAYLOAD, Reader, Step, frame};
use super::layout::Record;
use crate::{Ending, Error, Format, Kind, Result};
use std::io;

/// Bytes read at once in a search for the next record.
const SEARCH: usize = 64 * 1024;

/// A source of bytes that can be read at any offset.
pub trait Source {
    /// Reads at `offset` into `into`. Returns 0 at the end.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;
    /// Returns the number of bytes.
    fn length(&self) -> io::Result<u64>;

    /// Reads `count` bytes from `offset` on, or those that exist if these are fewer. Memory is
    /// allocated for bytes that exist only.
    fn read_up_to(&self, offset: u64, count: usize, into: &mut Vec<u8>) -> io::Result<()> {
        let there = self.length()?.saturating_sub(offset);
        into.clear();
        into.resize(count.min(usize::try_from(there).unwrap_or(usize::MAX)), 0);
        let mut filled = 0;
        while filled < into.len() {
            match self.read_at(offset + filled as u64, &mut into[filled..]) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        into.truncate(filled);
        Ok(())
    }
}

impl Source for std::fs::File {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        std::os::unix::fs::FileExt::read_at(self, into, offset)
    }
    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }
}

impl Source for [u8] {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let rest = usize::try_from(offset).ok().and_then(|at| self.get(at..)).unwrap_or_default();
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }
    fn length(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }
}

/// Reader of the records of a [`Source`].
///
/// # Examples
///
/// ```
/// use heaptape_formats::tape::{Record, Step, Stream};
/// use std::fs::File;
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/tape/v1/large");
/// # let path = std::fs::read_dir(path)?.map(|entry| entry.unwrap().path().join("events.tape"));
/// # let path = path.filter(|path| path.is_file()).min().unwrap();
/// let file = File::open(path)?;
/// let mut stream = Stream::new(&file)?;
/// let mut events = 0;
/// loop {
///     match stream.step()? {
///         Step::Record(_, Record::Chunk(chunk)) => events += chunk.events,
///         Step::End(_) => break,
///         _ => {}
///     }
/// }
/// assert_eq!(events, 120_615);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Stream<'a, S: ?Sized> {
    source: &'a S,
    at: u64,
    buffer: Vec<u8>,
}

fn failed(offset: u64, error: &io::Error) -> Error {
    Error { format: Format::Tape, offset, field: "bytes", kind: Kind::Text(error.to_string()) }
}

impl<'a, S: Source + ?Sized> Stream<'a, S> {
    /// Creates a reader and checks the header of the file.
    ///
    /// # Errors
    /// When the file cannot be read, or is not a tape of a known version.
    pub fn new(source: &'a S) -> Result<Self> {
        let mut stream = Stream::at(source, FILE_HEADER_LEN as u64);
        source.read_up_to(0, FILE_HEADER_LEN, &mut stream.buffer).map_err(|error| failed(0, &error))?;
        Reader::new(&stream.buffer)?;
        Ok(stream)
    }

    /// Creates a reader at a record whose offset is known.
    pub fn at(source: &'a S, offset: u64) -> Self {
        Stream { source, at: offset, buffer: Vec::new() }
    }

    /// Returns the offset of the next record.
    pub fn offset(&self) -> u64 {
        self.at
    }

    /// Returns the next record, damage, or the end.
    ///
    /// # Errors
    /// When the source cannot be read.
    pub fn step(&mut self) -> Result<Step> {
        let start = self.at;
        self.fill(start).map_err(|error| failed(start, &error))?;
        if self.buffer.is_empty() {
            return Ok(Step::End(Ending::Complete));
        }
        match frame(&self.buffer, start) {
            Ok((kind, payload)) => {
                self.at = start + (FRAME_HEADER_LEN + payload.len()) as u64;
                Ok(match Record::get(kind, payload, start + FRAME_HEADER_LEN as u64) {
                    Ok(Some(record)) => Step::Record(start, record),
                    Ok(None) => Step::Unknown(start, kind),
                    Err(error) => Step::Damage(start, self.at, error),
                })
            }
            Err(error) => {
                let next = self.search(start + 1).map_err(|error| failed(start, &error))?;
                self.at = match next {
                    Some(next) => next,
                    None => self.source.length().map_err(|error| failed(start, &error))?.max(start),
                };
                Ok(match (next, &error.kind) {
                    (None, Kind::Truncated) => Step::End(Ending::Truncated { offset: start, field: error.field }),
                    _ => Step::Damage(start, self.at, error),
                })
            }
        }
    }

    /// Reads the record at `start`, as far as its bytes exist.
    fn fill(&mut self, start: u64) -> io::Result<()> {
        self.source.read_up_to(start, FRAME_HEADER_LEN, &mut self.buffer)?;
        let Some(&[a, b, c, d]) = self.buffer.get(8..12).and_then(|bytes| bytes.first_chunk::<4>()) else {
            return Ok(());
        };
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        if self.buffer.starts_with(&MAGIC) && length <= MAX_PAYLOAD {
            self.source.read_up_to(start, FRAME_HEADER_LEN + length, &mut self.buffer)?;
        }
        Ok(())
    }

    /// Returns the offset of the next magic, from `from` on.
    fn search(&mut self, mut from: u64) -> io::Result<Option<u64>> {
        loop {
            self.source.read_up_to(from, SEARCH, &mut self.buffer)?;
            if let Some(position) = self.buffer.windows(MAGIC.len()).position(|window| window == MAGIC) {
                return Ok(Some(from + position as u64));
            }
            if self.buffer.len() < SEARCH {
                return Ok(None);
            }
            from += (SEARCH + 1 - MAGIC.len()) as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Clock, Note, Writer};
    use super::*;

    fn tape() -> Vec<u8> {
        let mut out = Vec::new();
        let mut writer = Writer::default();
        Writer::file_header(&mut out);
        for tick in 0..14 {
            writer.record(&Record::Clock(Clock { tick, unix_ns: tick * 7, monotonic_ns: 1 << tick }), &mut out);
            writer.record(&Record::Note(Note { tick, text: "x".repeat(tick as usize * 50).into() }), &mut out);
        }
        out
    }

    /// Both readers must return the same, for complete, truncated and damaged tapes.
    fn same(bytes: &[u8]) {
        let (Ok(mut whole), Ok(mut stream)) = (Reader::new(bytes), Stream::new(bytes)) else {
            assert!(Reader::new(bytes).is_err() && Stream::new(bytes).is_err());
            return;
        };
        loop {
            let (a, b) = (whole.step(), stream.step().unwrap());
            assert_eq!(format!("{a:?}"), format!("{b:?}"));
            if matches!(a, Step::End(_)) {
                break;
            }
        }
    }

    #[test]
    fn reads_what_the_reader_in_memory_reads() {
        let tape = tape();
        same(&tape);
        (0..tape.len()).step_by(5).for_each(|cut| same(&tape[..cut]));
        for offset in (0..tape.len()).step_by(11) {
            let mut torn = tape.clone();
            torn[offset] ^= 0x41;
            same(&torn);
        }
    }
}

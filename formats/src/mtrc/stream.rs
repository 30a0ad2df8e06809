//! Reader of records from any source, in constant memory: a buffer, and the name caches.

use super::layout::{Header, MAGIC, Record};
use super::reader::{FAST_PATH_LEN, NameCaches, Parsed, Step, parse};
use crate::{Ending, ReadError, Validation};
use std::io::{self, Read};

/// Size of a read in bytes.
const BUFFER: usize = 256 * 1024;

/// Reader of the records of a file that arrives in several reads.
///
/// # Examples
///
/// ```
/// use heaptape_formats::{Ending, mtrc::Stream};
/// use std::fs::File;
///
/// let file = File::open(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/mpatrol/basic.mtrc"))?;
/// let mut stream = Stream::new(file)?;
/// while let Some(record) = stream.next()? {
///     println!("{record:?}");
/// }
/// assert_eq!(stream.ending(), Some(Ending::Complete));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Stream<R> {
    input: R,
    header: Header,
    buffer: Vec<u8>,
    /// Position of the next record in the buffer.
    at: usize,
    base: u64,
    exhausted: bool,
    names: NameCaches,
    ending: Option<Ending>,
}

impl<R: Read> Stream<R> {
    /// Creates a reader and reads the header.
    ///
    /// # Errors
    /// When reading fails, or the bytes do not start with a header of a version that can be read.
    pub fn new(input: R) -> Result<Self, ReadError> {
        let header = Header::default();
        let names = NameCaches::default();
        let mut stream =
            Stream { input, header, buffer: Vec::new(), at: 0, base: 0, exhausted: false, names, ending: None };
        stream.fill()?;
        stream.header = Header::read(&stream.buffer)?;
        stream.at = stream.header.len();
        Ok(stream)
    }

    /// Returns the file's header.
    pub const fn header(&self) -> Header {
        self.header
    }

    /// Returns how the file ended; `None` while records may follow.
    pub const fn ending(&self) -> Option<Ending> {
        self.ending
    }

    /// Returns the offset of the next record, or of the end mark, from the start of the file.
    pub const fn offset(&self) -> u64 {
        self.base + self.at as u64
    }

    /// Reads the next record. Returns `None` if there is none; then [`Stream::ending`] has the
    /// reason.
    ///
    /// # Errors
    /// When reading fails, or the next bytes are not a record.
    #[inline]
    #[allow(clippy::should_implement_trait, reason = "an iterator could not lend names from the cache")]
    pub fn next(&mut self) -> Result<Option<Record<'_>>, ReadError> {
        let parsed = self.step()?;
        Ok(parsed.map(|parsed| self.names.record(&parsed)))
    }

    #[inline]
    fn step(&mut self) -> Result<Option<Parsed>, ReadError> {
        loop {
            let rest = self.buffer.get(self.at..).unwrap_or_default();
            if rest.len() < FAST_PATH_LEN && !self.exhausted {
                self.fill()?;
                continue;
            }
            let offset = self.base + self.at as u64;
            match parse(rest, offset, self.header.has_location(), &mut self.names)? {
                Step::Record(parsed, taken) => {
                    self.at += taken;
                    return Ok(Some(parsed));
                }
                Step::Truncated(_) if !self.exhausted => self.fill()?,
                Step::Truncated(field) => self.ending = Some(Ending::Truncated { offset, field }),
                Step::End => self.ending = Some(Ending::Complete),
            }
            if self.ending.is_some() {
                return Ok(None);
            }
        }
    }

    /// Removes the bytes that were read and reads on. A record that does not fit (a long name)
    /// makes the buffer grow.
    #[cold]
    fn fill(&mut self) -> io::Result<()> {
        self.buffer.drain(..self.at);
        self.base += self.at as u64;
        self.at = 0;
        let held = self.buffer.len();
        let wanted = if held < FAST_PATH_LEN.max(MAGIC.len()) { BUFFER } else { held.max(BUFFER) };
        self.buffer.reserve_exact(wanted);
        let read = Read::by_ref(&mut self.input).take(wanted as u64).read_to_end(&mut self.buffer)?;
        self.exhausted = read < wanted;
        Ok(())
    }
}

/// Validates a trace up to the end mark, in constant memory. Bytes after it are not looked at.
///
/// # Examples
///
/// ```
/// use heaptape_formats::{Ending, mtrc};
///
/// let trace = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/mpatrol/basic.mtrc"))?;
/// assert_eq!(mtrc::validate(&trace[..])?.ending, Ok(Ending::Complete));
/// let ending = mtrc::validate(&trace[..trace.len() / 2])?.ending;
/// assert!(matches!(ending, Ok(Ending::Truncated { .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// When reading fails, or the bytes do not start with a header of a version that can be read.
pub fn validate(mut from: impl Read) -> Result<Validation, ReadError> {
    validate_from(&mut from)
}

/// The loop over the records is compiled here, with optimization, and not for each caller.
fn validate_from(from: &mut dyn Read) -> Result<Validation, ReadError> {
    let mut stream = Stream::new(from)?;
    loop {
        match stream.step() {
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(ReadError::Format(error)) => return Ok(Validation { bytes: stream.offset(), ending: Err(error) }),
            Err(failure) => return Err(failure),
        }
    }
    let ending = stream.ending.unwrap_or(Ending::Complete);
    let bytes = if ending.is_complete() {
        stream.offset() + MAGIC.len() as u64
    } else {
        stream.base + stream.buffer.len() as u64
    };
    Ok(Validation { ending: Ok(ending), bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mtrc::Reader;

    /// The bytes that a validation keeps, of truncated, modified and complete files, are readable
    /// without an error, and to the same record as all bytes are.
    #[test]
    fn validated_bytes_are_readable() {
        let path = format!("{}/../tests/golden/mpatrol/usedebug.mtrc", env!("CARGO_MANIFEST_DIR"));
        let golden = std::fs::read(path).unwrap_or_else(|error| panic!("{error}"));
        let followed = [&golden[..], b"rest"].concat();
        let whole = Validation { ending: Ok(Ending::Complete), bytes: golden.len() as u64 };
        assert_eq!(validate(&followed[..]).unwrap_or_else(|error| panic!("{error}")), whole);
        let read = |bytes: &[u8]| {
            let mut reader = Reader::new(bytes).unwrap_or_else(|error| panic!("{error}"));
            let mut records = 0;
            let error = loop {
                match reader.next() {
                    Ok(Some(_)) => records += 1,
                    Ok(None) => break None,
                    Err(error) => break Some(error),
                }
            };
            (records, error)
        };
        let mut wrong = 0;
        for offset in 20..golden.len() {
            let mut flipped = golden.clone();
            flipped[offset] ^= 0x8f;
            for bytes in [&golden[..offset], &flipped] {
                let validated = validate(bytes).unwrap_or_else(|error| panic!("{error}"));
                let (all, error) = read(bytes);
                assert_eq!(validated.ending.clone().err(), error, "{offset}");
                wrong += u32::from(error.is_some());
                assert_eq!(read(&bytes[..validated.bytes as usize]), (all, None), "{offset}");
            }
        }
        assert!(wrong > 20, "{wrong}");
    }
}

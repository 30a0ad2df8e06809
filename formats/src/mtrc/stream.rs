//! Reads records from anything that can be read, in constant memory: a buffer, and the name caches.

use super::layout::{Header, MAGIC, Record};
use super::reader::{FAR, Names, Parsed, Step, parse};
use crate::{Ending, Error};
use std::io::{self, Read};

/// Bytes asked for at once.
const BUFFER: usize = 256 * 1024;

/// Steps over the records of a file that is read piece by piece.
#[derive(Debug)]
pub struct Stream<R> {
    from: R,
    header: Header,
    buffer: Vec<u8>,
    /// Where the next record starts in the buffer, and the buffer in the file.
    at: usize,
    base: u64,
    exhausted: bool,
    names: Names,
    ending: Option<Ending>,
}

/// Why a stream stopped.
#[derive(Debug)]
pub enum Failure {
    /// The bytes could not be read.
    Io(io::Error),
    /// The bytes are no trace.
    Format(Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::Io(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Format(error)
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Io(error) => error.fmt(f),
            Failure::Format(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Failure {}

impl<R: Read> Stream<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// When reading fails, or the bytes do not start with a header of a version that can be read.
    pub fn new(from: R) -> Result<Self, Failure> {
        let header = Header::default();
        let names = Names::default();
        let mut stream =
            Stream { from, header, buffer: Vec::new(), at: 0, base: 0, exhausted: false, names, ending: None };
        stream.fill()?;
        stream.header = Header::read(&stream.buffer)?;
        stream.at = stream.header.len();
        Ok(stream)
    }

    /// The file's header.
    pub const fn header(&self) -> Header {
        self.header
    }

    /// How the file ended; `None` while records may follow.
    pub const fn ending(&self) -> Option<Ending> {
        self.ending
    }

    /// The next record; `None` when there is none, and then [`Stream::ending`] says why.
    ///
    /// # Errors
    /// When reading fails, or what follows is no record.
    #[inline]
    #[allow(clippy::should_implement_trait, reason = "an iterator could not lend names from the cache")]
    pub fn next(&mut self) -> Result<Option<Record<'_>>, Failure> {
        let parsed = self.step()?;
        Ok(parsed.map(|parsed| self.names.record(&parsed)))
    }

    #[inline]
    fn step(&mut self) -> Result<Option<Parsed>, Failure> {
        loop {
            let rest = self.buffer.get(self.at..).unwrap_or_default();
            if rest.len() < FAR && !self.exhausted {
                self.fill()?;
                continue;
            }
            let offset = self.base + self.at as u64;
            match parse(rest, offset, self.header.has_place(), &mut self.names)? {
                Step::Record(parsed, taken) => {
                    self.at += taken;
                    return Ok(Some(parsed));
                }
                Step::Cut(_) if !self.exhausted => self.fill()?,
                Step::Cut(field) => self.ending = Some(Ending::Cut { offset, field }),
                Step::End => self.ending = Some(Ending::Complete),
            }
            if self.ending.is_some() {
                return Ok(None);
            }
        }
    }

    /// Drops what was used and reads on. A record that does not fit (a long name) makes the buffer grow.
    #[cold]
    fn fill(&mut self) -> io::Result<()> {
        self.buffer.drain(..self.at);
        self.base += self.at as u64;
        self.at = 0;
        let held = self.buffer.len();
        let wanted = if held < FAR.max(MAGIC.len()) { BUFFER } else { held.max(BUFFER) };
        self.buffer.reserve_exact(wanted);
        let read = Read::by_ref(&mut self.from).take(wanted as u64).read_to_end(&mut self.buffer)?;
        self.exhausted = read < wanted;
        Ok(())
    }
}

//! Reader of heaptrack data files, one line at a time, from any source of bytes.

use super::layout::{FIRST_KNOWN, FIRST_LENGTHS, FrameName, Line};
use crate::{Ending, Error, Format, Kind, ReadError};
use std::io::{self, BufRead, Read};

/// Maximum length of a line and of a text: C++ names of a megabyte exist, longer ones do not.
const MAX_LEN: u64 = 4 << 20;

/// Reader of the lines of a file.
///
/// # Examples
///
/// ```
/// use heaptape_formats::heaptrack::{Line, Reader};
///
/// let data = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/import/heaptrack.txt"))?;
/// let mut reader = Reader::new(&data[..]);
/// assert!(matches!(reader.next()?, Some(Line::Version { file: 3, .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Reader<R> {
    from: R,
    offset: u64,
    line: Vec<u8>,
    version: Option<u64>,
    ending: Option<Ending>,
}

impl<R: BufRead> Reader<R> {
    /// Creates a reader at the first line.
    pub const fn new(from: R) -> Reader<R> {
        Reader { from, offset: 0, line: Vec::new(), version: None, ending: None }
    }

    /// Returns how the file ended, once there is no further line.
    pub const fn ending(&self) -> Option<Ending> {
        self.ending
    }

    /// Reads the next line. Returns `None` at the end of the file and where it is truncated.
    ///
    /// # Errors
    /// When the source cannot be read, or its bytes are not a heaptrack data file.
    #[allow(clippy::should_implement_trait, reason = "it can fail")]
    pub fn next(&mut self) -> Result<Option<Line>, ReadError> {
        if self.ending.is_some() {
            return Ok(None);
        }
        let start = self.offset;
        match self.line() {
            Ok(Some(line)) => Ok(Some(line)),
            Ok(None) => {
                self.ending = Some(Ending::Complete);
                Ok(None)
            }
            Err(ReadError::Format(Error { kind: Kind::Truncated, field, .. })) => {
                self.ending = Some(Ending::Truncated { offset: start, field });
                Ok(None)
            }
            // A compressed file that is truncated or damaged ends like any other.
            Err(ReadError::Io(error)) if is_damage(&error) && self.version.is_some() => {
                self.ending = Some(Ending::Truncated { offset: start, field: "packed bytes" });
                Ok(None)
            }
            Err(failure) => Err(failure),
        }
    }

    fn failed(&self, offset: u64, field: &'static str, kind: Kind) -> ReadError {
        ReadError::Format(Error { format: Format::Heaptrack, offset, field, kind })
    }

    fn line(&mut self) -> Result<Option<Line>, ReadError> {
        let start = self.offset;
        if self.version.is_some_and(|version| version >= FIRST_LENGTHS) && self.peek()? == Some(b's') {
            return self.text(start).map(Some);
        }
        self.line.clear();
        let read = (&mut self.from).take(MAX_LEN).read_until(b'\n', &mut self.line).map_err(ReadError::Io)?;
        if read == 0 {
            return Ok(None);
        }
        self.offset += read as u64;
        if self.line.pop() != Some(b'\n') {
            let long = read as u64 == MAX_LEN;
            let kind = if long { Kind::Text("a line of more than 4 MiB".into()) } else { Kind::Truncated };
            return Err(self.failed(start, "line", kind));
        }
        self.parse(start).map(Some)
    }

    fn peek(&mut self) -> Result<Option<u8>, ReadError> {
        Ok(self.from.fill_buf().map_err(ReadError::Io)?.first().copied())
    }

    /// Reads `s`, a length, and that number of bytes, which may contain line feeds.
    fn text(&mut self, start: u64) -> Result<Line, ReadError> {
        let mut head = Vec::new();
        self.offset += (&mut self.from).take(2).read_to_end(&mut head).map_err(ReadError::Io)? as u64;
        let read = (&mut self.from).take(17).read_until(b' ', &mut head).map_err(ReadError::Io)?;
        self.offset += read as u64;
        if head.last() != Some(&b' ') || head.len() < 3 {
            let kind = if read < 17 { Kind::Truncated } else { Kind::Text("the length is missing".into()) };
            return Err(self.failed(start, "text length", kind));
        }
        let length = hex(&head[2..head.len() - 1]).filter(|&length| length <= MAX_LEN);
        let Some(length) = length else {
            return Err(self.failed(start, "text length", Kind::Text("not a length of at most 4 MiB".into())));
        };
        let mut text = Vec::new();
        let read = (&mut self.from).take(length + 1).read_to_end(&mut text).map_err(ReadError::Io)?;
        self.offset += read as u64;
        if (read as u64) < length + 1 {
            return Err(self.failed(start, "text", Kind::Truncated));
        }
        if text.pop() != Some(b'\n') {
            return Err(self.failed(
                start,
                "text",
                Kind::Text("no line feed after the bytes that the length announces".into()),
            ));
        }
        Ok(Line::Text(text))
    }

    fn parse(&mut self, start: u64) -> Result<Line, ReadError> {
        let line = std::mem::take(&mut self.line);
        let (tag, rest) = match &line[..] {
            [tag, b' ', rest @ ..] => (*tag, rest),
            [tag] => (*tag, &[][..]),
            _ => (0, &line[..]),
        };
        let mut fields = rest.split(|&byte| byte == b' ').filter(|field| !field.is_empty());
        let mut number = || fields.next().and_then(hex);
        let parsed = match tag {
            b'v' => match (number(), number()) {
                (Some(heaptrack), file) => Some(Line::Version { heaptrack, file: file.unwrap_or(0) }),
                _ => None,
            },
            b'X' => Some(Line::Command(rest.to_vec())),
            b'I' => number().zip(number()).map(|(page_size, pages)| Line::System { page_size, pages }),
            b'A' => Some(Line::Attached),
            b'S' => Some(Line::Suppression(rest.to_vec())),
            b's' => Some(Line::Text(rest.to_vec())),
            b'i' => number().map(|address| {
                let module = number().unwrap_or(0);
                let mut names = Vec::new();
                while let Some(function) = number() {
                    names.push(FrameName { function, file: number().unwrap_or(0), line: number().unwrap_or(0) });
                }
                Line::Address { address, module, names }
            }),
            b't' => number().map(|address| Line::Stack { address, parent: number().unwrap_or(0) }),
            b'a' => number().zip(number()).map(|(size, stack)| Line::Info { size, stack }),
            b'+' => number().map(Line::Alloc),
            b'-' => number().map(Line::Free),
            b'c' => number().map(Line::Milliseconds),
            b'R' => number().map(Line::Resident),
            _ => Some(Line::Other(line.clone())),
        };
        self.line = line;
        let Some(parsed) = parsed else {
            let text = format!("not a valid line of type '{}'", char::from(tag).escape_default());
            return Err(self.failed(start, "line", Kind::Text(text)));
        };
        match (&parsed, self.version) {
            (Line::Version { file, .. }, _) if !(FIRST_KNOWN..=VERSION_LIMIT).contains(file) => {
                return Err(self.failed(start, "version", Kind::Version(*file)));
            }
            (Line::Version { file, .. }, _) => self.version = Some(*file),
            (_, None) => return Err(self.failed(start, "version", Kind::Magic)),
            _ => {}
        }
        Ok(parsed)
    }
}

/// Last version of the file that is read: the known lines have kept their meaning since the first.
const VERSION_LIMIT: u64 = 9;

fn is_damage(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput | io::ErrorKind::Other
    )
}

fn hex(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 16 {
        return None;
    }
    digits.iter().try_fold(0u64, |value, &byte| Some(value << 4 | u64::from(char::from(byte).to_digit(16)?)))
}

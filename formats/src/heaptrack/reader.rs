//! Reads the lines of a heaptrack data file from anything that can be read, one at a time.

use super::layout::{FIRST_KNOWN, FIRST_LENGTHS, Line, NameOf};
use crate::{Ending, Error, Format, Kind};
use std::io::{self, BufRead, Read};

/// The longest line, and the longest text: a C++ name may have a megabyte, no name has more.
const LONGEST: u64 = 4 << 20;

/// Why reading stopped.
#[derive(Debug)]
pub enum Failure {
    /// The bytes could not be read.
    Io(io::Error),
    /// The bytes are no such file.
    Format(Error),
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

/// Steps over the lines.
#[derive(Debug)]
pub struct Reader<R> {
    from: R,
    offset: u64,
    line: Vec<u8>,
    version: Option<u64>,
    ending: Option<Ending>,
}

impl<R: BufRead> Reader<R> {
    /// Starts at the first line.
    pub const fn new(from: R) -> Reader<R> {
        Reader { from, offset: 0, line: Vec::new(), version: None, ending: None }
    }

    /// How the file ended, once there is no further line.
    pub const fn ending(&self) -> Option<Ending> {
        self.ending
    }

    /// The next line; none at the end, and at a cut.
    ///
    /// # Errors
    /// When the bytes cannot be read, or are no such file.
    #[allow(clippy::should_implement_trait, reason = "it can fail")]
    pub fn next(&mut self) -> Result<Option<Line>, Failure> {
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
            Err(Failure::Format(Error { kind: Kind::Cut, field, .. })) => {
                self.ending = Some(Ending::Cut { offset: start, field });
                Ok(None)
            }
            // A packed file that is cut or damaged ends like any other.
            Err(Failure::Io(error)) if is_damage(&error) && self.version.is_some() => {
                self.ending = Some(Ending::Cut { offset: start, field: "packed bytes" });
                Ok(None)
            }
            Err(failure) => Err(failure),
        }
    }

    fn failed(&self, offset: u64, field: &'static str, kind: Kind) -> Failure {
        Failure::Format(Error { format: Format::Heaptrack, offset, field, kind })
    }

    fn line(&mut self) -> Result<Option<Line>, Failure> {
        let start = self.offset;
        if self.version.is_some_and(|version| version >= FIRST_LENGTHS) && self.peek()? == Some(b's') {
            return self.text(start).map(Some);
        }
        self.line.clear();
        let read = (&mut self.from).take(LONGEST).read_until(b'\n', &mut self.line).map_err(Failure::Io)?;
        if read == 0 {
            return Ok(None);
        }
        self.offset += read as u64;
        if self.line.pop() != Some(b'\n') {
            let long = read as u64 == LONGEST;
            let kind = if long { Kind::Text("a line without end".into()) } else { Kind::Cut };
            return Err(self.failed(start, "line", kind));
        }
        self.parse(start).map(Some)
    }

    fn peek(&mut self) -> Result<Option<u8>, Failure> {
        Ok(self.from.fill_buf().map_err(Failure::Io)?.first().copied())
    }

    /// `s`, a length, and as many bytes, line feeds among them.
    fn text(&mut self, start: u64) -> Result<Line, Failure> {
        let mut head = Vec::new();
        self.offset += (&mut self.from).take(2).read_to_end(&mut head).map_err(Failure::Io)? as u64;
        let read = (&mut self.from).take(17).read_until(b' ', &mut head).map_err(Failure::Io)?;
        self.offset += read as u64;
        if head.last() != Some(&b' ') || head.len() < 3 {
            let kind = if read < 17 { Kind::Cut } else { Kind::Text("no length".into()) };
            return Err(self.failed(start, "text length", kind));
        }
        let length = hex(&head[2..head.len() - 1]).filter(|&length| length <= LONGEST);
        let Some(length) = length else {
            return Err(self.failed(start, "text length", Kind::Text("no length that a name has".into())));
        };
        let mut text = Vec::new();
        let read = (&mut self.from).take(length + 1).read_to_end(&mut text).map_err(Failure::Io)?;
        self.offset += read as u64;
        if (read as u64) < length + 1 {
            return Err(self.failed(start, "text", Kind::Cut));
        }
        if text.pop() != Some(b'\n') {
            return Err(self.failed(start, "text", Kind::Text("it does not end where its length says".into())));
        }
        Ok(Line::Text(text))
    }

    fn parse(&mut self, start: u64) -> Result<Line, Failure> {
        let line = std::mem::take(&mut self.line);
        let (letter, rest) = match &line[..] {
            [letter, b' ', rest @ ..] => (*letter, rest),
            [letter] => (*letter, &[][..]),
            _ => (0, &line[..]),
        };
        let mut words = rest.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
        let mut number = || words.next().and_then(hex);
        let parsed = match letter {
            b'v' => match (number(), number()) {
                (Some(heaptrack), file) => Some(Line::Version { heaptrack, file: file.unwrap_or(0) }),
                _ => None,
            },
            b'X' => Some(Line::Command(rest.to_vec())),
            b'I' => number().zip(number()).map(|(page_size, pages)| Line::System { page_size, pages }),
            b'A' => Some(Line::Attached),
            b's' => Some(Line::Text(rest.to_vec())),
            b'i' => number().map(|address| {
                let module = number().unwrap_or(0);
                let mut names = Vec::new();
                while let Some(function) = number() {
                    names.push(NameOf { function, file: number().unwrap_or(0), line: number().unwrap_or(0) });
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
            let text = format!("not a line of the letter '{}'", char::from(letter).escape_default());
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

/// Versions of the file up to here are read: the lines that we know have kept their meaning since the first.
const VERSION_LIMIT: u64 = 9;

fn is_damage(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput | io::ErrorKind::Other
    )
}

fn hex(word: &[u8]) -> Option<u64> {
    if word.is_empty() || word.len() > 16 {
        return None;
    }
    word.iter().try_fold(0u64, |value, &byte| Some(value << 4 | u64::from(char::from(byte).to_digit(16)?)))
}

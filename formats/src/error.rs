//! Errors of all formats. Every message names the format, the offset and the field.

use std::{fmt, io};

/// The file formats that this crate knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// mpatrol's trace of allocation events.
    Mtrc,
    /// mpatrol's profile of allocation sums.
    Mptl,
    /// The file `gmon.out` of gprof.
    Gmon,
    /// Profile file of DCPI.
    Dcpi,
    /// heaptape's own file beside the trace, `events.tape`.
    Tape,
    /// The description of a recording, `recording.json`.
    Recording,
    /// Profile of pprof, `profile.proto`.
    Pprof,
    /// Data file of heaptrack.
    Heaptrack,
    /// Data file of DHAT.
    Dhat,
    /// Output file of Massif.
    Massif,
    /// Text heap profile of jemalloc, gperftools, Go or Java.
    HeapText,
    /// Leak report of LeakSanitizer, memcheck, `mtrace` or `memleak`.
    LeakLog,
    /// Memory and registers of a process that crashed.
    Core,
}

impl Format {
    /// Returns the name that messages and `--to` use.
    pub const fn name(self) -> &'static str {
        match self {
            Format::Mtrc => "MTRC",
            Format::Mptl => "MPTL",
            Format::Gmon => "gmon.out",
            Format::Dcpi => "DCPI",
            Format::Tape => "tape",
            Format::Recording => "recording.json",
            Format::Pprof => "pprof",
            Format::Heaptrack => "heaptrack",
            Format::Dhat => "DHAT",
            Format::Massif => "massif",
            Format::HeapText => "heap profile",
            Format::LeakLog => "leak report",
            Format::Core => "core",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What is wrong with the field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The bytes end inside this field. Readers of streams turn this into [`Ending::Truncated`].
    Truncated,
    /// The bytes are not the expected magic bytes.
    Magic,
    /// The file has a version that this crate does not read.
    Version(u64),
    /// A number is too long, out of range, or refers to nothing. The text says what was expected.
    Bad(u64, &'static str),
    /// Any other fault, described by the text.
    Text(String),
}

/// An error in a file, with format, byte offset, field and kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Format that was being read.
    pub format: Format,
    /// Offset in bytes from the start of the (uncompressed) file.
    pub offset: u64,
    /// Name of the field, as the format's own documentation has it.
    pub field: &'static str,
    /// What is wrong with the bytes of a field.
    pub kind: Kind,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: offset {}: {}: ", self.format, self.offset, self.field)?;
        match &self.kind {
            Kind::Truncated => f.write_str("the file ends here"),
            Kind::Magic => f.write_str("not the expected magic bytes"),
            Kind::Version(v) => write!(f, "version {v} is not one that can be read"),
            Kind::Bad(v, expected) => write!(f, "{v} ({v:#x}) where {expected}"),
            Kind::Text(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Error {}

/// Error of a reader that reads its bytes itself.
#[derive(Debug)]
pub enum ReadError {
    /// The source of the bytes failed.
    Io(io::Error),
    /// The bytes break a rule of their format.
    Format(Error),
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        ReadError::Io(error)
    }
}

impl From<Error> for ReadError {
    fn from(error: Error) -> Self {
        ReadError::Format(error)
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::Io(error) => error.fmt(f),
            ReadError::Format(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // The message is that of the cause, so its cause comes next.
        match self {
            ReadError::Io(error) => error.source(),
            ReadError::Format(error) => error.source(),
        }
    }
}

/// Result of reading bytes in memory.
pub type Result<T> = std::result::Result<T, Error>;

/// How a file ended, where it could be read that far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The file has all of its bytes, with the end mark of its format where there is one.
    Complete,
    /// The bytes ended inside (or before) `field`. Everything before `offset` was read.
    Truncated {
        /// Offset in bytes of the first byte that could not be used.
        offset: u64,
        /// Field in which the bytes ended.
        field: &'static str,
    },
}

impl Ending {
    /// Returns whether no byte of the file is missing.
    pub const fn is_complete(self) -> bool {
        matches!(self, Ending::Complete)
    }
}

/// Result of the validation of bytes that arrive in several reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Validation {
    /// How the bytes ended, or the first error. Everything before that error can be read.
    pub ending: Result<Ending>,
    /// Number of bytes from the start that form a readable file, complete or truncated.
    pub bytes: u64,
}

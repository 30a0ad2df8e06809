//! What can be wrong with a file, and where. One type for all formats: every message names format, offset and field.

use std::{fmt, io};

/// The file formats that this crate knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// mpatrol event trace.
    Mtrc,
    /// mpatrol profile.
    Mptl,
    /// gprof `gmon.out`.
    Gmon,
    /// DCPI profile file.
    Dcpi,
    /// heaptape's annotation file, `events.tape`.
    Tape,
    /// `recording.json`.
    Recording,
    /// pprof's profile.
    Pprof,
    /// heaptrack's data file.
    Heaptrack,
    /// DHAT's data file.
    Dhat,
    /// Massif's output.
    Massif,
}

impl Format {
    /// The name that messages and `--to` use.
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
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The bytes end inside this field. Readers of streams turn this into [`Ending::Cut`].
    Cut,
    /// Not the magic bytes that belong here.
    Magic,
    /// A version that this crate does not read.
    Version(u64),
    /// A number that cannot be: too long, out of range, or pointing nowhere. The text says what was expected.
    Bad(u64, &'static str),
    /// Anything else, in a few words.
    Text(String),
}

/// An error in a file: format, byte offset from its start, field, and what is wrong there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The format that was being read.
    pub format: Format,
    /// Bytes from the start of the (uncompressed) file.
    pub offset: u64,
    /// The field's name in the format's own words.
    pub field: &'static str,
    /// What is wrong.
    pub kind: Kind,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: offset {}: {}: ", self.format, self.offset, self.field)?;
        match &self.kind {
            Kind::Cut => f.write_str("the file ends here"),
            Kind::Magic => f.write_str("not the expected magic bytes"),
            Kind::Version(v) => write!(f, "version {v} is not one that can be read"),
            Kind::Bad(v, expected) => write!(f, "{v} ({v:#x}) where {expected}"),
            Kind::Text(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Error {}

/// Why a stream of bytes was read no further.
#[derive(Debug)]
pub enum Failure {
    /// The bytes could not be read.
    Io(io::Error),
    /// The bytes are not what their format asks for.
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

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Io(error) => error.fmt(f),
            Failure::Format(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Failure {}

/// The result of reading.
pub type Result<T> = std::result::Result<T, Error>;

/// How a file ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With the mark that its format puts at the end.
    Complete,
    /// Without it: everything before `offset` was read; the bytes ended inside (or before) `field`.
    Cut {
        /// Bytes from the start of the file to the first byte that could not be used.
        offset: u64,
        /// The field that was cut.
        field: &'static str,
    },
}

impl Ending {
    /// Whether the file ended as its format says.
    pub const fn is_complete(self) -> bool {
        matches!(self, Ending::Complete)
    }
}

/// What a walk over bytes that come piece by piece found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Walked {
    /// How the bytes ended, or what is wrong behind those that can be read.
    pub ending: Result<Ending>,
    /// So many bytes can be read by themselves, as a whole file or as a cut one.
    pub bytes: u64,
}

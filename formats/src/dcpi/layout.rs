//! The bytes of a DCPI profile file, versions pdb-0.06 and pdb-0.07 (their bodies are the same).
//!
//! ```text
//! version pdb-0.07\n            text lines in any order: word, blanks or tabs, value
//! …
//! samples   \n                  the terminator, padded to a header length of a multiple of 4
//! offset number count*number    a chunk of little-endian u32 fields, number is at least 1
//! …                             chunks in ascending order, not overlapping
//! total_offsets total_samples   the footer: the last 8 bytes of the file
//! ```
//! The number of chunks is not in the file.
//!
//! The count at index `i` of a chunk belongs to the address `tstart + offset + stride * i`. The
//! document counts in instruction addresses, which are 4 bytes apart on the Alpha; see
//! [`STRIDE_KEY`].

/// The word that ends the header.
pub const TERMINATOR: &[u8] = b"samples";
/// The prefix of the version number.
pub const VERSION_PREFIX: &[u8] = b"pdb-";
/// The version that the writer writes.
pub const VERSION: &str = "pdb-0.07";
/// The stride if the file does not have one: the length of an Alpha instruction in bytes.
pub const DEFAULT_STRIDE: u32 = 4;
/// A header line of heaptape: the stride, the distance of the addresses of successive counts in
/// bytes. Heap profiles count return addresses, which have no alignment, so they use a stride of 1.
/// The format permits readers to ignore unknown lines.
pub const STRIDE_KEY: &str = "heaptape-stride";
/// Maximum stride that readers accept.
pub const MAX_STRIDE: u32 = 4096;
/// Length of a field of the body in bytes.
pub const FIELD: usize = 4;
/// Length of `offset` and `number` in bytes.
pub const CHUNK_HEADER: usize = 2 * FIELD;
/// Length of `total_offsets` and `total_samples` in bytes.
pub const FOOTER: usize = 2 * FIELD;
/// The length of the header is padded to a multiple of this.
pub const ALIGNMENT: usize = 4;

/// How often the format requires a header line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The line appears exactly once.
    Required,
    /// The line appears at most once.
    Optional,
    /// The format does not define the line. It is kept when a file is rewritten.
    Unknown,
}

impl Class {
    /// Returns the name for the dump.
    pub const fn name(self) -> &'static str {
        match self {
            Class::Required => "required",
            Class::Optional => "optional",
            Class::Unknown => "unknown",
        }
    }
}

/// The syntax of the value of a header line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syntax {
    /// A version in the form `pdb-MAJOR.MINOR`.
    Version,
    /// Any number of hexadecimal digits.
    Identity,
    /// A hexadecimal number of up to 64 bits, without `0x`.
    Hex,
    /// A decimal number of up to 64 bits.
    Decimal,
    /// A time in UTC: `YYMMDDHHMM`. Some files have other lengths.
    Time,
    /// The rest of the line.
    Text,
}

/// A header line that the format defines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderLine {
    /// First word of the line.
    pub name: &'static str,
    /// How often the line must appear.
    pub class: Class,
    /// The syntax of the value.
    pub syntax: Syntax,
}

const fn word(name: &'static str, class: Class, syntax: Syntax) -> HeaderLine {
    HeaderLine { name, class, syntax }
}

/// The defined lines, in the order of the format's description, in which they are written.
pub const HEADER_LINES: [HeaderLine; 13] = [
    word("version", Class::Required, Syntax::Version),
    word("image", Class::Required, Syntax::Identity),
    word("epoch", Class::Required, Syntax::Time),
    word("platform", Class::Required, Syntax::Text),
    word("event", Class::Required, Syntax::Text),
    word("period", Class::Required, Syntax::Decimal),
    word("tstart", Class::Required, Syntax::Hex),
    word("tsize", Class::Required, Syntax::Decimal),
    word("cpuspeed", Class::Required, Syntax::Decimal),
    word("cpuamask", Class::Optional, Syntax::Hex),
    word("cpuimplv", Class::Optional, Syntax::Decimal),
    word("cpucount", Class::Optional, Syntax::Decimal),
    word("path", Class::Optional, Syntax::Text),
];

/// Returns the index in [`HEADER_LINES`] of a line that begins with `name`.
pub fn index_of(name: &[u8]) -> Option<usize> {
    HEADER_LINES.iter().position(|word| word.name.as_bytes() == name)
}

/// Returns whether a byte is a blank of the format.
pub const fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

//! The bytes of a DCPI profile file, versions pdb-0.06 and pdb-0.07 (their bodies are the same).
//!
//! ```text
//! version pdb-0.07\n                 text lines: word, blanks or tabs, value; in any order
//! …
//! samples   \n                       the terminator; its blanks make the header's length a multiple of 4
//! offset number count*number         a chunk, every field a little-endian u32; number is at least 1
//! …                                  chunks in rising order, not overlapping; their count is written nowhere
//! total_offsets total_samples        the footer: the last 8 bytes of the file
//! ```
//!
//! The count at index `i` of a chunk belongs to the address `tstart + offset + stride * i`. The
//! document counts in instruction addresses, which are 4 bytes apart on the Alpha; see
//! [`STRIDE_KEY`].

/// The word that ends the header.
pub const TERMINATOR: &[u8] = b"samples";
/// What stands before the numbers of the version.
pub const VERSION_PREFIX: &[u8] = b"pdb-";
/// The version that the writer states.
pub const VERSION: &str = "pdb-0.07";
/// The bytes between two successive counts when the file does not say: an Alpha instruction.
pub const DEFAULT_STRIDE: u32 = 4;
/// A header line of our own: the bytes between the addresses of successive counts. Heap profiles
/// count return addresses, which have no alignment, so ours say 1. The format lets every reader
/// pass over a line that it does not know.
pub const STRIDE_KEY: &str = "heaptape-stride";
/// The greatest stride that is believed.
pub const MAX_STRIDE: u32 = 4096;
/// Bytes of one field of the body.
pub const FIELD: usize = 4;
/// Bytes of `offset` and `number`.
pub const CHUNK_HEADER: usize = 2 * FIELD;
/// Bytes of `total_offsets` and `total_samples`.
pub const FOOTER: usize = 2 * FIELD;
/// The header's length is filled up to a multiple of this.
pub const ALIGNMENT: usize = 4;

/// What the document asks of a header line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Exactly once.
    Required,
    /// At most once.
    Optional,
    /// Any word that the document does not list: kept when rewriting.
    Unknown,
}

impl Class {
    /// The word that the dump shows.
    pub const fn name(self) -> &'static str {
        match self {
            Class::Required => "required",
            Class::Optional => "optional",
            Class::Unknown => "unknown",
        }
    }
}

/// What the value of a header line consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syntax {
    /// `pdb-MAJOR.MINOR`.
    Version,
    /// Hexadecimal digits, any number of them.
    Identity,
    /// A hexadecimal number of up to 64 bits, without `0x`.
    Hex,
    /// A decimal number of up to 64 bits.
    Decimal,
    /// `YYMMDDHHMM`, UTC; other lengths are seen in the wild.
    Time,
    /// The rest of the line.
    Text,
}

/// A header line that the document lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderLine {
    /// Its first word.
    pub name: &'static str,
    /// Whether it must be there.
    pub class: Class,
    /// What its value consists of.
    pub syntax: Syntax,
}

const fn word(name: &'static str, class: Class, syntax: Syntax) -> HeaderLine {
    HeaderLine { name, class, syntax }
}

/// The listed lines, in the document's order, which is the order in which they are written.
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

/// The index in [`HEADER_LINES`] of a line that begins with `name`.
pub fn index_of(name: &[u8]) -> Option<usize> {
    HEADER_LINES.iter().position(|word| word.name.as_bytes() == name)
}

/// Whether the grammar calls this byte a space.
pub const fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

//! Comparison of the first bytes of a file with one format.

/// Judgement of one format about the first bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// The bytes are of this format.
    Yes,
    /// Nothing contradicts the format, which has no magic bytes. It is used if no other format
    /// matches.
    Weak,
    /// The bytes are not of this format.
    No,
    /// The bytes may be of this format, but there are too few of them.
    NeedMore,
}

/// Matches bytes that begin with `magic`.
pub(crate) fn begins_with(bytes: &[u8], magic: &[u8]) -> Match {
    if bytes.starts_with(magic) {
        Match::Yes
    } else if magic.starts_with(bytes) {
        Match::NeedMore
    } else {
        Match::No
    }
}

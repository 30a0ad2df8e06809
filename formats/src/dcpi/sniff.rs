//! Recognizes DCPI profiles by a line `version pdb-…` that follows only header lines.

use super::layout::{self, Class, VERSION_PREFIX};
use super::lines::{Line, LineIter};
use crate::prefix::Match;

/// Maximum length of the header in which the version line is searched.
const MAX_HEADER_LEN: usize = 64 << 10;
/// Number of required lines that identify the format if the version line is missing.
const MIN_REQUIRED_LINES: usize = 4;

/// Returns whether a file that begins with `prefix` is a DCPI profile. The prefix may have any
/// length.
pub fn sniff(prefix: &[u8]) -> Match {
    let mut lines = LineIter::new(prefix);
    let mut required = 0;
    for line in &mut lines {
        if line.is_terminator() {
            return if required >= MIN_REQUIRED_LINES { Match::Yes } else { Match::No };
        }
        if is_version(line) {
            return Match::Yes;
        }
        if !is_header_line(line) {
            return Match::No;
        }
        required += usize::from(line.class() == Class::Required);
    }
    let rest = Line { offset: 0, raw: &prefix[lines.at()..] };
    if is_version(rest) {
        return Match::Yes;
    }
    // An incomplete line. It must begin with a valid word or with the beginning of one.
    if prefix.len() > MAX_HEADER_LEN || !is_word(rest.word()) && !rest.raw.is_empty() {
        Match::No
    } else {
        Match::NeedMore
    }
}

fn is_version(line: Line<'_>) -> bool {
    line.word() == layout::HEADER_LINES[0].name.as_bytes() && line.value().starts_with(VERSION_PREFIX)
}

fn is_header_line(line: Line<'_>) -> bool {
    is_word(line.word()) && !line.value().is_empty()
}

/// Returns whether a word begins with a letter or digit and is printable. The grammar of the format
/// permits any bytes but blanks, which would match any file.
fn is_word(word: &[u8]) -> bool {
    word.first().is_some_and(u8::is_ascii_alphanumeric) && word.iter().all(u8::is_ascii_graphic)
}

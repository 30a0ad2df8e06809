//! Whether bytes begin a DCPI profile: a line `version pdb-…` behind nothing but header lines.

use super::layout::{self, Class, VERSION_PREFIX};
use super::lines::{Line, LineIter};
use crate::sniff::Answer;

/// Bytes of header in which the version line is looked for.
const LONGEST_HEADER: usize = 64 << 10;
/// Required lines that tell the format when the version line is missing.
const TELLING_LINES: usize = 4;

/// Says whether a file that begins with `prefix` is a DCPI profile; any prefix will do, a longer one tells more.
pub fn sniff(prefix: &[u8]) -> Answer {
    let mut lines = LineIter::new(prefix);
    let mut required = 0;
    for line in &mut lines {
        if line.is_terminator() {
            return if required >= TELLING_LINES { Answer::Yes } else { Answer::No };
        }
        if is_version(line) {
            return Answer::Yes;
        }
        if !is_header_line(line) {
            return Answer::No;
        }
        required += usize::from(line.class() == Class::Required);
    }
    let rest = Line { offset: 0, raw: &prefix[lines.at()..] };
    if is_version(rest) {
        return Answer::Yes;
    }
    // A line without its end: its word must be whole, or the beginning of one.
    if prefix.len() > LONGEST_HEADER || !is_word(rest.word()) && !rest.raw.is_empty() {
        Answer::No
    } else {
        Answer::More
    }
}

fn is_version(line: Line<'_>) -> bool {
    line.word() == layout::WORDS[0].name.as_bytes() && line.value().starts_with(VERSION_PREFIX)
}

fn is_header_line(line: Line<'_>) -> bool {
    is_word(line.word()) && !line.value().is_empty()
}

/// Words begin with a letter or digit and are printable; the grammar has anything but blanks, which would be any file.
fn is_word(word: &[u8]) -> bool {
    word.first().is_some_and(u8::is_ascii_alphanumeric) && word.iter().all(u8::is_ascii_graphic)
}

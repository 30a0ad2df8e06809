//! The lines of a header as they are in the file, and a list of lines that can be changed and
//! written.

use super::layout::{self, Class, TERMINATOR, is_space};

/// A line of a header as it is in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// Offset of the line in the file.
    pub offset: u64,
    /// The complete line without its newline.
    pub raw: &'a [u8],
}

impl<'a> Line<'a> {
    fn split(&self) -> (&'a [u8], &'a [u8]) {
        let end = self.raw.iter().position(|&byte| is_space(byte)).unwrap_or(self.raw.len());
        let (word, rest) = self.raw.split_at(end);
        let start = rest.iter().position(|&byte| !is_space(byte)).unwrap_or(rest.len());
        (word, &rest[start..])
    }

    /// Returns the first word. It is empty if the line is empty or begins with a blank.
    pub fn word(&self) -> &'a [u8] {
        self.split().0
    }

    /// Returns the value: the rest of the line after the blanks that follow the first word.
    pub fn value(&self) -> &'a [u8] {
        self.split().1
    }

    /// Returns how often the format requires this line.
    pub fn class(&self) -> Class {
        layout::index_of(self.word()).map_or(Class::Unknown, |index| layout::HEADER_LINES[index].class)
    }

    /// Returns whether the line ends the header: the word `samples` and only blanks.
    pub fn is_terminator(&self) -> bool {
        self.raw.strip_prefix(TERMINATOR).is_some_and(|rest| rest.iter().all(|&byte| is_space(byte)))
    }
}

/// An iterator over the lines of a header, including the terminator.
#[derive(Clone, Debug)]
pub struct LineIter<'a> {
    bytes: &'a [u8],
    at: usize,
    done: bool,
}

impl<'a> LineIter<'a> {
    /// Starts at the first byte of a file.
    pub const fn new(bytes: &'a [u8]) -> Self {
        LineIter { bytes, at: 0, done: false }
    }

    /// Returns the offset of the next line in the file.
    pub const fn at(&self) -> usize {
        self.at
    }
}

impl<'a> Iterator for LineIter<'a> {
    type Item = Line<'a>;

    /// Returns the next complete line, or `None` after the terminator and if there is no newline.
    fn next(&mut self) -> Option<Line<'a>> {
        if self.done {
            return None;
        }
        let rest = self.bytes.get(self.at..)?;
        let length = rest.iter().position(|&byte| byte == b'\n')?;
        let line = Line { offset: self.at as u64, raw: &rest[..length] };
        self.at += length + 1;
        self.done = line.is_terminator();
        Some(line)
    }
}

/// The lines of a header to be written, without the terminator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lines(Vec<Vec<u8>>);

impl Lines {
    /// Copies the lines of a header, including unknown and malformed ones, in their order.
    pub fn of<'a>(lines: impl Iterator<Item = Line<'a>>) -> Self {
        Lines(lines.filter(|line| !line.is_terminator()).map(|line| line.raw.to_vec()).collect())
    }

    /// Returns each line without its newline.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(Vec::as_slice)
    }

    /// Returns the value of the first line that begins with `word`.
    pub fn get(&self, word: &str) -> Option<&[u8]> {
        self.find(word).map(|index| self.line(index).value())
    }

    /// Sets the value of the first line that begins with `word`. If there is none, a line is
    /// inserted after all lines that come before it in the format's order, or at the end if the
    /// format does not define it.
    pub fn set(&mut self, word: &str, value: &[u8]) {
        if let Some(index) = self.find(word) {
            let line = self.line(index);
            let kept = line.raw.len() - line.value().len();
            let end = if line.value().is_empty() { word.len() } else { kept };
            self.0[index].truncate(end);
            if end == word.len() {
                self.0[index].push(b' ');
            }
            self.0[index].extend_from_slice(value);
            return;
        }
        let line = [word.as_bytes(), b" ", value].concat();
        let before = layout::index_of(word.as_bytes()).map(|own| {
            let earlier = |line: &Vec<u8>| {
                let line = Line { offset: 0, raw: line };
                layout::index_of(line.word()).is_some_and(|index| index < own)
            };
            self.0.iter().rposition(earlier).map_or(0, |index| index + 1)
        });
        self.0.insert(before.unwrap_or(self.0.len()), line);
    }

    fn line(&self, index: usize) -> Line<'_> {
        Line { offset: 0, raw: &self.0[index] }
    }

    fn find(&self, word: &str) -> Option<usize> {
        (0..self.0.len()).find(|&index| self.line(index).word() == word.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_line_keeps_its_position_and_blanks() {
        let file = b"x y\nperiod \t1\nevent a\npath\nsamples 5\nsamples \t\nevent z\n";
        let mut lines = Lines::of(LineIter::new(file));
        assert_eq!(lines.iter().count(), 5);
        lines.set("period", b"12");
        lines.set("path", b"/p");
        lines.set("version", b"pdb-0.07");
        lines.set("tsize", b"9");
        lines.set("label", b"l");
        let text = lines.iter().map(|line| String::from_utf8_lossy(line).into_owned()).collect::<Vec<_>>().join("|");
        assert_eq!(text, "version pdb-0.07|x y|period \t12|event a|tsize 9|path /p|samples 5|label l");
        assert_eq!(lines.get("tsize"), Some(&b"9"[..]));
    }
}

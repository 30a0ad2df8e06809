//! Replaces control characters, so that no string of a recording can color, move or hide anything
//! on the terminal.

use std::borrow::Cow;
use std::io::{self, Write};

/// Returns whether a character may control a terminal: C0, DEL, C1, and the Unicode characters that
/// reorder, join or hide text.
pub(super) const fn is_control(c: char) -> bool {
    matches!(c,
        '\0'..='\x1f' | '\x7f'..='\u{9f}' | '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Returns the text with each control character replaced by `\u{fffd}`.
pub fn clean(text: &str) -> Cow<'_, str> {
    if text.chars().any(is_control) {
        Cow::Owned(text.chars().map(|c| if is_control(c) { char::REPLACEMENT_CHARACTER } else { c }).collect())
    } else {
        Cow::Borrowed(text)
    }
}

/// Returns the text of a name in a file with control characters and invalid UTF-8 replaced by
/// `\u{fffd}`.
pub fn clean_name(name: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(name) {
        Ok(text) => clean(text),
        Err(_) => Cow::Owned(clean(&String::from_utf8_lossy(name)).into_owned()),
    }
}

/// Returns the text with control characters replaced by `\u{fffd}`, except tabs.
pub fn clean_columns(text: &str) -> String {
    text.split('\t').map(clean).collect::<Vec<_>>().join("\t")
}

/// Control characters that [`SanitizingWriter`] keeps. gprof prints form feeds between listings.
const KEPT: [char; 3] = ['\n', '\t', '\x0c'];

/// A writer that replaces control characters like [`clean`], except line feeds, tabs and form
/// feeds.
pub struct SanitizingWriter<W> {
    out: W,
    /// The first bytes of a character whose rest has not been written yet.
    incomplete: Vec<u8>,
}

impl<W: Write> SanitizingWriter<W> {
    /// Creates a writer to `out`.
    pub const fn new(out: W) -> Self {
        SanitizingWriter { out, incomplete: Vec::new() }
    }
}

impl<W: Write> Write for SanitizingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        write_clean_bytes(bytes, &mut self.incomplete, &mut self.out)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if !std::mem::take(&mut self.incomplete).is_empty() {
            write_clean("\u{fffd}", &mut self.out)?;
        }
        self.out.flush()
    }
}

fn write_clean(text: &str, out: &mut dyn Write) -> io::Result<()> {
    for segment in text.split_inclusive(KEPT) {
        let end = segment.len() - usize::from(segment.ends_with(KEPT));
        out.write_all(clean(&segment[..end]).as_bytes())?;
        out.write_all(&segment.as_bytes()[end..])?;
    }
    Ok(())
}

/// Writes bytes without control characters. `incomplete` is the start of a character, before and
/// after them.
fn write_clean_bytes(bytes: &[u8], incomplete: &mut Vec<u8>, out: &mut dyn Write) -> io::Result<()> {
    if incomplete.is_empty() && bytes.iter().all(|byte| matches!(byte, b'\n' | b'\t' | b'\x0c' | b' '..=b'~')) {
        return out.write_all(bytes);
    }
    incomplete.extend_from_slice(bytes);
    let pending = std::mem::take(incomplete);
    for chunk in pending.utf8_chunks() {
        write_clean(chunk.valid(), out)?;
        let invalid = chunk.invalid();
        // An incomplete character can only be at the end. It has at most three bytes.
        if !invalid.is_empty()
            && pending.ends_with(invalid)
            && std::str::from_utf8(invalid).is_err_and(|e| e.error_len().is_none())
        {
            incomplete.extend_from_slice(invalid);
        } else if !invalid.is_empty() {
            write_clean("\u{fffd}", out)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sanitizing_writer_accepts_text_split_at_any_byte() {
        let hostile = "a\x1b[2J\u{9b}é\u{202e}\tb\n\x0c\u{fffd}€".as_bytes();
        let expected = "a\u{fffd}[2J\u{fffd}é\u{fffd}\tb\n\x0c\u{fffd}€";
        for split in 0..=hostile.len() {
            let mut out = Vec::new();
            let mut writer = SanitizingWriter::new(&mut out);
            writer.write_all(&hostile[..split]).unwrap();
            writer.write_all(&hostile[split..]).unwrap();
            writer.flush().unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
        let mut out = Vec::new();
        let mut writer = SanitizingWriter::new(&mut out);
        writer.write_all(b"x\xffy\xe2\x82").unwrap();
        writer.flush().unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "x\u{fffd}y\u{fffd}");
    }
}

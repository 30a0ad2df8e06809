//! JSON output for scripts. Characters that could control a terminal are escaped, which JSON allows
//! for any character.

use crate::text;
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter};
use std::io::{self, Write};

/// Pretty printing that escapes more characters than JSON requires.
struct EscapingFormatter<'a>(PrettyFormatter<'a>);

impl Formatter for EscapingFormatter<'_> {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, out: &mut W, fragment: &str) -> io::Result<()> {
        if let std::borrow::Cow::Borrowed(_) = text::clean(fragment) {
            return out.write_all(fragment.as_bytes());
        }
        for c in fragment.chars() {
            let mut bytes = [0; 4];
            match text::clean(c.encode_utf8(&mut bytes)) {
                std::borrow::Cow::Borrowed(same) => out.write_all(same.as_bytes())?,
                std::borrow::Cow::Owned(_) => {
                    let mut units = [0; 2];
                    for unit in c.encode_utf16(&mut units) {
                        write!(out, "\\u{unit:04x}")?;
                    }
                }
            }
        }
        Ok(())
    }
    fn begin_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_array(out)
    }
    fn end_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_array(out)
    }
    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_array_value(out, first)
    }
    fn end_array_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_array_value(out)
    }
    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object(out)
    }
    fn end_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object(out)
    }
    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_object_key(out, first)
    }
    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object_value(out)
    }
    fn end_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object_value(out)
    }
}

/// Prints a value as JSON, followed by a line feed.
///
/// # Errors
/// Returns an error when `out` fails or when the value cannot be serialized.
pub fn print(out: &mut dyn Write, value: &impl Serialize) -> io::Result<()> {
    let mut serializer = serde_json::Serializer::with_formatter(&mut *out, EscapingFormatter(PrettyFormatter::new()));
    value.serialize(&mut serializer).map_err(io::Error::from)?;
    writeln!(out)
}

#[cfg(test)]
mod tests {
    #[test]
    fn strings_round_trip_without_control_characters() {
        let hostile = "a\x1b[31m\u{9b}\u{202e}\u{e0041}é\"\\\n\x7f";
        let mut out = Vec::new();
        super::print(&mut out, &[hostile]).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(!text.chars().any(|c| c.is_control() && c != '\n' || c == '\u{202e}' || c == '\u{e0041}'), "{text:?}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&text).unwrap(), [hostile]);
    }
}

//! Encoding of the data in a page: numbers as columns of LEB128, deflated, in base64; and JSON that
//! cannot end its script element.

use crate::text::clean;
use data_encoding::BASE64;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use heaptape_formats::leb128;
use serde::Serialize;
use std::io::Write;

/// Columns of numbers, one after the other. The page reads them by their names and lengths.
#[derive(Debug, Default)]
pub(super) struct Columns {
    bytes: Vec<u8>,
    /// Name and length of each column.
    pub index: Vec<(&'static str, usize)>,
}

impl Columns {
    /// Appends a column of numbers.
    pub(super) fn put(&mut self, name: &'static str, values: impl Iterator<Item = u64>) {
        let mut count = 0;
        for value in values {
            leb128::write(&mut self.bytes, value);
            count += 1;
        }
        self.index.push((name, count));
    }

    /// Returns the bytes of all columns, packed.
    pub(super) fn packed(&self) -> String {
        packed(&self.bytes)
    }
}

/// Encodes bytes as text: zlib, then base64.
pub(super) fn packed(bytes: &[u8]) -> String {
    let mut zlib = ZlibEncoder::new(Vec::new(), Compression::new(6));
    // Writing to a vector does not fail.
    let stored = zlib.write_all(bytes).and_then(|()| zlib.finish()).unwrap_or_default();
    BASE64.encode(&stored)
}

/// Returns a string of a recording without characters that control or reorder text.
pub(super) fn safe(text: &str) -> String {
    clean(text).into_owned()
}

/// Returns JSON for a script element of type `application/json`: no character of it begins a tag or
/// a comment, or controls text.
///
/// # Errors
/// Returns an error when the value cannot be serialized.
pub(super) fn json(value: &impl Serialize) -> serde_json::Result<String> {
    // These characters occur only within strings.
    Ok(clean(&serde_json::to_string(value)?).replace('<', "\\u003c"))
}

/// Escapes text for use between tags.
pub(super) fn markup(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in clean(text).chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

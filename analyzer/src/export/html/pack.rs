//! How numbers and names travel in a page: columns of LEB128, deflated, in base64; and JSON that
//! nothing can break out of.

use crate::text::clean;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use serde::Serialize;
use std::io::Write;

/// Columns of numbers, one behind the other. The page reads them by the names and lengths that
/// stand beside them.
#[derive(Debug, Default)]
pub struct Columns {
    bytes: Vec<u8>,
    /// Name and length of each.
    pub index: Vec<(&'static str, usize)>,
}

impl Columns {
    /// Appends a column.
    pub fn put(&mut self, name: &'static str, values: impl Iterator<Item = u64>) {
        let mut count = 0;
        for mut value in values {
            while value >= 0x80 {
                self.bytes.push(value as u8 | 0x80);
                value >>= 7;
            }
            self.bytes.push(value as u8);
            count += 1;
        }
        self.index.push((name, count));
    }

    /// The bytes of all columns, packed.
    pub fn packed(&self) -> String {
        packed(&self.bytes)
    }
}

/// Bytes as text: zlib, then base64.
pub fn packed(bytes: &[u8]) -> String {
    let mut zlib = ZlibEncoder::new(Vec::new(), Compression::new(6));
    // A vector takes whatever is written.
    let stored = zlib.write_all(bytes).and_then(|()| zlib.finish()).unwrap_or_default();
    base64(&stored)
}

/// Figures of base64.
pub const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn base64(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let byte = |at: usize| u32::from(three.get(at).copied().unwrap_or(0));
        let word = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let figure = ALPHABET[(word >> (18 - 6 * place)) as usize & 63];
            out.push(if place <= three.len() { figure as char } else { '=' });
        }
    }
    out
}

/// A string of a recording: without what could steer or reorder text.
pub fn safe(text: &str) -> String {
    clean(text).into_owned()
}

/// JSON for a script element of type `application/json`: no character of it begins a tag or a
/// comment, or steers text.
///
/// # Errors
/// When the value cannot be JSON.
pub fn json(value: &impl Serialize) -> serde_json::Result<String> {
    // These stand only within strings.
    Ok(clean(&serde_json::to_string(value)?).replace('<', "\\u003c"))
}

/// Text between tags.
pub fn markup(text: &str) -> String {
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

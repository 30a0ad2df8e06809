//! Reader of DHAT files. A truncated file is closed after its last complete program point or frame
//! before it is parsed.

use super::layout::{File, VERSION};
use crate::{Ending, Error, Format, Kind, Result};

impl File {
    /// Reads a file. The ending says whether it was complete.
    ///
    /// # Examples
    ///
    /// ```
    /// use heaptape_formats::dhat::File;
    ///
    /// let bytes = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/import/valgrind-dhat.json"))?;
    /// let (file, ending) = File::read(&bytes)?;
    /// assert!(ending.is_complete());
    /// assert_eq!(file.verb, "Allocated");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When the bytes are not a DHAT file of the known version.
    pub fn read(bytes: &[u8]) -> Result<(File, Ending)> {
        let (file, ending) = match serde_json::from_slice::<File>(bytes) {
            Ok(file) => (file, Ending::Complete),
            Err(error) if error.is_eof() => {
                let (closed, at) = close(bytes);
                let ending = Ending::Truncated { offset: at as u64, field: "program points and frames" };
                (serde_json::from_slice(&closed).map_err(|_| failed(bytes, &error))?, ending)
            }
            Err(error) => return Err(failed(bytes, &error)),
        };
        if file.version != VERSION {
            let kind = Kind::Version(file.version);
            return Err(Error { format: Format::Dhat, offset: 0, field: "dhatFileVersion", kind });
        }
        Ok((file, ending))
    }
}

fn failed(bytes: &[u8], error: &serde_json::Error) -> Error {
    let lines = bytes.split_inclusive(|&byte| byte == b'\n').take(error.line().saturating_sub(1));
    let offset = lines.map(<[u8]>::len).sum::<usize>() + error.column();
    Error { format: Format::Dhat, offset: offset as u64, field: "JSON", kind: Kind::Text(error.to_string()) }
}

/// Returns the object up to the last offset where a member, or an item of a member's array, was
/// complete, closed with brackets; and that offset.
fn close(bytes: &[u8]) -> (Vec<u8>, usize) {
    let (mut depth, mut quoted, mut escaped) = (0u32, false, false);
    let mut array = false;
    let mut whole = (0, false);
    for (at, &byte) in bytes.iter().enumerate() {
        if quoted {
            (quoted, escaped) = (escaped || byte != b'"', !escaped && byte == b'\\');
            if !quoted && depth == 2 && array {
                whole = (at + 1, true);
            }
            continue;
        }
        match byte {
            b'"' => quoted = true,
            b'{' | b'[' => {
                depth += 1;
                if depth == 2 {
                    array = byte == b'[';
                }
            }
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                match depth {
                    2 if array => whole = (at + 1, true),
                    1 => (whole, array) = ((at + 1, false), false),
                    _ => {}
                }
            }
            b',' if depth == 1 => whole = (at, false),
            _ => {}
        }
    }
    let mut closed = bytes[..whole.0].to_vec();
    if closed.is_empty() {
        closed.push(b'{');
    }
    closed.extend_from_slice(if whole.1 { b"]}" } else { b"}" });
    (closed, whole.0)
}

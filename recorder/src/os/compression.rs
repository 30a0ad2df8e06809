//! How the events of a process are compressed: `plain`, `lz4`, `zstd`, `zstd:LEVEL`, or `columns`.

use formats::tape::Codec;
use std::fmt;
use std::str::FromStr;

/// Default level of the compression. Measured with `examples/stages.rs` on a fully loaded machine,
/// trace and columns, in nanoseconds and bytes per event: level 1 takes 48 ns for 7.1 bytes
/// (random), 44 for 4.1 (bulk); level -1 45 for 8.3 and 43 for 4.9; level 3 92 for 6.7 and 73 for
/// 4.1; LZ4 31 for 10.0 and 24 for 7.5.
const LEVEL: i32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compression {
    /// The codec of the chunks of a large trace.
    pub codec: Codec,
    /// The level of the codec; 0 for a codec without levels.
    pub level: i32,
}

impl Compression {
    /// MTRC as other tools read it once it is decompressed.
    pub const ZSTD: Compression = Compression { codec: Codec::Zstd, level: LEVEL };
    /// MTRC as other tools read it, also while it grows.
    pub const PLAIN: Compression = Compression { codec: Codec::Plain, level: 0 };
    /// Half of the space, for heaptape alone.
    pub const COLUMNS: Compression = Compression { codec: Codec::Columns, level: LEVEL };
}

impl FromStr for Compression {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (codec, level) = match text.split_once(':').unwrap_or((text, "")) {
            ("plain", "") => (Codec::Plain, 0),
            ("lz4", "") => (Codec::Lz4, 0),
            ("zstd", "") => (Codec::Zstd, LEVEL),
            ("columns", "") => (Codec::Columns, LEVEL),
            ("zstd", level) => match level.parse() {
                Ok(level @ -7..=19) => (Codec::Zstd, level),
                _ => return Err("zstd has levels from -7 to 19".into()),
            },
            _ => return Err("must be plain, lz4, zstd[:LEVEL] or columns".into()),
        };
        Ok(Compression { codec, level })
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.codec {
            Codec::Plain => out.write_str("plain"),
            Codec::Lz4 => out.write_str("lz4"),
            Codec::Columns => out.write_str("columns"),
            Codec::Zstd if self.level == LEVEL => out.write_str("zstd"),
            Codec::Zstd => write!(out, "zstd:{}", self.level),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressions_are_parsed_and_printed() {
        for text in ["plain", "lz4", "zstd", "zstd:-3", "zstd:19", "columns"] {
            assert_eq!(text.parse::<Compression>().map(|compression| compression.to_string()).as_deref(), Ok(text));
        }
        for text in ["zstd:99", "gzip", "lz4:2", "columns:3", ""] {
            assert!(text.parse::<Compression>().is_err(), "{text}");
        }
    }
}

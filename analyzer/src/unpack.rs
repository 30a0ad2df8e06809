//! Reads a path or standard input, decompresses it, and detects the format of the content. Every
//! command that reads single files uses this module.
//!
//! Compression is detected by magic numbers, not by file names, and may be nested. If a compressed
//! file is truncated or damaged, the content before the damage is returned. The size of the output
//! is bounded by the size of the input, so a small file cannot fill the memory.

use heaptape_formats::tape::Codec;
use heaptape_formats::tape::codec::COLUMNS_MAGIC;
use heaptape_formats::{Format, regular, sniff};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// A compression format of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// gzip (RFC 1952) with any number of members.
    Gzip,
    /// Zstandard (RFC 8878) with any number of frames.
    Zstd,
    /// LZ4 with any number of frames.
    Lz4,
    /// bzip2.
    Bzip2,
    Xz,
    /// heaptape's columns of a trace, with any number of frames ([`Codec::Columns`]).
    Columns,
}

impl Compression {
    /// Number of bytes that tell a compression format.
    pub(crate) const MAGIC: u64 = 8;

    /// Detects the compression by the first bytes of a file.
    pub fn detect(bytes: &[u8]) -> Option<Compression> {
        match bytes {
            [0x1f, 0x8b, 0x08, ..] => Some(Compression::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Compression::Zstd),
            [0x04, 0x22, 0x4d, 0x18, ..] => Some(Compression::Lz4),
            // A block follows the digit of its size at once; an empty file has the mark of the end.
            [b'B', b'Z', b'h', b'1'..=b'9', 0x31, 0x41, 0x59, ..] => Some(Compression::Bzip2),
            [b'B', b'Z', b'h', b'1'..=b'9', 0x17, 0x72, 0x45, ..] => Some(Compression::Bzip2),
            [0xfd, b'7', b'z', b'X', b'Z', 0x00, ..] => Some(Compression::Xz),
            bytes if bytes.starts_with(&COLUMNS_MAGIC) => Some(Compression::Columns),
            _ => None,
        }
    }

    /// Returns the name for messages.
    pub const fn name(self) -> &'static str {
        match self {
            Compression::Gzip => "gzip",
            Compression::Zstd => "zstd",
            Compression::Lz4 => "lz4",
            Compression::Bzip2 => "bzip2",
            Compression::Xz => "xz",
            Compression::Columns => "columns",
        }
    }
}

/// A limit on the size of decompressed content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Number of bytes that is always allowed.
    pub floor: u64,
    /// Number of bytes that is allowed in addition for each compressed byte.
    pub ratio: u64,
}

impl Limit {
    /// The limit of [`open`]: 256 MiB plus 200 bytes for each compressed byte. The compression
    /// ratio of traces is 3 to 30. That of a file of zeros is 1,000 with gzip and at least 10,000
    /// with zstd.
    pub const DEFAULT: Limit = Limit { floor: 256 << 20, ratio: 200 };

    const fn allowed(self, compressed: u64) -> u64 {
        self.floor.saturating_add(self.ratio.saturating_mul(compressed))
    }
}

/// The decompressed content of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenedFile {
    /// The format of the content, if it is known.
    pub format: Option<Format>,
    /// The decompressed bytes of the file.
    pub bytes: Vec<u8>,
    /// The name of the file, for messages.
    pub name: String,
    /// The compression formats that were removed, outermost first.
    pub compression: Vec<Compression>,
    /// Why the content ends early, if the compressed file is truncated or damaged.
    pub damage: Option<String>,
}

/// The error of opening a file.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("{name}")]
    Io { name: String, source: io::Error },
    #[error("{0} is a directory; a file was expected")]
    Directory(PathBuf),
    /// The content exceeds the limit.
    #[error(
        "{name}: {} bytes of {} expand to more than {limit} bytes, the limit for decompression",
        compressed,
        compression.name()
    )]
    TooLarge {
        name: String,
        /// The compression format of the file.
        compression: Compression,
        /// Number of compressed bytes.
        compressed: u64,
        limit: u64,
    },
    /// Too little could be decompressed.
    #[error("{name}: truncated or damaged {} after {offset} unpacked bytes", compression.name())]
    Damaged {
        name: String,
        /// The compression format of the file.
        compression: Compression,
        /// Number of bytes that were decompressed.
        offset: u64,
        source: io::Error,
    },
}

/// Reads a file, or standard input if the path is `-`, with [`Limit::DEFAULT`].
///
/// # Examples
///
/// ```
/// use heaptape_analyzer::unpack;
/// use heaptape_formats::Format;
///
/// let file = unpack::open(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/import/go-heap.pb").as_ref())?;
/// assert_eq!(file.format, Some(Format::Pprof));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Returns an error if the file cannot be read, if its content exceeds the limit, or if nothing can
/// be decompressed.
pub fn open(path: &Path) -> Result<OpenedFile, Error> {
    open_within(path, Limit::DEFAULT)
}

/// Reads a file, or standard input if the path is `-`, with a limit.
///
/// # Errors
/// Returns an error if the file cannot be read, if its content exceeds the limit, or if nothing can
/// be decompressed.
pub(crate) fn open_within(path: &Path, limit: Limit) -> Result<OpenedFile, Error> {
    let mut bytes = Vec::new();
    let (name, read) = if path == Path::new("-") {
        ("standard input".to_string(), io::stdin().lock().read_to_end(&mut bytes))
    } else if path.is_dir() {
        return Err(Error::Directory(path.to_path_buf()));
    } else {
        let read = regular::open_once(path).and_then(|mut file| file.read_to_end(&mut bytes));
        (path.display().to_string(), read)
    };
    match read {
        Ok(_) => unpack(name, bytes, limit),
        Err(source) => Err(Error::Io { name, source }),
    }
}

/// Decompresses the bytes of a file. `name` is the name of the file, for messages.
///
/// # Errors
/// Returns an error if the content exceeds the limit, or if nothing can be decompressed.
pub fn unpack(name: String, bytes: Vec<u8>, limit: Limit) -> Result<OpenedFile, Error> {
    /// Maximum number of nested compression formats that are removed.
    const MAX_DEPTH: usize = 4;
    let allowed = limit.allowed(bytes.len() as u64);
    let mut opened = OpenedFile { format: None, bytes, name, compression: Vec::new(), damage: None };
    while let Some(compression) = Compression::detect(&opened.bytes).filter(|_| opened.compression.len() < MAX_DEPTH) {
        let compressed = opened.bytes.len() as u64;
        let (bytes, damage) = decode(compression, &opened.bytes, allowed);
        if bytes.len() as u64 > allowed {
            return Err(Error::TooLarge { name: opened.name, compression, compressed, limit: allowed });
        }
        match damage {
            Some(source) if bytes.is_empty() => {
                return Err(Error::Damaged { name: opened.name, compression, offset: 0, source });
            }
            Some(source) => {
                let (kind, offset) = (compression.name(), bytes.len());
                opened.damage = Some(format!("truncated or damaged {kind} after {offset} unpacked bytes: {source}"));
            }
            None => {}
        }
        opened.bytes = bytes;
        opened.compression.push(compression);
    }
    opened.format = sniff::format(&opened.bytes);
    Ok(opened)
}

/// Returns the decompressed bytes, at most one more than `limit`, and the error that ended them.
fn decode(compression: Compression, compressed: &[u8], limit: u64) -> (Vec<u8>, Option<io::Error>) {
    let mut out = Vec::new();
    let max_len = limit.saturating_add(1);
    let result = match compression {
        Compression::Gzip => flate2::bufread::MultiGzDecoder::new(compressed).take(max_len).read_to_end(&mut out),
        Compression::Zstd => zstd::stream::read::Decoder::with_buffer(compressed)
            .and_then(|decoder| decoder.take(max_len).read_to_end(&mut out)),
        Compression::Lz4 => decode_lz4(compressed, max_len, &mut out),
        Compression::Bzip2 => bzip2_rs::DecoderReader::new(compressed).take(max_len).read_to_end(&mut out),
        Compression::Xz => decode_xz(compressed, max_len, &mut out),
        Compression::Columns => {
            Codec::Columns.reader(compressed).and_then(|decoder| decoder.take(max_len).read_to_end(&mut out))
        }
    };
    (out, result.err())
}

/// Decodes one stream, into at most `max_len` bytes.
fn decode_xz(mut compressed: &[u8], max_len: u64, out: &mut Vec<u8>) -> io::Result<usize> {
    let mut bounded = Bounded { out, left: max_len };
    match lzma_rs::xz_decompress(&mut compressed, &mut bounded) {
        Ok(()) => Ok(bounded.out.len()),
        // The caller knows from the length that the limit was reached.
        Err(_) if bounded.left == 0 => Ok(bounded.out.len()),
        Err(lzma_rs::error::Error::IoError(error)) => Err(error),
        Err(error) => Err(io::Error::new(io::ErrorKind::InvalidData, error.to_string())),
    }
}

/// Returns a reader of the content of one xz stream, which is decoded at once.
pub(crate) fn xz_reader(mut compressed: impl Read) -> io::Result<Box<dyn Read>> {
    let (mut bytes, mut out) = (Vec::new(), Vec::new());
    compressed.read_to_end(&mut bytes)?;
    let damage = decode_xz(&bytes, Limit::DEFAULT.allowed(bytes.len() as u64), &mut out).err();
    match damage {
        Some(error) if out.is_empty() => Err(error),
        // What comes before the damage is read.
        _ => Ok(Box::new(io::Cursor::new(out))),
    }
}

/// A writer that fails at a limit.
struct Bounded<'a> {
    out: &'a mut Vec<u8>,
    left: u64,
}

impl io::Write for Bounded<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let kept = bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.out.extend_from_slice(&bytes[..kept]);
        self.left -= kept as u64;
        Ok(kept)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Decodes all frames. The decoder stops after each frame, so each frame gets a new one.
fn decode_lz4(compressed: &[u8], max_len: u64, out: &mut Vec<u8>) -> io::Result<usize> {
    let mut rest = compressed;
    while !rest.is_empty() && (out.len() as u64) < max_len {
        let before = rest.len();
        let mut decoder = lz4_flex::frame::FrameDecoder::new(&mut rest);
        decoder.by_ref().take(max_len - out.len() as u64).read_to_end(out)?;
        drop(decoder);
        if rest.len() == before {
            break;
        }
    }
    Ok(out.len())
}

#[cfg(test)]
mod tests;

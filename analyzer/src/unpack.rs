//! Opens a path or standard input, takes off what it is packed in, and says which format lies inside. Every word that reads
//! single files comes through here.
//!
//! Packings are told by their magic bytes, not by names, and may lie in one another. A packed file that is cut or damaged is
//! an ending: what came out before is given. What comes out is bounded by what goes in, so that a small file cannot fill
//! the memory.

use heaptape_formats::{Format, sniff};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// What a file may be packed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// RFC 1952, any number of members.
    Gzip,
    /// RFC 8878, any number of frames.
    Zstd,
    /// LZ4 frames.
    Lz4,
}

impl Compression {
    /// By the first bytes.
    pub fn of(bytes: &[u8]) -> Option<Compression> {
        match bytes {
            [0x1f, 0x8b, 0x08, ..] => Some(Compression::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Compression::Zstd),
            [0x04, 0x22, 0x4d, 0x18, ..] => Some(Compression::Lz4),
            _ => None,
        }
    }

    /// The name that messages use.
    pub const fn name(self) -> &'static str {
        match self {
            Compression::Gzip => "gzip",
            Compression::Zstd => "zstd",
            Compression::Lz4 => "lz4",
        }
    }
}

/// How much may come out of a packed file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Bytes that may always come out.
    pub floor: u64,
    /// Bytes that may come out for each byte that goes in, beyond the floor.
    pub ratio: u64,
}

impl Limit {
    /// What [`open`] uses: 256 MiB, and 200 bytes for each packed byte. Traces pack 3 to 30 times; a file of zeros packs
    /// 1,000 times with gzip and 10,000 times and more with zstd.
    pub const DEFAULT: Limit = Limit { floor: 256 << 20, ratio: 200 };
    /// No bound, for who asked for it.
    pub const UNLIMITED: Limit = Limit { floor: u64::MAX, ratio: 0 };

    const fn of(self, packed: u64) -> u64 {
        self.floor.saturating_add(self.ratio.saturating_mul(packed))
    }
}

/// A file's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenedFile {
    /// What it is, if it is one of ours.
    pub format: Option<Format>,
    /// The bytes, unpacked.
    pub bytes: Vec<u8>,
    /// The name that messages use.
    pub name: String,
    /// What the bytes were packed in, outermost first.
    pub compression: Vec<Compression>,
    /// Why nothing came out behind the last byte, if the packed file is cut or damaged.
    pub damage: Option<String>,
}

/// Why a file could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system refused.
    #[error("{name}")]
    Io {
        /// The file.
        name: String,
        /// What the system said.
        source: io::Error,
    },
    /// A directory.
    #[error("{0} is a directory; a file was expected")]
    Directory(PathBuf),
    /// More comes out than the limit allows.
    #[error(
        "{name}: {} bytes of {} hold more than {limit} bytes, more than is unpacked unless asked for",
        packed,
        compression.name()
    )]
    TooLarge {
        /// The file.
        name: String,
        /// What it is packed in.
        compression: Compression,
        /// Its bytes.
        packed: u64,
        /// What may come out.
        limit: u64,
    },
    /// Nothing comes out.
    #[error("{name}: nothing can be unpacked: damaged {}", compression.name())]
    Damaged {
        /// The file.
        name: String,
        /// What it is packed in.
        compression: Compression,
        /// What the decoder said.
        source: io::Error,
    },
}

/// Reads a file, `-` for standard input.
pub fn open(path: &Path) -> Result<OpenedFile, Error> {
    open_within(path, Limit::DEFAULT)
}

/// The same with another limit.
pub fn open_within(path: &Path, limit: Limit) -> Result<OpenedFile, Error> {
    let mut bytes = Vec::new();
    let (name, read) = if path == Path::new("-") {
        ("standard input".to_string(), io::stdin().lock().read_to_end(&mut bytes))
    } else if path.is_dir() {
        return Err(Error::Directory(path.to_path_buf()));
    } else {
        let read = std::fs::File::open(path).and_then(|mut file| file.read_to_end(&mut bytes));
        (path.display().to_string(), read)
    };
    match read {
        Ok(_) => unpack(name, bytes, limit),
        Err(source) => Err(Error::Io { name, source }),
    }
}

/// Unpacks bytes that were read.
pub fn unpack(name: String, bytes: Vec<u8>, limit: Limit) -> Result<OpenedFile, Error> {
    /// Packings within compression that are taken off.
    const DEPTH: usize = 4;
    let allowed = limit.of(bytes.len() as u64);
    let mut opened = OpenedFile { format: None, bytes, name, compression: Vec::new(), damage: None };
    while let Some(compression) = Compression::of(&opened.bytes).filter(|_| opened.compression.len() < DEPTH) {
        let packed = opened.bytes.len() as u64;
        let (bytes, damage) = decode(compression, &opened.bytes, allowed);
        if bytes.len() as u64 > allowed {
            return Err(Error::TooLarge { name: opened.name, compression, packed, limit: allowed });
        }
        match damage {
            Some(source) if bytes.is_empty() => return Err(Error::Damaged { name: opened.name, compression, source }),
            Some(source) => opened.damage = Some(format!("cut or damaged {}: {source}", compression.name())),
            None => {}
        }
        opened.bytes = bytes;
        opened.compression.push(compression);
    }
    opened.format = sniff::format(&opened.bytes);
    Ok(opened)
}

/// What comes out, at most one byte more than `limit`, and what stopped it.
fn decode(compression: Compression, packed: &[u8], limit: u64) -> (Vec<u8>, Option<io::Error>) {
    let mut out = Vec::new();
    let most = limit.saturating_add(1);
    let result = match compression {
        Compression::Gzip => flate2::bufread::MultiGzDecoder::new(packed).take(most).read_to_end(&mut out),
        Compression::Zstd => zstd::stream::read::Decoder::with_buffer(packed)
            .and_then(|decoder| decoder.take(most).read_to_end(&mut out)),
        Compression::Lz4 => decode_lz4(packed, most, &mut out),
    };
    (out, result.err())
}

/// A frame decoder stops behind each frame; the next begins a new one.
fn decode_lz4(packed: &[u8], most: u64, out: &mut Vec<u8>) -> io::Result<usize> {
    let mut rest = packed;
    while !rest.is_empty() && (out.len() as u64) < most {
        let left = rest.len();
        let mut decoder = lz4_flex::frame::FrameDecoder::new(&mut rest);
        decoder.by_ref().take(most - out.len() as u64).read_to_end(out)?;
        drop(decoder);
        if rest.len() == left {
            break;
        }
    }
    Ok(out.len())
}

#[cfg(test)]
mod tests;

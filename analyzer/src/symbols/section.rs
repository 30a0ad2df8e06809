//! Uncompressed bytes of sections, in bounded memory.

use crate::kept_file::KeptFile;
use flate2::read::ZlibDecoder;
use heaptape_formats::tape::Source;
use object::CompressionFormat;
use std::io::{self, Read};
use std::sync::Arc;

/// Maximum number of bytes of a section.
const MOST_SECTION_BYTES: u64 = 2 << 30;
/// Maximum compression ratio. The ratios of real sections are less than 10.
const MOST_RATIO: u64 = 1024;
/// A ratio that is believed before it is seen.
const USUAL_RATIO: u64 = 16;
/// Number of compressed bytes that are read at once.
const PIECE: usize = 64 << 10;

/// Where bytes of a file are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub offset: u64,
    pub bytes: u64,
}

/// How the bytes of a section are stored.
#[derive(Clone, Copy)]
pub(super) struct Stored {
    pub format: CompressionFormat,
    pub place: Place,
    /// Number of uncompressed bytes.
    pub size: u64,
}

impl Stored {
    /// Returns the uncompressed bytes, which are in `file`.
    pub(super) fn unpacked(self, file: &KeptFile) -> Option<Arc<[u8]>> {
        unpacked(self.format, || Part { file, place: self.place }, self.place.bytes, self.size)
    }
}

/// Reads a part of a file.
struct Part<'a> {
    file: &'a KeptFile,
    place: Place,
}

impl Read for Part<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let most = into.len().min(usize::try_from(self.place.bytes).unwrap_or(usize::MAX));
        let read = self.file.read_at(self.place.offset, &mut into[..most])?;
        self.place = Place { offset: self.place.offset + read as u64, bytes: self.place.bytes - read as u64 };
        Ok(read)
    }
}

/// Returns the uncompressed bytes of a section of `size` bytes, or `None` if they are invalid or
/// too many. They are unpacked to where they stay, as memory that was not used before is dear.
/// `stored` starts to read the `length` bytes that the section has in the file.
pub(super) fn unpacked<R: Read>(
    format: CompressionFormat,
    stored: impl Fn() -> R,
    length: u64,
    size: u64,
) -> Option<Arc<[u8]>> {
    if size > MOST_SECTION_BYTES || size / MOST_RATIO > length {
        return None;
    }
    let read = |into: &mut dyn FnMut(&mut dyn Read) -> io::Result<u64>| match format {
        CompressionFormat::None => into(&mut stored()),
        CompressionFormat::Zlib => into(&mut ZlibDecoder::new_with_buf(stored(), vec![0; PIECE])),
        CompressionFormat::Zstandard => into(&mut zstd::Decoder::new(stored())?),
        _ => Err(io::ErrorKind::Unsupported.into()),
    };
    // What a hostile header promises takes no memory.
    if size / USUAL_RATIO > length && read(&mut |reader| io::copy(&mut reader.take(size), &mut io::sink())).ok()? < size
    {
        return None;
    }
    let mut bytes: Arc<[u8]> = std::iter::repeat_n(0, usize::try_from(size).ok()?).collect();
    let whole = Arc::get_mut(&mut bytes)?;
    read(&mut |reader| reader.read_exact(whole).map(|()| size)).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn compressed_sections_are_unpacked_up_to_their_size() {
        let plain: Vec<u8> = (0..200_000u32).map(|number| (number / 1000) as u8).collect();
        let mut writer = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
        writer.write_all(&plain).expect("memory");
        let packed = writer.finish().expect("memory");
        let zlib =
            |data: &[u8], size: usize| unpacked(CompressionFormat::Zlib, || data, data.len() as u64, size as u64);
        // The ratio is more than usual, so the bytes are counted first.
        assert!(packed.len() * 16 < plain.len(), "{}", packed.len());
        assert!(zlib(&packed, plain.len()).as_deref() == Some(&plain[..]));
        assert!(zlib(&packed, 70_000).as_deref() == Some(&plain[..70_000]));
        assert!(zlib(&packed, 0).is_some_and(|none| none.is_empty()));
        // A header that promises more than there is.
        assert!(zlib(&packed, plain.len() + 9).is_none());
        // The last four bytes are a checksum.
        for length in 0..packed.len() - 8 {
            assert!(zlib(&packed[..length], plain.len()).is_none(), "cut after {length} bytes");
        }
        assert!(zlib(b"no stream at all", 100).is_none());
    }
}

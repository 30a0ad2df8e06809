//! Uncompressed bytes of sections, in bounded memory.

use flate2::{Decompress, FlushDecompress, Status};
use heaptape_formats::tape::Codec;
use object::CompressionFormat;

/// Maximum number of bytes of a section.
pub(super) const MOST_SECTION_BYTES: u64 = 2 << 30;
/// Maximum compression ratio. The ratios of real sections are less than 10.
const MOST_RATIO: u64 = 1024;

/// Returns the uncompressed bytes of a section of `size` bytes, or `None` if they are invalid or
/// too many.
pub(super) fn unpacked(format: CompressionFormat, data: &[u8], size: u64) -> Option<Vec<u8>> {
    if size > MOST_SECTION_BYTES || size / MOST_RATIO > data.len() as u64 {
        return None;
    }
    match format {
        CompressionFormat::None => Some(data.to_vec()),
        CompressionFormat::Zlib => inflated(data, usize::try_from(size).ok()?),
        CompressionFormat::Zstandard => Codec::Zstd.unpack(data, usize::try_from(size).ok()?).ok(),
        _ => None,
    }
}

/// Returns at most `size` bytes of what was compressed. They are written once, where they stay: a
/// reader would clear its buffers before.
fn inflated(data: &[u8], size: usize) -> Option<Vec<u8>> {
    // What a hostile header promises costs addresses only, and not many.
    const USUAL_RATIO: usize = 16;
    let mut bytes = Vec::with_capacity(size.min(data.len().saturating_mul(USUAL_RATIO)));
    let mut stream = Decompress::new(true);
    loop {
        let (read, written) = (stream.total_in() as usize, bytes.len());
        let status = stream.decompress_vec(data.get(read..)?, &mut bytes, FlushDecompress::Finish).ok()?;
        if status == Status::StreamEnd || bytes.len() >= size {
            bytes.truncate(size);
            return Some(bytes);
        }
        if bytes.len() < bytes.capacity() && (stream.total_in() as usize, bytes.len()) == (read, written) {
            return None;
        }
        if bytes.len() == bytes.capacity() {
            bytes.reserve(bytes.len().max(1 << 12).min(size - bytes.len()));
        }
    }
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
        let zlib = |data: &[u8], size: usize| unpacked(CompressionFormat::Zlib, data, size as u64);
        // The ratio is more than usual, so the buffer grows.
        assert!(packed.len() * 16 < plain.len(), "{}", packed.len());
        assert!(zlib(&packed, plain.len()).as_deref() == Some(&plain[..]));
        assert!(zlib(&packed, 70_000).as_deref() == Some(&plain[..70_000]));
        assert!(zlib(&packed, 0).is_some_and(|none| none.is_empty()));
        // A header that promises more than there is.
        assert!(zlib(&packed, plain.len() + 9).as_deref() == Some(&plain[..]));
        // The last four bytes are a checksum.
        for length in 0..packed.len() - 8 {
            assert!(zlib(&packed[..length], plain.len()).is_none(), "cut after {length} bytes");
        }
        assert!(zlib(b"no stream at all", 100).is_none());
    }
}

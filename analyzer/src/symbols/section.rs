//! Uncompressed bytes of sections, in bounded memory.

use flate2::read::ZlibDecoder;
use heaptape_formats::tape::Codec;
use object::CompressionFormat;
use std::io::Read;

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
        CompressionFormat::Zlib => {
            // What a hostile header promises costs addresses only, and not many.
            const USUAL_RATIO: u64 = 16;
            let mut bytes = Vec::with_capacity(usize::try_from(size.min(USUAL_RATIO * data.len() as u64)).ok()?);
            ZlibDecoder::new(data).take(size).read_to_end(&mut bytes).ok()?;
            Some(bytes)
        }
        CompressionFormat::Zstandard => Codec::Zstd.unpack(data, usize::try_from(size).ok()?).ok(),
        _ => None,
    }
}

//! Compression of the chunks of the trace and the columns of the tape.

use std::io::Read;

/// A compression. Its numbers are part of the file format and never change.
///
/// # Examples
///
/// ```
/// use heaptape_formats::tape::Codec;
///
/// let plain = [7; 1000];
/// let mut stored = Vec::new();
/// Codec::Zstd.pack(&plain, 3, &mut stored)?;
/// assert!(stored.len() < 100);
/// assert_eq!(Codec::Zstd.unpack(&stored, 1000)?, plain);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Codec {
    /// The bytes are not compressed.
    #[default]
    Plain = 0,
    /// One LZ4 frame (`lz4 -d` reads it).
    Lz4 = 1,
    /// One Zstandard frame (`zstd -d` reads it).
    Zstd = 2,
}

impl Codec {
    /// Returns the codec of a number in a file.
    pub const fn from_number(number: u8) -> Option<Codec> {
        match number {
            0 => Some(Codec::Plain),
            1 => Some(Codec::Lz4),
            2 => Some(Codec::Zstd),
            _ => None,
        }
    }

    /// Returns the suffix of the name of a file with this compression.
    pub const fn suffix(self) -> &'static str {
        match self {
            Codec::Plain => "",
            Codec::Lz4 => ".lz4",
            Codec::Zstd => ".zst",
        }
    }

    /// Compresses `plain` as one frame and appends it to `out`. Level 0 is the codec's fast
    /// default. [`Packer`] is faster for many frames.
    ///
    /// # Errors
    ///
    /// When the compression library fails.
    pub fn pack(self, plain: &[u8], level: i32, out: &mut Vec<u8>) -> std::io::Result<()> {
        let mut packed = Vec::new();
        Packer::default().pack(self, plain, level, &mut packed)?;
        out.append(&mut packed);
        Ok(())
    }

    /// Returns a reader of the plain bytes of a file of frames.
    ///
    /// # Errors
    ///
    /// When the decompressor cannot be created.
    pub fn reader<'a, R: Read + 'a>(self, stored: R) -> std::io::Result<Box<dyn Read + 'a>> {
        Ok(match self {
            Codec::Plain => Box::new(stored),
            Codec::Lz4 => {
                Box::new(Lz4Frames(Some(lz4_flex::frame::FrameDecoder::new(std::io::BufReader::new(stored)))))
            }
            Codec::Zstd => Box::new(zstd::stream::read::Decoder::new(stored)?),
        })
    }

    /// Returns the plain bytes of one frame. Their number must be `plain_length`, a bound that the
    /// caller has checked.
    ///
    /// # Errors
    /// When the bytes are no such frame.
    pub fn unpack(self, stored: &[u8], plain_length: usize) -> std::io::Result<Vec<u8>> {
        let mut plain = Vec::new();
        Unpacker::default().unpack(self, stored, plain_length, &mut plain)?;
        Ok(plain)
    }
}

/// Compressor that uses the same memory for many frames: to allocate and clear the tables of zstd
/// takes as long as to compress 50 KiB.
#[derive(Default)]
pub struct Packer(Option<zstd::bulk::Compressor<'static>>);

impl Packer {
    /// Replaces the content of `packed` with `plain` compressed as one frame. Level 0 is the
    /// codec's fast default.
    ///
    /// # Errors
    /// When the compression library fails.
    pub fn pack(&mut self, codec: Codec, plain: &[u8], level: i32, packed: &mut Vec<u8>) -> std::io::Result<()> {
        packed.clear();
        match codec {
            Codec::Plain => packed.extend_from_slice(plain),
            Codec::Lz4 => {
                let mut encoder = lz4_flex::frame::FrameEncoder::new(packed);
                std::io::Write::write_all(&mut encoder, plain)?;
                encoder.finish().map_err(std::io::Error::other)?;
            }
            Codec::Zstd => {
                let compressor = match &mut self.0 {
                    Some(compressor) => compressor,
                    none => none.insert(zstd::bulk::Compressor::new(level)?),
                };
                compressor.set_compression_level(level)?;
                packed.reserve(zstd::zstd_safe::compress_bound(plain.len()));
                compressor.compress_to_buffer(plain, packed)?;
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for Packer {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Packer")
    }
}

/// Decompressor that uses the same memory for many frames.
#[derive(Default)]
pub struct Unpacker(Option<zstd::bulk::Decompressor<'static>>);

impl Unpacker {
    /// Replaces the content of `plain` with the plain bytes of one frame. Their number must be
    /// `plain_length`, a bound that the caller has checked.
    ///
    /// # Errors
    /// When the bytes are no such frame.
    pub fn unpack(
        &mut self,
        codec: Codec,
        stored: &[u8],
        plain_length: usize,
        plain: &mut Vec<u8>,
    ) -> std::io::Result<()> {
        plain.clear();
        // A length from a file does not decide how much memory is allocated until the compressed
        // bytes make it plausible.
        let likely = stored.len().saturating_mul(256).max(1 << 16);
        plain.reserve(plain_length.min(likely));
        let limit = plain_length as u64 + 1;
        match codec {
            Codec::Plain => plain.extend_from_slice(stored),
            Codec::Lz4 => drop(lz4_flex::frame::FrameDecoder::new(stored).take(limit).read_to_end(plain)?),
            Codec::Zstd if plain_length <= likely => {
                let decompressor = match &mut self.0 {
                    Some(decompressor) => decompressor,
                    none => none.insert(zstd::bulk::Decompressor::new()?),
                };
                decompressor.decompress_to_buffer(stored, plain)?;
            }
            Codec::Zstd => drop(zstd::stream::read::Decoder::with_buffer(stored)?.take(limit).read_to_end(plain)?),
        }
        if plain.len() != plain_length {
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, "not the announced length"));
        }
        Ok(())
    }
}

/// Returns the CRC-32 of a chunk's stored bytes, as in [`super::Chunk`].
pub fn checksum(stored: &[u8]) -> u32 {
    crc32fast::hash(stored)
}

/// Decoder of successive LZ4 frames: the library's decoder stops after the first one.
struct Lz4Frames<R: Read>(Option<lz4_flex::frame::FrameDecoder<std::io::BufReader<R>>>);

impl<R: Read> Read for Lz4Frames<R> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        while let Some(decoder) = &mut self.0 {
            let read = decoder.read(into)?;
            if read > 0 || into.is_empty() {
                return Ok(read);
            }
            let mut rest = match self.0.take() {
                Some(decoder) => decoder.into_inner(),
                None => break,
            };
            if !std::io::BufRead::fill_buf(&mut rest)?.is_empty() {
                self.0 = Some(lz4_flex::frame::FrameDecoder::new(rest));
            }
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packer_makes_the_same_frames_whatever_it_packed_before() -> std::io::Result<()> {
        let noise = (0..70_000u32).map(|number| (number.wrapping_mul(0x9e37_79b9) >> 20) as u8).collect();
        let inputs: [Vec<u8>; 4] = [noise, Vec::new(), vec![7; 300_000], b"short".to_vec()];
        let (mut packer, mut packed) = (Packer::default(), b"of an earlier frame".to_vec());
        for (codec, level) in [(Codec::Zstd, 1), (Codec::Lz4, 0), (Codec::Zstd, 5), (Codec::Plain, 0), (Codec::Zstd, 1)]
        {
            for plain in &inputs {
                let mut alone = Vec::new();
                codec.pack(plain, level, &mut alone)?;
                packer.pack(codec, plain, level, &mut packed)?;
                assert_eq!(packed, alone, "{codec:?} {level}");
                assert_eq!(&codec.unpack(&packed, plain.len())?, plain);
            }
        }
        Ok(())
    }
}

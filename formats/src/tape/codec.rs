//! Compression of the chunks of the trace and the columns of the tape.

use crate::mtrc::{self, Columns};
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
    /// The records of a trace as columns ([`crate::mtrc::Columns`]), compressed by Zstandard: half
    /// as large as [`Codec::Zstd`] alone, in less time. A frame is [`COLUMNS_MAGIC`], then the
    /// lengths of plain bytes, columns and Zstandard frame (u32, little-endian), then that frame.
    Columns = 3,
}

/// First bytes of a frame of [`Codec::Columns`].
pub const COLUMNS_MAGIC: [u8; 4] = [0xb7, b'C', b'o', b'l'];
/// Number of bytes of a frame of [`Codec::Columns`] before the Zstandard frame.
const COLUMNS_HEAD: usize = 16;
/// Maximum number of plain bytes of a frame of [`Codec::Columns`]. Writers stay below a tenth of
/// it.
const MAX_COLUMNS_PLAIN: usize = 64 << 20;

impl Codec {
    /// Returns the codec of a number in a file.
    pub const fn from_number(number: u8) -> Option<Codec> {
        match number {
            0 => Some(Codec::Plain),
            1 => Some(Codec::Lz4),
            2 => Some(Codec::Zstd),
            3 => Some(Codec::Columns),
            _ => None,
        }
    }

    /// Returns the suffix of the name of a file with this compression.
    pub const fn suffix(self) -> &'static str {
        match self {
            Codec::Plain => "",
            Codec::Lz4 => ".lz4",
            Codec::Zstd => ".zst",
            Codec::Columns => ".columns",
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
            Codec::Columns => Box::new(ColumnFrames::new(stored)),
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
pub struct Packer {
    zstd: Option<zstd::bulk::Compressor<'static>>,
    columns: Columns,
    joined: Vec<u8>,
    plain: Vec<u8>,
}

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
            Codec::Zstd => self.zstd(plain, level, packed)?,
            Codec::Columns => {
                let mut joined = std::mem::take(&mut self.joined);
                self.columns.transpose(plain, &mut joined);
                self.joined = joined;
                self.frame_of_columns(plain.len(), level, packed)?;
            }
        }
        Ok(())
    }

    /// Replaces the content of `packed` with a chunk of columns ([`mtrc::ColumnWriter`]) compressed
    /// as one frame. `plain_length` is the number of bytes of MTRC that they stand for.
    ///
    /// # Errors
    /// When the compression library fails, or the columns are those of another number of bytes.
    pub fn pack_columns(
        &mut self,
        codec: Codec,
        parts: [&[u8]; mtrc::COLUMNS],
        plain_length: usize,
        level: i32,
        packed: &mut Vec<u8>,
    ) -> std::io::Result<()> {
        packed.clear();
        mtrc::join(parts, &mut self.joined);
        if codec == Codec::Columns {
            return self.frame_of_columns(plain_length, level, packed);
        }
        let mut plain = std::mem::take(&mut self.plain);
        let result = mtrc::restore(&self.joined, plain_length, &mut plain).map_err(invalid);
        let result = result.and_then(|()| self.pack(codec, &plain, level, packed));
        self.plain = plain;
        result
    }

    /// Appends a frame of the joined columns.
    fn frame_of_columns(&mut self, plain_length: usize, level: i32, packed: &mut Vec<u8>) -> std::io::Result<()> {
        let joined = std::mem::take(&mut self.joined);
        packed.extend_from_slice(&[0; COLUMNS_HEAD]);
        let result = self.zstd(&joined, level, packed);
        let lengths = [plain_length, joined.len(), packed.len() - COLUMNS_HEAD];
        self.joined = joined;
        result?;
        packed[..4].copy_from_slice(&COLUMNS_MAGIC);
        for (field, length) in packed[4..COLUMNS_HEAD].chunks_exact_mut(4).zip(lengths) {
            let length = u32::try_from(length).map_err(std::io::Error::other)?;
            field.copy_from_slice(&length.to_le_bytes());
        }
        Ok(())
    }

    /// Appends a Zstandard frame.
    fn zstd(&mut self, plain: &[u8], level: i32, packed: &mut Vec<u8>) -> std::io::Result<()> {
        let compressor = match &mut self.zstd {
            Some(compressor) => compressor,
            none => none.insert(zstd::bulk::Compressor::new(level)?),
        };
        compressor.set_compression_level(level)?;
        packed.reserve(zstd::zstd_safe::compress_bound(plain.len()));
        let start = packed.len() as u64;
        let mut end = std::io::Cursor::new(packed);
        end.set_position(start);
        compressor.compress_to_buffer(plain, &mut end)?;
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
pub struct Unpacker {
    zstd: Option<zstd::bulk::Decompressor<'static>>,
    joined: Vec<u8>,
}

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
        plain.reserve(plain_length.min(likely_length(stored)));
        let limit = plain_length as u64 + 1;
        match codec {
            Codec::Plain => plain.extend_from_slice(stored),
            Codec::Lz4 => drop(lz4_flex::frame::FrameDecoder::new(stored).take(limit).read_to_end(plain)?),
            Codec::Zstd => self.zstd(stored, plain_length, plain)?,
            Codec::Columns => self.columns(stored, plain_length, plain)?,
        }
        if plain.len() != plain_length {
            return Err(invalid("not the announced length"));
        }
        Ok(())
    }

    /// Replaces the content of `plain` with the bytes of one Zstandard frame, or with the first
    /// ones of more than `length`.
    fn zstd(&mut self, stored: &[u8], length: usize, plain: &mut Vec<u8>) -> std::io::Result<()> {
        plain.clear();
        let likely = likely_length(stored);
        plain.reserve(length.min(likely));
        if length <= likely {
            let decompressor = match &mut self.zstd {
                Some(decompressor) => decompressor,
                none => none.insert(zstd::bulk::Decompressor::new()?),
            };
            decompressor.decompress_to_buffer(stored, plain)?;
        } else {
            zstd::stream::read::Decoder::with_buffer(stored)?.take(length as u64 + 1).read_to_end(plain)?;
        }
        Ok(())
    }

    /// Replaces the content of `plain` with the bytes of one frame of columns.
    fn columns(&mut self, stored: &[u8], plain_length: usize, plain: &mut Vec<u8>) -> std::io::Result<()> {
        mtrc::restore(self.joined(stored, plain_length)?, plain_length, plain).map_err(invalid)
    }

    /// Returns the joined columns of one frame of [`Codec::Columns`], for [`mtrc::Items`]. They
    /// must stand for `plain_length` bytes, a bound that the caller has checked.
    ///
    /// # Errors
    /// When the bytes are no such frame.
    pub fn joined(&mut self, stored: &[u8], plain_length: usize) -> std::io::Result<&[u8]> {
        let (head, packed) = stored.split_first_chunk().ok_or_else(|| invalid("a frame of columns that is cut"))?;
        let head = ColumnsHead::read(head)?;
        if head.plain != plain_length || head.packed != packed.len() {
            return Err(invalid("not the announced length"));
        }
        let mut joined = std::mem::take(&mut self.joined);
        let result = self.zstd(packed, head.columns, &mut joined);
        self.joined = joined;
        result?;
        if self.joined.len() != head.columns {
            return Err(invalid("columns of another length than announced"));
        }
        Ok(&self.joined)
    }
}

/// The lengths in the head of a frame of columns.
struct ColumnsHead {
    plain: usize,
    columns: usize,
    packed: usize,
}

impl ColumnsHead {
    fn read(bytes: &[u8; COLUMNS_HEAD]) -> std::io::Result<ColumnsHead> {
        let (magic, lengths) = bytes.split_at(COLUMNS_MAGIC.len());
        let mut lengths = lengths.chunks_exact(4).map(|word| word.try_into().map_or(0, u32::from_le_bytes) as usize);
        let mut length = || lengths.next().unwrap_or(0);
        let head = ColumnsHead { plain: length(), columns: length(), packed: length() };
        if magic != COLUMNS_MAGIC {
            return Err(invalid("not a frame of columns"));
        }
        let is_possible = head.plain <= MAX_COLUMNS_PLAIN
            && head.columns <= mtrc::most_bytes(head.plain)
            && head.packed <= zstd::zstd_safe::compress_bound(head.columns);
        if is_possible { Ok(head) } else { Err(invalid("a frame of columns with impossible lengths")) }
    }
}

fn invalid(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidData, why)
}

/// Returns how many plain bytes may be allocated at once: a length from a file does not decide that
/// until the compressed bytes make it plausible.
fn likely_length(stored: &[u8]) -> usize {
    stored.len().saturating_mul(256).max(1 << 16)
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

/// Decoder of successive frames of columns.
struct ColumnFrames<R: Read> {
    stored: R,
    unpacker: Unpacker,
    frame: Vec<u8>,
    plain: Vec<u8>,
    /// Number of bytes of `plain` that were read.
    at: usize,
}

impl<R: Read> ColumnFrames<R> {
    fn new(stored: R) -> ColumnFrames<R> {
        ColumnFrames { stored, unpacker: Unpacker::default(), frame: Vec::new(), plain: Vec::new(), at: 0 }
    }

    /// Reads the next frame. Returns false at the end of the source.
    fn next_frame(&mut self) -> std::io::Result<bool> {
        self.at = 0;
        self.plain.clear();
        self.frame.clear();
        self.stored.by_ref().take(COLUMNS_HEAD as u64).read_to_end(&mut self.frame)?;
        if self.frame.is_empty() {
            return Ok(false);
        }
        let head = self.frame.first_chunk().ok_or_else(|| invalid("a frame of columns that is cut"))?;
        let head = ColumnsHead::read(head)?;
        self.stored.by_ref().take(head.packed as u64).read_to_end(&mut self.frame)?;
        self.unpacker.unpack(Codec::Columns, &self.frame, head.plain, &mut self.plain)?;
        Ok(true)
    }
}

impl<R: Read> Read for ColumnFrames<R> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        while self.at == self.plain.len() && self.next_frame()? {}
        let rest = self.plain.get(self.at..).unwrap_or_default();
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        self.at += count;
        Ok(count)
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
        let codecs = [Codec::Zstd, Codec::Lz4, Codec::Columns, Codec::Plain, Codec::Zstd];
        for (codec, level) in codecs.into_iter().zip([1, 0, 5, 0, 1]) {
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

    #[test]
    fn frames_of_columns_are_read_one_after_the_other_and_cut_ones_are_errors() -> std::io::Result<()> {
        let (mut packed, mut stored, mut all) = (Vec::new(), Vec::new(), Vec::new());
        let (mut writer, mut plain) = (mtrc::Writer::new(mtrc::Options::default()), Vec::new());
        for index in 1..300 {
            writer.alloc(
                &mut plain,
                mtrc::Block { index, address: 64 * index, size: index },
                &mtrc::Location::thread(index % 3),
            );
        }
        for input in [&plain[..], b"", b"no record", &plain] {
            Packer::default().pack(Codec::Columns, input, 1, &mut packed)?;
            stored.extend_from_slice(&packed);
            all.extend_from_slice(input);
        }
        let read = |stored: &[u8]| -> std::io::Result<Vec<u8>> {
            let mut plain = Vec::new();
            Codec::Columns.reader(stored)?.read_to_end(&mut plain)?;
            Ok(plain)
        };
        assert!(read(&stored)? == all);
        for length in 0..packed.len() {
            assert!(Codec::Columns.unpack(&packed[..length], plain.len()).is_err(), "{length}");
            assert_eq!(read(&packed[..length]).is_ok(), length == 0, "{length}");
        }
        Ok(())
    }
}

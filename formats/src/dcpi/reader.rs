//! Reads the body. One pass checks the chunks against the rules of the format and adds up the
//! counts. Nothing is copied.
//!
//! The number of chunks is not in the file, and the footer is simply its last eight bytes. So a
//! truncated file is recognized by a chunk that overlaps the footer, and a wrong footer may be the
//! header of a truncated chunk.

use super::header::Header;
use super::layout::{CHUNK_HEADER, DEFAULT_STRIDE, FIELD, FOOTER};
use super::remarks::Remarks;
use crate::{Ending, Error, Format, Kind, Result};

/// A profile, borrowed from the bytes of its file.
#[derive(Clone, Debug)]
pub struct Profile<'a> {
    /// The header of the file.
    pub header: Header<'a>,
    /// Distance of the addresses of two successive counts, in bytes.
    pub stride: u32,
    /// Number of chunks in the body.
    pub chunks: u64,
    /// Number of addresses with at least one sample, computed from the chunks.
    pub total_offsets: u64,
    /// Sum of all counts, computed from the chunks.
    pub total_samples: u64,
    /// Whether the file is complete, including its footer.
    pub ending: Ending,
    /// Violations of the format. Everything that can be read was read.
    pub faults: Remarks,
    /// Unusual content that the format permits or leaves open.
    pub warnings: Remarks,
    body: &'a [u8],
    is_documented: bool,
    /// Length of the complete chunks of the body, in bytes.
    complete_len: usize,
    /// Length of the counts of the last chunk in bytes, if it differs from the number in the chunk.
    rest: Option<usize>,
    reach: Reach,
}

/// The extent of the chunks so far, in bytes from `tstart`.
#[derive(Clone, Copy, Debug, Default)]
struct Reach {
    /// Maximum offset of a chunk.
    start: u64,
    /// Maximum end of a chunk if a count is for one byte, as the format's description has it.
    end_of_bytes: u64,
    /// Maximum end of a chunk with the stride of the file.
    end: u64,
}

/// Reads a file. The stride is that of its header, or four bytes.
///
/// # Errors
/// Returns an error if the header is not valid. Errors of the body are in [`Profile::faults`].
///
/// # Examples
///
/// ```
/// use heaptape_formats::dcpi;
///
/// let bytes = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/dcpi/good/v007-many.dcpi"))?;
/// let profile = dcpi::read(&bytes)?.strict()?;
/// let samples: u64 = profile.samples().map(|(_address, count)| u64::from(count)).sum();
/// assert_eq!(samples, profile.total_samples);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn read(bytes: &[u8]) -> Result<Profile<'_>> {
    read_at(bytes, None)
}

/// Reads a file with a stride in bytes instead of that in its header.
///
/// # Errors
/// Returns an error if the header is not valid. Errors of the body are in [`Profile::faults`].
pub fn read_at(bytes: &[u8], stride: Option<u32>) -> Result<Profile<'_>> {
    let (mut faults, mut warnings) = (Remarks::default(), Remarks::default());
    let header = Header::read(bytes, &mut faults, &mut warnings)?;
    let mut profile = Profile {
        stride: stride.or(header.stride).unwrap_or(DEFAULT_STRIDE).max(1),
        body: &bytes[header.len()..],
        is_documented: header.version.major == Some(0),
        header,
        chunks: 0,
        total_offsets: 0,
        total_samples: 0,
        ending: Ending::Complete,
        faults,
        warnings,
        complete_len: 0,
        rest: None,
        reach: Reach::default(),
    };
    if profile.is_documented {
        profile.scan();
    } else {
        profile.remark_version();
    }
    Ok(profile)
}

impl<'a> Profile<'a> {
    /// Returns whether the layout of the body is documented. This is so for major version 0 only.
    pub const fn is_documented(&self) -> bool {
        self.is_documented
    }

    /// Returns the bytes after the header.
    pub const fn body(&self) -> &'a [u8] {
        self.body
    }

    /// Returns the profile if it has no faults.
    ///
    /// # Errors
    /// Returns the first fault.
    pub fn strict(self) -> Result<Self> {
        let first = self.faults.iter().next().cloned();
        first.map_or(Ok(self), Err)
    }

    /// Returns the chunks in the order of the file.
    pub fn chunks(&self) -> Chunks<'a> {
        let end = self.rest.map_or(self.complete_len, |counts| self.complete_len + CHUNK_HEADER + counts);
        Chunks { body: &self.body[..end], at: 0, base: self.header.len() as u64 }
    }

    /// Returns each address that has samples with their number, in the order of the file.
    pub fn samples(&self) -> impl Iterator<Item = (u64, u32)> + use<'a> {
        let (tstart, stride) = (self.header.tstart, u64::from(self.stride));
        self.chunks().flat_map(move |chunk| {
            chunk.counts().enumerate().filter(|&(_, count)| count != 0).filter_map(move |(index, count)| {
                let address = tstart.checked_add(u64::from(chunk.offset) + stride * index as u64)?;
                Some((address, count))
            })
        })
    }

    fn remark_version(&mut self) {
        let line = self.header.lines().find(|line| line.word() == b"version");
        let offset = line.map_or(0, |line| line.offset);
        let major = self.header.version.major.map_or("of more than 64 bits".into(), |major| major.to_string());
        let text = format!("the body of major version {major} is documented nowhere: only the header can be read");
        self.faults.push(|| Error { format: Format::Dcpi, offset, field: "version", kind: Kind::Text(text) });
    }

    fn scan(&mut self) {
        if !self.body.len().is_multiple_of(FIELD) {
            self.fault(0, "body", Kind::Bad(self.body.len() as u64, "a length that is a multiple of 4 is due"));
        }
        loop {
            let at = self.complete_len;
            let left = self.body.len() - at;
            if left < FOOTER {
                return self.truncated(at, "footer");
            }
            let (offset, number) = (field(self.body, at), field(self.body, at + FIELD));
            if left == FOOTER {
                return self.check_footer(offset, number);
            }
            let counts = (number as usize).saturating_mul(FIELD);
            let size = counts.saturating_add(CHUNK_HEADER);
            if number > 0 && size.saturating_add(FOOTER) <= left {
                self.chunk(offset, counts);
                self.complete_len += size;
            } else if self.is_footer(offset, number) {
                return self.fault(
                    at + FOOTER,
                    "footer",
                    Kind::Bad((left - FOOTER) as u64, "no bytes are due after the footer"),
                );
            } else if number == 0 {
                self.fault(at + FIELD, "number", Kind::Bad(0, "at least one count is due"));
                self.chunks += 1;
                self.complete_len += CHUNK_HEADER;
            } else if let Some(held) = self.counts_before_footer(at) {
                self.fault(at + FIELD, "number", Kind::Bad(number.into(), "the bytes before the footer hold fewer"));
                self.chunk(offset, held);
                self.rest = Some(held);
                return;
            } else if size <= left {
                self.chunk(offset, counts);
                self.complete_len += size;
                return self.truncated(self.complete_len, "footer");
            } else {
                self.fault(at + FIELD, "number", Kind::Bad(number.into(), "the bytes that remain hold fewer counts"));
                let held = (left - CHUNK_HEADER) / FIELD * FIELD;
                self.chunk(offset, held);
                self.rest = Some(held);
                return self.truncated(at + CHUNK_HEADER + held, "count");
            }
        }
    }

    /// Adds a chunk whose counts are the next `size` bytes: checks its order, and updates the
    /// totals.
    fn chunk(&mut self, offset: u32, size: usize) {
        let at = self.complete_len;
        let (start, number) = (u64::from(offset), (size / FIELD) as u64);
        let stride = u64::from(self.stride);
        let end = start + stride * number;
        if self.chunks > 0 && (start <= self.reach.start || start < self.reach.end.max(self.reach.end_of_bytes)) {
            self.remark_overlap(at, start);
        }
        if !start.is_multiple_of(stride) {
            self.warn(at, "offset", Kind::Bad(start, "a multiple of the stride was expected"));
        }
        if end > self.header.tsize {
            self.warn(at, "offset", Kind::Bad(end, "the text (tsize) has fewer bytes"));
        }
        if number > 0 && self.header.tstart.checked_add(end - stride).is_none() {
            self.fault(at, "offset", Kind::Bad(start, "addresses from tstart on pass 64 bits: left out"));
        }
        let Reach { start: greatest, end_of_bytes, end: furthest } = self.reach;
        self.reach = Reach {
            start: greatest.max(start),
            end_of_bytes: end_of_bytes.max(start + number),
            end: furthest.max(end),
        };
        self.chunks += 1;
        let counts = Counts(&self.body[at + CHUNK_HEADER..at + CHUNK_HEADER + size]);
        let (offsets, samples) = counts.totals();
        self.total_offsets += offsets;
        self.total_samples += samples;
    }

    /// Reports a chunk that overlaps an earlier one. If it does so only because of the stride, this
    /// is a warning, because the format's description counts one byte per count.
    fn remark_overlap(&mut self, at: usize, start: u64) {
        let breaks_rule = start <= self.reach.start || start < self.reach.end_of_bytes;
        let kind = Kind::Bad(start, "no chunk may begin before the end of an earlier one");
        if breaks_rule { self.fault(at, "offset", kind) } else { self.warn(at, "offset", kind) }
    }

    fn check_footer(&mut self, total_offsets: u32, total_samples: u32) {
        if u64::from(total_offsets) != self.total_offsets {
            let kind = Kind::Text(format!("{total_offsets} where {} were counted", self.total_offsets));
            self.fault(self.complete_len, "total_offsets", kind);
        }
        if total_samples != low(self.total_samples) {
            let kind = Kind::Text(format!("{total_samples} where {} were counted", self.total_samples));
            self.fault(self.complete_len + FIELD, "total_samples", kind);
        }
    }

    fn is_footer(&self, total_offsets: u32, total_samples: u32) -> bool {
        u64::from(total_offsets) == self.total_offsets && total_samples == low(self.total_samples)
    }

    /// Returns the length of the counts of a chunk with a wrong number, if the last eight bytes of
    /// the file are a footer that confirms it.
    fn counts_before_footer(&self, at: usize) -> Option<usize> {
        let footer = self.body.len() - FOOTER;
        let size = footer.checked_sub(at + CHUNK_HEADER).filter(|size| size.is_multiple_of(FIELD))?;
        let (offsets, samples) = Counts(&self.body[at + CHUNK_HEADER..footer]).totals();
        let confirmed = u64::from(field(self.body, footer)) == self.total_offsets + offsets
            && field(self.body, footer + FIELD) == low(self.total_samples + samples);
        confirmed.then_some(size)
    }

    fn truncated(&mut self, at: usize, field: &'static str) {
        self.fault(at, field, Kind::Truncated);
        self.ending = Ending::Truncated { offset: (self.header.len() + at) as u64, field };
    }

    fn fault(&mut self, at: usize, field: &'static str, kind: Kind) {
        let offset = (self.header.len() + at) as u64;
        self.faults.push(|| Error { format: Format::Dcpi, offset, field, kind });
    }

    fn warn(&mut self, at: usize, field: &'static str, kind: Kind) {
        let offset = (self.header.len() + at) as u64;
        self.warnings.push(|| Error { format: Format::Dcpi, offset, field, kind });
    }
}

/// A chunk: the counts of successive addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk<'a> {
    /// Offset of the chunk in the file.
    pub file_offset: u64,
    /// Distance of the address of the first count from `tstart`, in bytes.
    pub offset: u32,
    /// Number of counts according to the chunk.
    pub number: u32,
    counts: Counts<'a>,
}

impl<'a> Chunk<'a> {
    /// Returns the counts. There are fewer than `number` if the chunk is truncated.
    pub fn counts(&self) -> impl ExactSizeIterator<Item = u32> + use<'a> {
        self.counts.iter()
    }

    /// Returns the number of counts that are not zero, and the sum of all counts.
    pub fn totals(&self) -> (u64, u64) {
        self.counts.totals()
    }
}

/// An iterator over the chunks of a body.
#[derive(Clone, Debug)]
pub struct Chunks<'a> {
    body: &'a [u8],
    at: usize,
    base: u64,
}

impl<'a> Iterator for Chunks<'a> {
    type Item = Chunk<'a>;

    #[inline]
    fn next(&mut self) -> Option<Chunk<'a>> {
        let rest = self.body.get(self.at..).filter(|rest| rest.len() >= CHUNK_HEADER)?;
        let (offset, number) = (field(rest, 0), field(rest, FIELD));
        let counts = &rest[CHUNK_HEADER..];
        let size = (number as usize).saturating_mul(FIELD).min(counts.len());
        let file_offset = self.base + self.at as u64;
        self.at += CHUNK_HEADER + size;
        Some(Chunk { file_offset, offset, number, counts: Counts(&counts[..size]) })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counts<'a>(&'a [u8]);

impl<'a> Counts<'a> {
    #[inline]
    fn iter(self) -> impl ExactSizeIterator<Item = u32> + use<'a> {
        self.0.as_chunks::<FIELD>().0.iter().map(|bytes| u32::from_le_bytes(*bytes))
    }

    /// Returns the number of counts that are not zero, and the sum. This is a plain loop over
    /// arrays of fixed size, which the compiler vectorizes.
    #[inline]
    fn totals(self) -> (u64, u64) {
        self.iter()
            .fold((0, 0), |(offsets, samples), count| (offsets + u64::from(count != 0), samples + u64::from(count)))
    }
}

/// The low half: what a 32-bit footer holds of a sum.
pub(super) const fn low(sum: u64) -> u32 {
    (sum & 0xffff_ffff) as u32
}

#[inline]
fn field(bytes: &[u8], at: usize) -> u32 {
    match bytes.get(at..).and_then(|rest| rest.first_chunk()) {
        Some(bytes) => u32::from_le_bytes(*bytes),
        None => 0,
    }
}

//! The binary half. One pass checks the chunks against the rules and adds up the counts; nothing is
//! copied.
//!
//! A file states neither how many chunks it has nor where the footer begins: it is the last eight
//! bytes. So a truncated file is recognized by a chunk that reaches into the index of the footer,
//! and a footer that is wrong may be the head of a cut chunk.

use super::header::Header;
use super::layout::{CHUNK_HEADER, DEFAULT_STRIDE, FIELD, FOOTER};
use crate::{Ending, Error, Format, Kind, Result};

/// What a reader found wrong or odd: the first 100 in the file's order, so that no file makes this
/// long.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remarks {
    list: Vec<Error>,
    /// How many there were in all.
    pub total: u64,
}

impl Remarks {
    const KEPT: usize = 100;

    /// Counts one, and makes and keeps it if it is among the first.
    pub(super) fn push(&mut self, error: impl FnOnce() -> Error) {
        self.total += 1;
        if self.list.len() < Self::KEPT {
            self.list.push(error());
        }
    }

    /// Those that were kept.
    pub fn iter(&self) -> impl Iterator<Item = &Error> {
        self.list.iter()
    }

    /// Whether there were none.
    pub const fn is_empty(&self) -> bool {
        self.total == 0
    }
}

/// A profile, borrowed from the bytes of its file.
#[derive(Clone, Debug)]
pub struct Profile<'a> {
    /// The text half.
    pub header: Header<'a>,
    /// Bytes between the addresses of two successive counts.
    pub stride: u32,
    /// Chunks that were found.
    pub chunks: u64,
    /// Addresses with at least one sample, counted.
    pub total_offsets: u64,
    /// Sum of all counts.
    pub total_samples: u64,
    /// Whether the footer was there.
    pub ending: Ending,
    /// Rules of the document that the file breaks. What could be read was read.
    pub faults: Remarks,
    /// What the document leaves open, or allows, and a reader may want to know.
    pub warnings: Remarks,
    body: &'a [u8],
    is_documented: bool,
    /// Bytes of the body that are whole chunks.
    whole: usize,
    /// Bytes of the counts of a last chunk that states another number than it holds.
    rest: Option<usize>,
    reach: Reach,
}

/// How far the chunks so far reach, in bytes from `tstart`.
#[derive(Clone, Copy, Debug, Default)]
struct Reach {
    /// The greatest offset.
    start: u64,
    /// The greatest end when a count stands for one byte, as the document's words have it.
    end_of_bytes: u64,
    /// The greatest end with the stride in use.
    end: u64,
}

/// Reads a file; the stride is what its header says, else four bytes.
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

/// Reads a file with this stride, if one is given, instead of its own.
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
        whole: 0,
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
    /// Whether the body could be read: that of major version 0 is documented, no other.
    pub const fn is_documented(&self) -> bool {
        self.is_documented
    }

    /// The bytes behind the header.
    pub const fn body(&self) -> &'a [u8] {
        self.body
    }

    /// The same profile, or the first rule that its file breaks.
    pub fn strict(self) -> Result<Self> {
        let first = self.faults.iter().next().cloned();
        first.map_or(Ok(self), Err)
    }

    /// The chunks in the file's order.
    pub fn chunks(&self) -> Chunks<'a> {
        let end = self.rest.map_or(self.whole, |counts| self.whole + CHUNK_HEADER + counts);
        Chunks { body: &self.body[..end], at: 0, base: self.header.len() as u64 }
    }

    /// Each address that has samples, with their number, in the file's order.
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
            let at = self.whole;
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
                self.whole += size;
            } else if self.is_footer(offset, number) {
                return self.fault(
                    at + FOOTER,
                    "footer",
                    Kind::Bad((left - FOOTER) as u64, "no bytes are due behind the footer"),
                );
            } else if number == 0 {
                self.fault(at + FIELD, "number", Kind::Bad(0, "at least one count is due"));
                self.chunks += 1;
                self.whole += CHUNK_HEADER;
            } else if let Some(held) = self.counts_before_footer(at) {
                self.fault(at + FIELD, "number", Kind::Bad(number.into(), "the bytes before the footer hold fewer"));
                self.chunk(offset, held);
                self.rest = Some(held);
                return;
            } else if size <= left {
                self.chunk(offset, counts);
                self.whole += size;
                return self.truncated(self.whole, "footer");
            } else {
                self.fault(at + FIELD, "number", Kind::Bad(number.into(), "the bytes that remain hold fewer counts"));
                let held = (left - CHUNK_HEADER) / FIELD * FIELD;
                self.chunk(offset, held);
                self.rest = Some(held);
                return self.truncated(at + CHUNK_HEADER + held, "count");
            }
        }
    }

    /// Takes a chunk whose counts are the next `size` bytes: the rules of order, and the totals.
    fn chunk(&mut self, offset: u32, size: usize) {
        let at = self.whole;
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

    /// Chunks that only overlap because of the stride break no rule: the document's own words count
    /// one byte a count.
    fn remark_overlap(&mut self, at: usize, start: u64) {
        let breaks_rule = start <= self.reach.start || start < self.reach.end_of_bytes;
        let kind = Kind::Bad(start, "no chunk may begin before the end of an earlier one");
        if breaks_rule { self.fault(at, "offset", kind) } else { self.warn(at, "offset", kind) }
    }

    fn check_footer(&mut self, total_offsets: u32, total_samples: u32) {
        if u64::from(total_offsets) != self.total_offsets {
            let kind = Kind::Text(format!("{total_offsets} where {} were counted", self.total_offsets));
            self.fault(self.whole, "total_offsets", kind);
        }
        if total_samples != low(self.total_samples) {
            let kind = Kind::Text(format!("{total_samples} where {} were counted", self.total_samples));
            self.fault(self.whole + FIELD, "total_samples", kind);
        }
    }

    fn is_footer(&self, total_offsets: u32, total_samples: u32) -> bool {
        u64::from(total_offsets) == self.total_offsets && total_samples == low(self.total_samples)
    }

    /// For a chunk whose number is wrong: the bytes of its counts, when the file's last eight bytes
    /// are a footer that confirms them.
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

/// The counts of successive addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk<'a> {
    /// Bytes from the start of the file to the chunk.
    pub file_offset: u64,
    /// Bytes from `tstart` to the address of the first count.
    pub offset: u32,
    /// How many counts the chunk states.
    pub number: u32,
    counts: Counts<'a>,
}

impl<'a> Chunk<'a> {
    /// The counts that the file holds: `number` of them, unless the chunk is cut.
    pub fn counts(&self) -> impl ExactSizeIterator<Item = u32> + use<'a> {
        self.counts.iter()
    }

    /// How many of its counts are not zero, and their sum.
    pub fn totals(&self) -> (u64, u64) {
        self.counts.totals()
    }
}

/// Gives the chunks of a body that was checked.
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

    /// Not zero, and sum. A plain loop over fixed-size pieces, which the compiler turns into vector
    /// instructions.
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

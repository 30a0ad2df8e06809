//! A file from addresses and 64-bit counts: the period that makes them fit, the chunks, the footer.

use super::header::Header;
use super::layout::{DEFAULT_STRIDE, MAX_STRIDE, STRIDE_KEY, VERSION, is_space};
use super::lines::Lines;
use super::time::Epoch;
use super::writer::{Body, write_header};
use crate::{Error, Format, Kind, Result};

/// Zeros between two counts up to which one chunk is smaller than two: a chunk's head is as long as
/// two counts.
const JOINED_ZEROS: u64 = 2;

/// What the header of a new file says.
#[derive(Clone, Debug, Default)]
pub struct HeaderFields<'a> {
    /// Identity of the image, hexadecimal digits: the build-id.
    pub image: &'a str,
    /// When the profile was taken, seconds after 1970-01-01 00:00 UTC.
    pub unix_seconds: u64,
    /// The machine's name.
    pub platform: &'a str,
    /// What was counted.
    pub event: &'a str,
    /// Address of the first byte of the image's text.
    pub tstart: u64,
    /// Bytes of the text.
    pub tsize: u64,
    /// Megahertz; 0 if not known.
    pub cpuspeed: u64,
    /// Processors.
    pub cpucount: Option<u64>,
    /// Where the image lies.
    pub path: Option<&'a str>,
    /// Further lines, word and value: readers that do not know them keep them.
    pub further: &'a [(&'a str, &'a str)],
}

/// A file in the making.
///
/// # Examples
///
/// ```
/// use heaptape_formats::dcpi::{self, Builder, HeaderFields};
///
/// let mut builder = Builder::new(&HeaderFields {
///     image: "b1d0cafe",
///     event: "live-bytes",
///     platform: "host",
///     tstart: 0x40_0000,
///     tsize: 4096,
///     ..HeaderFields::default()
/// })?;
/// builder.add(0x40_0010, 500);
/// builder.add(0x40_0010, 250);
/// let built = builder.finish()?;
/// let profile = dcpi::read(&built.bytes)?;
/// assert_eq!(profile.samples().collect::<Vec<_>>(), [(0x40_0010, 750)]);
/// # Ok::<(), heaptape_formats::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Builder {
    lines: Lines,
    tstart: u64,
    stride: u32,
    keeps_period: bool,
    counts: Vec<(u64, u64)>,
}

/// A file, and what its 32-bit counts could not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Built {
    /// The file.
    pub bytes: Vec<u8>,
    /// Events a sample: 1 when every count, and their sum, fits in 32 bits.
    pub period: u64,
    /// Sum of the counts that were given.
    pub exact: u128,
    /// Sum of the counts in the file; times the period it is near `exact`.
    pub samples: u64,
    /// Addresses whose count is not zero and was rounded to zero.
    pub vanished: u64,
    /// Addresses whose count was lowered to 2^32 - 1 because the period was to be kept.
    pub saturated: u64,
}

impl Builder {
    /// Begins a file of ours: stride 1, the period to be chosen.
    pub fn new(head: &HeaderFields<'_>) -> Result<Builder> {
        let mut lines = Lines::default();
        if head.image.is_empty() || !head.image.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(refuse("image", Kind::Text(format!("{:?} is not hexadecimal digits", head.image))));
        }
        lines.set("version", VERSION.as_bytes());
        lines.set("image", head.image.as_bytes());
        lines.set("epoch", Epoch::from_unix(head.unix_seconds).digits().as_bytes());
        lines.set("platform", text("platform", head.platform)?);
        lines.set("event", text("event", head.event)?);
        lines.set("tstart", format!("{:x}", head.tstart).as_bytes());
        lines.set("tsize", head.tsize.to_string().as_bytes());
        lines.set("cpuspeed", head.cpuspeed.to_string().as_bytes());
        if let Some(count) = head.cpucount {
            lines.set("cpucount", count.to_string().as_bytes());
        }
        if let Some(path) = head.path {
            lines.set("path", text("path", path)?);
        }
        for (word, value) in head.further {
            if word.is_empty() || word.bytes().any(|byte| is_space(byte) || byte == b'\n') {
                return Err(refuse("line", Kind::Text(format!("{word:?} is not one word"))));
            }
            lines.set(word, text("line", value)?);
        }
        Ok(Builder { lines, tstart: head.tstart, stride: 1, keeps_period: false, counts: Vec::new() })
    }

    /// Begins a file with the lines of another, unknown ones included, and its period: what
    /// [`Builder::add`] is given are samples then.
    pub fn like(header: &Header<'_>) -> Builder {
        Builder {
            lines: Lines::of(header.lines()),
            tstart: header.tstart,
            stride: header.stride.unwrap_or(DEFAULT_STRIDE),
            keeps_period: true,
            counts: Vec::new(),
        }
    }

    /// The header's lines, for changing.
    pub fn lines(&mut self) -> &mut Lines {
        &mut self.lines
    }

    /// Bytes between successive counts. An address between two of them is counted at the lower.
    pub fn stride(mut self, stride: u32) -> Builder {
        self.stride = stride.clamp(1, MAX_STRIDE);
        self
    }

    /// Adds to the count of an address; in any order, any number of times.
    pub fn add(&mut self, address: u64, count: u64) {
        self.counts.push((address, count));
    }

    /// Makes the file.
    pub fn finish(mut self) -> Result<Built> {
        let counts = self.merged()?;
        let exact: u128 = counts.iter().map(|&(_, count)| u128::from(count)).sum();
        let period = if self.keeps_period { 1 } else { fitting_period(&counts, exact) };
        if !self.keeps_period {
            self.lines.set("period", period.to_string().as_bytes());
        }
        if self.stride != DEFAULT_STRIDE || self.lines.get(STRIDE_KEY).is_some() {
            self.lines.set(STRIDE_KEY, self.stride.to_string().as_bytes());
        }
        let mut built = Built { bytes: Vec::new(), period, exact, samples: 0, vanished: 0, saturated: 0 };
        write_header(&mut built.bytes, &self.lines);
        let scaled: Vec<(u32, u32)> = counts.iter().map(|&(offset, count)| (offset, built.scale(count))).collect();
        built.chunks(&scaled, self.stride);
        Ok(built)
    }

    /// The counts by offset, each offset once, rising.
    fn merged(&mut self) -> Result<Vec<(u32, u64)>> {
        let stride = u64::from(self.stride);
        self.counts.sort_unstable_by_key(|&(address, _)| address);
        let mut merged: Vec<(u32, u64)> = Vec::with_capacity(self.counts.len());
        for &(address, count) in self.counts.iter().filter(|&&(_, count)| count != 0) {
            let offset = address.checked_sub(self.tstart).map(|offset| offset / stride * stride);
            let Some(offset) = offset.and_then(|offset| u32::try_from(offset).ok()) else {
                return Err(refuse(
                    "offset",
                    Kind::Bad(address, "an address from tstart on, less than 4 GiB away, is due"),
                ));
            };
            match merged.last_mut() {
                Some((last, sum)) if *last == offset => *sum = sum.saturating_add(count),
                _ => merged.push((offset, count)),
            }
        }
        Ok(merged)
    }
}

impl Built {
    /// Divides by the period, to the nearest.
    fn scale(&mut self, count: u64) -> u32 {
        let scaled = count / self.period + u64::from(count % self.period >= self.period.div_ceil(2));
        self.vanished += u64::from(scaled == 0);
        let fitting = u32::try_from(scaled);
        self.saturated += u64::from(fitting.is_err());
        let fitting = fitting.unwrap_or(u32::MAX);
        self.samples += u64::from(fitting);
        fitting
    }

    fn chunks(&mut self, counts: &[(u32, u32)], stride: u32) {
        let mut body = Body::default();
        let mut values = Vec::new();
        let room = (JOINED_ZEROS + 1) * u64::from(stride);
        let joined = |a: &(u32, u32), b: &(u32, u32)| u64::from(b.0 - a.0) <= room;
        let kept: Vec<(u32, u32)> = counts.iter().copied().filter(|&(_, count)| count != 0).collect();
        for run in kept.chunk_by(joined) {
            let start = run[0].0;
            values.clear();
            for &(offset, count) in run {
                values.resize(((offset - start) / stride) as usize, 0);
                values.push(count);
            }
            body.chunk(&mut self.bytes, start, values.iter().copied());
        }
        body.footer(&mut self.bytes);
    }
}

/// The least period with which each count and their sum, rounded, fit in 32 bits; the sum, too, so
/// that readers need not know that the footer wraps around.
fn fitting_period(counts: &[(u32, u64)], exact: u128) -> u64 {
    let limit = u128::from(u32::MAX);
    // Rounding to the nearest adds at most half a sample for each count.
    let spare = limit.saturating_sub(counts.len() as u128 / 2).max(1);
    if exact <= limit {
        return 1;
    }
    u64::try_from(exact.div_ceil(spare)).unwrap_or(u64::MAX)
}

/// A value that a header line can hold: not empty, not beginning with a blank, on one line.
fn text<'v>(field: &'static str, value: &'v str) -> Result<&'v [u8]> {
    let bytes = value.as_bytes();
    if bytes.first().is_none_or(|&first| is_space(first)) || bytes.contains(&b'\n') {
        return Err(refuse(field, Kind::Text(format!("{value:?} cannot stand in a header line"))));
    }
    Ok(bytes)
}

fn refuse(field: &'static str, kind: Kind) -> Error {
    Error { format: Format::Dcpi, offset: 0, field, kind }
}

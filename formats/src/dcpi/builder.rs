//! Builds a file from addresses and 64-bit counts. Chooses a period with which the counts fit into
//! 32 bits.

use super::Epoch;
use super::header::Header;
use super::layout::{DEFAULT_STRIDE, MAX_STRIDE, STRIDE_KEY, VERSION, is_space};
use super::lines::Lines;
use super::writer::{Body, write_header};
use crate::{Error, Format, Kind, Result};

/// Maximum number of zeros between two counts of a chunk. With more, two chunks are shorter,
/// because the header of a chunk is as long as two counts.
const JOINED_ZEROS: u64 = 2;

/// The header fields of a new file.
#[derive(Clone, Debug, Default)]
pub struct HeaderFields<'a> {
    /// The build-id of the program or library, as hexadecimal digits.
    pub image: &'a str,
    /// Time of the profile, in seconds after 1970-01-01 00:00 UTC.
    pub unix_seconds: u64,
    /// Name of the machine.
    pub platform: &'a str,
    /// Name of the counted event.
    pub event: &'a str,
    /// Address of the first byte of the text section.
    pub tstart: u64,
    /// Length of the text section in bytes.
    pub tsize: u64,
    /// Clock rate of the CPU in MHz, or 0 if it is unknown.
    pub cpuspeed: u64,
    /// Number of CPUs of the machine.
    pub cpucount: Option<u64>,
    /// Path of the program or library.
    pub path: Option<&'a str>,
    /// Additional lines as word and value. Readers that do not know them keep them.
    pub further: &'a [(&'a str, &'a str)],
}

/// Builds a profile from addresses and counts.
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

/// A complete file, with the loss of precision by its 32-bit counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Built {
    /// The bytes of the file.
    pub bytes: Vec<u8>,
    /// Number of events per sample. It is 1 if each count and their sum fit into 32 bits.
    pub period: u64,
    /// Sum of the counts that were added.
    pub exact: u128,
    /// Sum of the counts in the file. Multiplied by the period it is near `exact`.
    pub samples: u64,
    /// Number of addresses whose count was rounded to zero.
    pub vanished: u64,
    /// Number of addresses whose count was reduced to 2^32 - 1, because the period is fixed.
    pub saturated: u64,
}

impl Builder {
    /// Creates a builder with stride 1 that chooses the period.
    ///
    /// # Errors
    /// Returns an error if `image` is not hexadecimal digits, or if a value cannot be in a header
    /// line: it is empty, begins with a blank, or contains a newline.
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

    /// Creates a builder with all lines of another file, including its period. [`Builder::add`]
    /// adds samples then.
    pub fn like(header: &Header<'_>) -> Builder {
        Builder {
            lines: Lines::of(header.lines()),
            tstart: header.tstart,
            stride: header.stride.unwrap_or(DEFAULT_STRIDE),
            keeps_period: true,
            counts: Vec::new(),
        }
    }

    /// Returns the lines of the header, to change them.
    pub fn lines(&mut self) -> &mut Lines {
        &mut self.lines
    }

    /// Sets the stride in bytes. An address between two multiples counts for the lower one.
    pub fn stride(mut self, stride: u32) -> Builder {
        self.stride = stride.clamp(1, MAX_STRIDE);
        self
    }

    /// Adds to the count of an address. Addresses may be added in any order and repeatedly.
    pub fn add(&mut self, address: u64, count: u64) {
        self.counts.push((address, count));
    }

    /// Returns the complete file.
    ///
    /// # Errors
    /// Returns an error if an address is below `tstart`, or 4 GiB or more above it.
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

    /// Returns the sum of counts of each offset, in ascending order of offsets.
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
    /// Divides a count by the period and rounds to the nearest.
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
        let max_distance = (JOINED_ZEROS + 1) * u64::from(stride);
        let joined = |a: &(u32, u32), b: &(u32, u32)| u64::from(b.0 - a.0) <= max_distance;
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

/// Returns the smallest period with which each count and their sum, rounded, fit into 32 bits. The
/// sum is included so that the footer does not wrap around.
fn fitting_period(counts: &[(u32, u64)], exact: u128) -> u64 {
    let limit = u128::from(u32::MAX);
    // Rounding to the nearest adds at most half a sample for each count.
    let spare = limit.saturating_sub(counts.len() as u128 / 2).max(1);
    if exact <= limit {
        return 1;
    }
    u64::try_from(exact.div_ceil(spare)).unwrap_or(u64::MAX)
}

/// Checks that a value can be in a header line: it is not empty, does not begin with a blank, and
/// has no newline.
fn text<'v>(field: &'static str, value: &'v str) -> Result<&'v [u8]> {
    let bytes = value.as_bytes();
    if bytes.first().is_none_or(|&first| is_space(first)) || bytes.contains(&b'\n') {
        return Err(refuse(field, Kind::Text(format!("{value:?} cannot be in a header line"))));
    }
    Ok(bytes)
}

fn refuse(field: &'static str, kind: Kind) -> Error {
    Error { format: Format::Dcpi, offset: 0, field, kind }
}

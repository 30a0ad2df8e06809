//! Writes header and body of a file.

use super::layout::{ALIGNMENT, FOOTER, TERMINATOR};
use super::lines::Lines;
use super::reader::{Profile, low};

/// Writes a profile that was read. Header lines, their blanks and order, and chunks are preserved.
/// The footer is computed from the chunks. So a file without faults is reproduced byte for byte,
/// and a wrong number or footer is corrected.
pub fn write(profile: &Profile<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(profile.header.len() + profile.body().len() + FOOTER);
    for line in profile.header.lines() {
        out.extend_from_slice(line.raw);
        out.push(b'\n');
    }
    if !profile.is_documented() {
        out.extend_from_slice(profile.body());
        return out;
    }
    let mut body = Body::default();
    for chunk in profile.chunks() {
        body.chunk(&mut out, chunk.offset, chunk.counts());
    }
    body.footer(&mut out);
    out
}

/// Writes header lines and the terminator, padded so that the body is aligned.
pub(super) fn write_header(out: &mut Vec<u8>, lines: &Lines) {
    let start = out.len();
    for line in lines.iter() {
        out.extend_from_slice(line);
        out.push(b'\n');
    }
    out.extend_from_slice(TERMINATOR);
    let length = out.len() - start + 1;
    out.resize(out.len() + length.next_multiple_of(ALIGNMENT) - length, b' ');
    out.push(b'\n');
}

/// The totals of the chunks written so far.
#[derive(Debug, Default)]
pub(super) struct Body {
    total_offsets: u64,
    total_samples: u64,
}

impl Body {
    /// Writes a chunk. A chunk without counts is skipped, because the format forbids it.
    pub(super) fn chunk(&mut self, out: &mut Vec<u8>, offset: u32, counts: impl ExactSizeIterator<Item = u32>) {
        if counts.len() == 0 {
            return;
        }
        out.extend_from_slice(&offset.to_le_bytes());
        out.extend_from_slice(&low(counts.len() as u64).to_le_bytes());
        for count in counts {
            self.total_offsets += u64::from(count != 0);
            self.total_samples += u64::from(count);
            out.extend_from_slice(&count.to_le_bytes());
        }
    }

    /// Writes the footer: both totals modulo 2^32, because its fields have 32 bits.
    pub(super) fn footer(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&low(self.total_offsets).to_le_bytes());
        out.extend_from_slice(&low(self.total_samples).to_le_bytes());
    }
}

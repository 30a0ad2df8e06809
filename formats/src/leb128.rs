//! Encoding and decoding of unsigned LEB128: seven bits in each byte, lowest first, and the top bit
//! set in all bytes but the last.

/// Maximum number of bytes of a 64-bit value. Longer encodings are refused.
pub const MAX_BYTES: usize = 10;

/// Reason why [`read`] returned no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// The bytes end inside the number.
    Truncated,
    /// More than ten bytes, or more than 64 bits.
    TooLong,
}

/// Reads one number from the start of `bytes`. Returns it with the number of its bytes. Overlong
/// encodings (`81 80 00`) are read, as mpatrol's tools read them; the MTRC writer pads with them.
///
/// # Examples
///
/// ```
/// use heaptape_formats::leb128::{self, DecodeError};
///
/// let mut bytes = Vec::new();
/// leb128::write(&mut bytes, 300);
/// assert_eq!(bytes, [0xac, 0x02]);
/// assert_eq!(leb128::read(&bytes), Ok((300, 2)));
/// assert_eq!(leb128::read(&bytes[..1]), Err(DecodeError::Truncated));
/// ```
///
/// # Errors
///
/// [`DecodeError::Truncated`] if the bytes end inside the number, [`DecodeError::TooLong`] if it
/// has more than ten bytes or 64 bits.
#[inline]
pub fn read(bytes: &[u8]) -> Result<(u64, usize), DecodeError> {
    match bytes.first() {
        Some(&byte) if byte < 0x80 => return Ok((u64::from(byte), 1)),
        _ => {}
    }
    let mut value = 0u64;
    for (index, &byte) in bytes.iter().take(MAX_BYTES).enumerate() {
        let bits = u64::from(byte & 0x7f);
        if index == 9 && bits > 1 {
            return Err(DecodeError::TooLong);
        }
        value |= bits << (7 * index);
        if byte < 0x80 {
            return Ok((value, index + 1));
        }
    }
    Err(if bytes.len() < MAX_BYTES { DecodeError::Truncated } else { DecodeError::TooLong })
}

/// Decodes the number at the start of eight bytes (the first is the lowest). Returns it with the
/// number of its bytes, or `None` if it is longer than eight bytes. The function checks no length
/// and handles no byte alone.
#[inline(always)]
pub const fn read_word(word: u64) -> Option<(u64, usize)> {
    let ends = !word & 0x8080_8080_8080_8080;
    if ends == 0 {
        return None;
    }
    let len = (ends.trailing_zeros() as usize >> 3) + 1;
    // Keep the bits up to the end of the number, without continuation bits. Then join the 7-bit
    // groups in three steps.
    let word = word & (ends ^ (ends - 1)) & 0x7f7f_7f7f_7f7f_7f7f;
    let word = (word & 0x7f00_7f00_7f00_7f00) >> 1 | (word & 0x007f_007f_007f_007f);
    let word = (word & 0x3fff_0000_3fff_0000) >> 2 | (word & 0x0000_3fff_0000_3fff);
    Some(((word & 0x0fff_ffff_0000_0000) >> 4 | (word & 0x0fff_ffff), len))
}

/// Appends `value` in its shortest encoding.
#[inline]
pub fn write(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends `value` in `width` bytes, or in as many as it needs.
pub(crate) fn write_padded(out: &mut Vec<u8>, value: u64, width: usize) {
    let size = len(value);
    write(out, value);
    if width > size
        && let Some(last) = out.last_mut()
    {
        *last |= 0x80;
        out.resize(out.len() + width - size - 1, 0x80);
        out.push(0);
    }
}

/// Encodes a number below 2^28. Returns four bytes (the first is the lowest) and how many of them
/// count.
#[inline(always)]
pub const fn short_word(value: u32) -> (u32, usize) {
    let (size, mask) = SHORT[(value | 1).ilog2() as usize & 31];
    (spread(value) | mask, size as usize)
}

/// Size and top bits of a number below 2^28, by its binary logarithm.
const SHORT: [(u32, u32); 32] = {
    let mut short = [(4, 0x0080_8080); 32];
    let mut log = 0;
    while log < 28 {
        let size = log as u32 / 7 + 1;
        short[log] = (size, 0x0080_8080 & ((1 << (8 * (size - 1))) - 1));
        log += 1;
    }
    short
};

/// Moves the 14-bit halves of a number below 2^28 apart, then the 7-bit quarters.
#[inline(always)]
const fn spread(value: u32) -> u32 {
    let word = (value & 0x0000_3fff) | (value & 0x0fff_c000) << 2;
    (word & 0x007f_007f) | (word & 0x3f80_3f80) << 1
}

/// Spreads a number below 2^28, and sets the top bit of all but the last of its `size` bytes.
#[inline(always)]
const fn join(value: u32, size: usize) -> u32 {
    spread(value) | (0x0080_8080 & ((1 << (8 * (size - 1))) - 1))
}

/// Length of the buffer of [`write_short`]: 64 offsets and one store of eight bytes.
pub(crate) const BUFFER_LEN: usize = 72;

/// Writes a number below 2^56 to `buffer` at the offset `at`, which is below 64, as four or eight
/// bytes. Advances `at` by the bytes that count. This is the measured writer of traces.
#[inline(always)]
pub(crate) fn write_short(buffer: &mut [u8; BUFFER_LEN], at: &mut usize, value: u64) {
    let from = *at & 63;
    let size = short_len(value);
    // As [`join`] does it, after the 28-bit halves are moved apart.
    if value < 1 << 28 {
        buffer[from..from + 4].copy_from_slice(&join(value as u32, size).to_le_bytes());
    } else {
        let word = (value & 0x0fff_ffff) | (value & 0x00ff_ffff_f000_0000) << 4;
        let word = (word & 0x0000_3fff_0000_3fff) | (word & 0x0fff_c000_0fff_c000) << 2;
        let word = (word & 0x007f_007f_007f_007f) | (word & 0x3f80_3f80_3f80_3f80) << 1;
        let word = word | (0x8080_8080_8080_8080 & ((1 << (8 * (size - 1))) - 1));
        buffer[from..from + 8].copy_from_slice(&word.to_le_bytes());
    }
    *at = from + size;
}

/// Returns the length of a number below 2^56.
#[inline(always)]
pub(crate) const fn short_len(value: u64) -> usize {
    SIZES[(value | 1).ilog2() as usize & 63] as usize
}

/// Length of a number by its binary logarithm. A load is cheaper than a division by 7.
const SIZES: [u8; 64] = {
    let mut sizes = [1; 64];
    let mut log = 0;
    while log < 64 {
        sizes[log] = (log / 7 + 1) as u8;
        log += 1;
    }
    sizes
};

/// Returns the number of bytes that [`write()`] appends for `value`.
pub const fn len(value: u64) -> usize {
    let bits = 64 - value.leading_zeros() as usize;
    if bits == 0 { 1 } else { bits.div_ceil(7) }
}

/// Maps small negative numbers to small unsigned ones: 0, -1, 1, -2, …
#[inline]
pub const fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// Returns the number that [`zigzag`] maps to `value`.
#[inline]
pub const fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns values of each length and the values next to them.
    fn edges() -> impl Iterator<Item = u64> {
        (0..64).flat_map(|shift| [(1 << shift) - 1, 1 << shift, u64::MAX >> shift])
    }

    #[test]
    fn encoded_values_decode_to_themselves() {
        for value in edges() {
            let mut out = Vec::new();
            write(&mut out, value);
            assert_eq!(out.len(), len(value));
            assert_eq!(read(&out), Ok((value, out.len())));
            assert_eq!(read(&out[..out.len() - 1]), Err(DecodeError::Truncated));
            assert_eq!(unzigzag(zigzag(value as i64)), value as i64);
        }
    }

    #[test]
    fn write_short_equals_write() {
        for value in edges().filter(|value| *value < 1 << 56) {
            for start in [0, 63] {
                let (mut buffer, mut at, mut out) = ([0xff; BUFFER_LEN], start, Vec::new());
                write_short(&mut buffer, &mut at, value);
                write(&mut out, value);
                assert_eq!(buffer[start..at], out);
            }
        }
    }

    #[test]
    fn padded_values_have_the_requested_length() {
        for value in edges() {
            for width in 0..=MAX_BYTES {
                let mut out = Vec::new();
                write_padded(&mut out, value, width);
                assert_eq!(out.len(), width.max(len(value)));
                assert_eq!(read(&out), Ok((value, out.len())));
            }
        }
    }

    #[test]
    fn read_word_equals_read() {
        for value in edges() {
            let mut out = Vec::new();
            write(&mut out, value);
            let size = out.len();
            out.resize(16, 0xff);
            let word = out.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes));
            assert_eq!(word.and_then(read_word), (size <= 8).then_some((value, size)));
        }
        assert_eq!(read_word(0x7f00_8081), Some((1, 3)));
    }

    #[test]
    fn overlong_is_read_and_too_long_is_refused() {
        assert_eq!(read(&[0x81, 0x80, 0x00, 7]), Ok((1, 3)));
        assert_eq!(read(&[0x80; 9]), Err(DecodeError::Truncated));
        assert_eq!(read(&[0x80; 11]), Err(DecodeError::TooLong));
        assert_eq!(read(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02]), Err(DecodeError::TooLong));
    }
}

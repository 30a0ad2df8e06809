//! Unsigned LEB128, both directions: seven bits a byte, lowest first, the top bit set on all but the last byte.

/// The most bytes that a 64-bit value takes; longer forms are refused.
pub const MAX_BYTES: usize = 10;

/// Why no number could be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The bytes end inside the number.
    Cut,
    /// More than ten bytes, or more than 64 bits.
    TooLong,
}

/// Reads one number from the start of `bytes`; gives it with the bytes that it took.
/// Overlong forms (`81 80 00`) are read, as mpatrol's tools read them; our own writer pads with them.
#[inline]
pub fn read(bytes: &[u8]) -> Result<(u64, usize), Failure> {
    match bytes.first() {
        Some(&byte) if byte < 0x80 => return Ok((u64::from(byte), 1)),
        _ => {}
    }
    let mut value = 0u64;
    for (place, &byte) in bytes.iter().take(MAX_BYTES).enumerate() {
        let bits = u64::from(byte & 0x7f);
        if place == 9 && bits > 1 {
            return Err(Failure::TooLong);
        }
        value |= bits << (7 * place);
        if byte < 0x80 {
            return Ok((value, place + 1));
        }
    }
    Err(if bytes.len() < MAX_BYTES { Failure::Cut } else { Failure::TooLong })
}

/// The number at the start of eight bytes (the first is the lowest), and the bytes that it takes; none when it is longer.
/// No length is looked at and no byte by itself.
#[inline(always)]
pub const fn near(word: u64) -> Option<(u64, usize)> {
    let ends = !word & 0x8080_8080_8080_8080;
    if ends == 0 {
        return None;
    }
    let taken = (ends.trailing_zeros() as usize >> 3) + 1;
    // All bits up to the end of the number, without its continuation bits; then 7-bit groups close up in three steps.
    let word = word & (ends ^ (ends - 1)) & 0x7f7f_7f7f_7f7f_7f7f;
    let word = (word & 0x7f00_7f00_7f00_7f00) >> 1 | (word & 0x007f_007f_007f_007f);
    let word = (word & 0x3fff_0000_3fff_0000) >> 2 | (word & 0x0000_3fff_0000_3fff);
    Some(((word & 0x0fff_ffff_0000_0000) >> 4 | (word & 0x0fff_ffff), taken))
}

/// Appends `value` in its shortest form.
#[inline]
pub fn write(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// The bytes that [`write()`] appends for `value`.
pub const fn len(value: u64) -> usize {
    let bits = 64 - value.leading_zeros() as usize;
    if bits == 0 { 1 } else { bits.div_ceil(7) }
}

/// Maps small negative numbers to small unsigned ones: 0, -1, 1, -2, …
#[inline]
pub const fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// The inverse of [`zigzag`].
#[inline]
pub const fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of each length, and their neighbours.
    fn edges() -> impl Iterator<Item = u64> {
        (0..64).flat_map(|shift| [(1 << shift) - 1, 1 << shift, u64::MAX >> shift])
    }

    #[test]
    fn shortest_forms_come_back() {
        for value in edges() {
            let mut out = Vec::new();
            write(&mut out, value);
            assert_eq!(out.len(), len(value));
            assert_eq!(read(&out), Ok((value, out.len())));
            assert_eq!(read(&out[..out.len() - 1]), Err(Failure::Cut));
            assert_eq!(unzigzag(zigzag(value as i64)), value as i64);
        }
    }

    #[test]
    fn near_reads_the_same() {
        for value in edges() {
            let mut out = Vec::new();
            write(&mut out, value);
            let size = out.len();
            out.resize(16, 0xff);
            let word = out.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes));
            assert_eq!(word.and_then(near), (size <= 8).then_some((value, size)));
        }
        assert_eq!(near(0x7f00_8081), Some((1, 3)));
    }

    #[test]
    fn overlong_is_read_and_too_long_is_refused() {
        assert_eq!(read(&[0x81, 0x80, 0x00, 7]), Ok((1, 3)));
        assert_eq!(read(&[0x80; 9]), Err(Failure::Cut));
        assert_eq!(read(&[0x80; 11]), Err(Failure::TooLong));
        assert_eq!(read(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02]), Err(Failure::TooLong));
    }
}

//! Byte order and word size of a foreign file: the native words of the machine that wrote it.

/// One of the four forms in which a native word can lie in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flavour {
    /// Most significant byte first.
    pub big_endian: bool,
    /// Bytes of a native word: 4 or 8.
    pub word: u8,
}

impl Flavour {
    /// 64-bit little-endian, what heaptape writes.
    pub const LE64: Flavour = Flavour { big_endian: false, word: 8 };
    /// 32-bit little-endian.
    pub const LE32: Flavour = Flavour { big_endian: false, word: 4 };
    /// 64-bit big-endian.
    pub const BE64: Flavour = Flavour { big_endian: true, word: 8 };
    /// 32-bit big-endian.
    pub const BE32: Flavour = Flavour { big_endian: true, word: 4 };
    /// All four.
    pub const ALL: [Flavour; 4] = [Flavour::LE64, Flavour::LE32, Flavour::BE64, Flavour::BE32];

    /// `LE64`, `LE32`, `BE64` or `BE32`.
    pub const fn name(self) -> &'static str {
        match (self.big_endian, self.word) {
            (false, 8) => "LE64",
            (false, _) => "LE32",
            (true, 8) => "BE64",
            (true, _) => "BE32",
        }
    }

    /// Tells the flavour by a native word 1 at the start of `bytes` and the nonzero native word behind it; `None` when no
    /// flavour explains the bytes (or there are too few).
    ///
    /// `01 00 00 00` is LE64 when four zero bytes follow, else LE32: the word behind it is nonzero and small.
    pub fn detect(bytes: &[u8]) -> Option<Flavour> {
        match *bytes.first_chunk::<8>()? {
            [1, 0, 0, 0, 0, 0, 0, 0] => Some(Flavour::LE64),
            [1, 0, 0, 0, ..] => Some(Flavour::LE32),
            [0, 0, 0, 0, 0, 0, 0, 1] => Some(Flavour::BE64),
            [0, 0, 0, 1, ..] => Some(Flavour::BE32),
            _ => None,
        }
    }

    /// Reads an unsigned number of up to 8 bytes in this byte order.
    pub fn number(self, bytes: &[u8]) -> u64 {
        let step = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
        if self.big_endian { bytes.iter().fold(0, step) } else { bytes.iter().rev().fold(0, step) }
    }

    /// Appends `value` as a number of `size` bytes (at most 8); higher bits are dropped.
    pub fn put(self, out: &mut Vec<u8>, value: u64, size: usize) {
        let bytes = value.to_le_bytes();
        let low = &bytes[..size.min(8)];
        if self.big_endian { out.extend(low.iter().rev()) } else { out.extend_from_slice(low) }
    }

    /// Appends `value` as a native word.
    pub fn put_word(self, out: &mut Vec<u8>, value: u64) {
        self.put(out, value, usize::from(self.word));
    }
}

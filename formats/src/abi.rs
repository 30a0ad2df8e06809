//! Byte order and word size of a file that another machine wrote.

/// Byte order and word size of the machine that wrote a file: one of four combinations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Abi {
    /// Whether the most significant byte comes first.
    pub big_endian: bool,
    /// Size of a machine word in bytes: 4 or 8.
    pub word_size: u8,
}

impl Abi {
    /// 64-bit little-endian, which heaptape writes.
    pub const LE64: Abi = Abi { big_endian: false, word_size: 8 };
    /// 32-bit little-endian.
    pub const LE32: Abi = Abi { big_endian: false, word_size: 4 };
    /// 64-bit big-endian.
    pub const BE64: Abi = Abi { big_endian: true, word_size: 8 };
    /// 32-bit big-endian.
    pub const BE32: Abi = Abi { big_endian: true, word_size: 4 };
    /// All four combinations.
    pub const ALL: [Abi; 4] = [Abi::LE64, Abi::LE32, Abi::BE64, Abi::BE32];

    /// Returns the name: `LE64`, `LE32`, `BE64` or `BE32`.
    pub const fn name(self) -> &'static str {
        match (self.big_endian, self.word_size) {
            (false, 8) => "LE64",
            (false, _) => "LE32",
            (true, 8) => "BE64",
            (true, _) => "BE32",
        }
    }

    /// Detects the ABI from a machine word 1 at the start of `bytes` and the nonzero machine word
    /// that follows. Returns `None` if no ABI explains the bytes, or if there are fewer than 8.
    ///
    /// `01 00 00 00` is LE64 if four zero bytes follow, else LE32: the second word is nonzero and
    /// small.
    ///
    /// # Examples
    ///
    /// ```
    /// use heaptape_formats::Abi;
    ///
    /// assert_eq!(Abi::detect(&[1, 0, 0, 0, 0, 0, 0, 0]), Some(Abi::LE64));
    /// assert_eq!(Abi::detect(&[0, 0, 0, 1, 0, 0, 0, 0]), Some(Abi::BE32));
    /// ```
    pub fn detect(bytes: &[u8]) -> Option<Abi> {
        match *bytes.first_chunk::<8>()? {
            [1, 0, 0, 0, 0, 0, 0, 0] => Some(Abi::LE64),
            [1, 0, 0, 0, ..] => Some(Abi::LE32),
            [0, 0, 0, 0, 0, 0, 0, 1] => Some(Abi::BE64),
            [0, 0, 0, 1, ..] => Some(Abi::BE32),
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

    /// Appends `value` as a machine word.
    pub fn put_word(self, out: &mut Vec<u8>, value: u64) {
        self.put(out, value, usize::from(self.word_size));
    }

    /// Appends the start of a file of mpatrol, which `Cursor::start_of_mpatrol` reads.
    pub(crate) fn put_start(self, out: &mut Vec<u8>, magic: &[u8], version: u64) {
        out.extend_from_slice(magic);
        self.put_word(out, 1);
        self.put_word(out, version);
    }
}

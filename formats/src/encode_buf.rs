//! A buffer for numbers that are written one by one, at millions a second.

use crate::leb128;

/// Number of bytes by which a buffer grows.
const PAGE: usize = 4096;

/// A buffer that is written in place: the content ends at a length, and arbitrary bytes follow.
///
/// # Examples
///
/// ```
/// use heaptape_formats::EncodeBuf;
///
/// let mut buffer = EncodeBuf::default();
/// buffer.byte(7);
/// buffer.number(300);
/// assert_eq!(buffer.content(), [7, 0xac, 0x02]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct EncodeBuf {
    bytes: Vec<u8>,
    length: usize,
}

impl From<Vec<u8>> for EncodeBuf {
    fn from(bytes: Vec<u8>) -> EncodeBuf {
        EncodeBuf { length: bytes.len(), bytes }
    }
}

impl EncodeBuf {
    /// Returns the number of bytes written.
    #[inline(always)]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Returns whether nothing was written.
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the bytes written.
    pub fn content(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    /// Removes the content, and keeps the memory.
    pub fn clear(&mut self) {
        self.length = 0;
    }

    /// Appends what a function writes at the start of `N` bytes. It returns how many count. Bytes
    /// after these may be overwritten.
    #[inline(always)]
    pub fn write<const N: usize>(&mut self, write: impl FnOnce(&mut [u8; N]) -> usize) -> usize {
        let size = write(self.reserve()).min(N);
        self.length += size;
        size
    }

    #[inline(always)]
    fn reserve<const N: usize>(&mut self) -> &mut [u8; N] {
        if self.bytes.len() < self.length + N {
            self.grow();
        }
        self.bytes[self.length..].first_chunk_mut().unwrap_or_else(|| unreachable!("a page is larger than any number"))
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        self.bytes.resize(self.length + PAGE, 0);
    }

    /// Appends the first `count` bytes of a word. The others may be written, too.
    #[inline(always)]
    fn put<const N: usize>(&mut self, word: [u8; N], count: usize) {
        // The sum cannot overflow, so one comparison is enough.
        let at = self.length & isize::MAX as usize;
        match self.bytes.get_mut(at..at + N) {
            Some(bytes) => bytes.copy_from_slice(&word),
            None => self.put_grown(&word),
        }
        self.length = at + count;
    }

    #[cold]
    #[inline(never)]
    fn put_grown(&mut self, word: &[u8]) {
        self.grow();
        self.bytes[self.length..][..word.len()].copy_from_slice(word);
    }

    /// Appends one byte to the content.
    #[inline(always)]
    pub fn byte(&mut self, byte: u8) {
        self.put([byte], 1);
    }

    /// Appends a number in LEB128: writes four bytes at once, of which only those of the number
    /// count.
    #[inline(always)]
    pub fn number(&mut self, value: u64) {
        if value >= 1 << 28 {
            return self.append(|bytes| leb128::write(bytes, value));
        }
        let (word, size) = leb128::short_word(value as u32);
        self.put(word.to_le_bytes(), size);
    }

    /// Appends bytes with a function.
    #[cold]
    pub fn append(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        self.bytes.truncate(self.length);
        write(&mut self.bytes);
        self.length = self.bytes.len();
    }

    /// Returns the bytes written, and leaves an empty buffer in the memory of `spare`, whose bytes
    /// need not be cleared.
    pub fn replace(&mut self, spare: Vec<u8>) -> Vec<u8> {
        let EncodeBuf { mut bytes, length } = std::mem::replace(self, EncodeBuf { bytes: spare, length: 0 });
        bytes.truncate(length);
        bytes
    }
}

//! Model of the buffer of mpatrol's own reader.
//!
//! That reader holds 8192 bytes and reads on only if fewer than 5 remain before a number (1 before
//! any other byte). A number that starts with 5 or more bytes left, but has more bytes than that,
//! is read past the end of the buffer: the tool then refuses the file, or crashes. So a writer must
//! not leave a number there. It can avoid that, since overlong encodings (`81 80 00`) are read as
//! well: it makes the number before longer, until the next one starts with 4 bytes left.

use super::layout::{Header, MAGIC};

/// Size of the buffer of mpatrol's reader in bytes.
const WINDOW: u64 = 8192;
/// Bytes that it requires in the buffer before a number.
const NUMBER: u64 = 5;

/// Offset of the next byte, and the end of the reader's buffer when it reaches that byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Offset in bytes from the start of the (uncompressed) file.
    pub offset: u64,
    /// End of the buffer, as such an offset.
    pub edge: u64,
}

impl Window {
    /// Returns the model at the end of the header.
    pub fn after(header: &Header) -> Window {
        let mut window = Window::default();
        let word = u64::from(header.abi.word_size);
        for size in [MAGIC.len() as u64, word, word] {
            window.require(size);
            window.offset += size;
        }
        window
    }

    fn require(&mut self, size: u64) {
        if self.left() < size {
            self.edge = self.offset + WINDOW;
        }
    }

    /// Returns the number of bytes left in the buffer.
    #[inline]
    pub const fn left(&self) -> u64 {
        self.edge.saturating_sub(self.offset)
    }

    /// Reads a tag, or a byte of a name.
    pub fn byte(&mut self) {
        self.require(1);
        self.offset += 1;
    }

    /// Reads a number of `size` bytes. Returns whether mpatrol's reader can read it.
    pub fn number(&mut self, size: usize) -> bool {
        self.require(NUMBER);
        let fits = self.left() >= size as u64;
        self.offset += size as u64;
        fits
    }

    /// Returns the number of bytes by which a number of `size` bytes must be made longer, so that
    /// the next one, of `next_size` bytes and `gap` single bytes later, can be read.
    pub(super) fn pad(mut self, size: usize, gap: usize, next_size: usize) -> usize {
        self.number(size);
        for _ in 0..gap {
            self.byte();
        }
        self.require(NUMBER);
        let left = self.left();
        if left < next_size as u64 { (left - (NUMBER - 1)) as usize } else { 0 }
    }
}

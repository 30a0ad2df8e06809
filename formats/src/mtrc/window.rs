//! The buffer of mpatrol's own reader, as a model.
//!
//! That reader holds 8192 bytes and reads on only when fewer than 5 are left before a number (1 before any other byte). A
//! number that starts with 5 or more bytes left, but fewer than it has, is read past the buffer's end: the tool then refuses
//! the file, or crashes. So a writer that wants to be read must let no number lie like that, and can: overlong forms
//! (`81 80 00`) are read as well, so the number before is made longer until the next one starts with 4 bytes left.

use super::layout::{Header, MAGIC};

/// Bytes that mpatrol's reader holds.
const WINDOW: u64 = 8192;
/// Bytes that it wants to see before it reads a number.
const NUMBER: u64 = 5;

/// Where the next byte lies, and where the buffer of mpatrol's reader ends when it comes to that byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Bytes from the start of the (uncompressed) file.
    pub offset: u64,
    /// End of the buffer, counted alike.
    pub edge: u64,
}

impl Window {
    /// The model behind the header.
    pub fn after(header: &Header) -> Window {
        let mut window = Window::default();
        let word = u64::from(header.abi.word_size);
        for size in [MAGIC.len() as u64, word, word] {
            window.want(size);
            window.offset += size;
        }
        window
    }

    fn want(&mut self, size: u64) {
        if self.left() < size {
            self.edge = self.offset + WINDOW;
        }
    }

    /// Bytes left in the buffer.
    #[inline]
    pub const fn left(&self) -> u64 {
        self.edge.saturating_sub(self.offset)
    }

    /// A tag, or a byte of a name, is read.
    pub fn byte(&mut self) {
        self.want(1);
        self.offset += 1;
    }

    /// A number of `size` bytes is read. Gives false when mpatrol's reader would fail there.
    pub fn number(&mut self, size: usize) -> bool {
        self.want(NUMBER);
        let fits = self.left() >= size as u64;
        self.offset += size as u64;
        fits
    }

    /// Bytes by which a number of `size` bytes must be made longer, so that another one, of `next_size` bytes and `gap`
    /// single bytes further on, is read well.
    pub(super) fn pad(mut self, size: usize, gap: usize, next_size: usize) -> usize {
        self.number(size);
        for _ in 0..gap {
            self.byte();
        }
        self.want(NUMBER);
        let left = self.left();
        if left < next_size as u64 { (left - (NUMBER - 1)) as usize } else { 0 }
    }
}

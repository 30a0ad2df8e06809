//! Words of the memory of a process, read in windows.

use crate::references::Memory;

/// Binary logarithm of the bytes of a window.
const SHIFT: u32 = 14;
/// Number of windows that are kept.
const WINDOWS: usize = 64;

#[derive(Debug)]
pub(super) struct Reader<'a> {
    memory: &'a dyn Memory,
    /// Numbers of the windows, and whether all of their bytes are there.
    known: [Option<(u64, bool)>; WINDOWS],
    bytes: Vec<u8>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(memory: &'a dyn Memory) -> Reader<'a> {
        Reader { memory, known: [None; WINDOWS], bytes: vec![0; WINDOWS << SHIFT] }
    }

    /// Returns the word at an address, or `None` if it is not there.
    pub(super) fn word(&mut self, at: u64) -> Option<u64> {
        at.checked_add(8)?;
        let window = at >> SHIFT;
        let inside = (at & ((1 << SHIFT) - 1)) as usize;
        if inside + 8 > 1 << SHIFT {
            return self.alone(at);
        }
        let slot = window as usize % WINDOWS;
        let start = slot << SHIFT;
        if self.known[slot].is_none_or(|known| known.0 != window) {
            let there = self.memory.read(window << SHIFT, &mut self.bytes[start..start + (1 << SHIFT)]);
            self.known[slot] = Some((window, there == 1 << SHIFT));
        }
        if self.known[slot].is_some_and(|known| !known.1) {
            return self.alone(at);
        }
        let word = self.bytes.get(start + inside..start + inside + 8)?;
        word.try_into().ok().map(u64::from_le_bytes)
    }

    fn alone(&self, at: u64) -> Option<u64> {
        let mut word = [0; 8];
        (self.memory.read(at, &mut word) == 8).then(|| u64::from_le_bytes(word))
    }

    /// Returns the word at an address, 0 if it is not there.
    pub(super) fn word_or_0(&mut self, at: u64) -> u64 {
        self.word(at).unwrap_or(0)
    }
}

//! Storage for frames of the live set that exceed the memory limit: an anonymous file in the folder
//! for temporary files, with one slot for each frame. If it cannot be written, frames stay in
//! memory.

use super::{BLOCKS_PER_PAGE, Block};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Length of a stored block in bytes.
const BLOCK_LEN: usize = 47;
/// Length of a slot in bytes.
const SLOT_LEN: usize = BLOCK_LEN * BLOCKS_PER_PAGE;

/// The temporary file, created at the first write.
#[derive(Debug, Default)]
pub(super) struct Spill {
    file: Option<File>,
    broken: bool,
    slots: u32,
    free: Vec<u32>,
}

impl Spill {
    /// Returns whether a write has failed.
    pub(super) const fn is_broken(&self) -> bool {
        self.broken
    }

    /// Writes a frame and returns the number of its slot plus one, or `None` if writing fails.
    pub(super) fn write(&mut self, blocks: &[Block; BLOCKS_PER_PAGE]) -> Option<u32> {
        let slot = self.free.pop().unwrap_or(self.slots);
        let mut bytes = Vec::with_capacity(SLOT_LEN);
        for block in blocks {
            let Block { address, size, tick, number, site, thread, resizes, entry, inherited, tick_error } = block;
            [address, size, tick, number].into_iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
            [site, thread, resizes].into_iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
            bytes.extend_from_slice(&[*entry, u8::from(*inherited), *tick_error]);
        }
        if self.file.is_none() {
            self.file = tempfile::tempfile().ok();
        }
        let written = self.file.as_ref().is_some_and(|file| file.write_all_at(&bytes, offset_of(slot)).is_ok());
        if !written {
            self.broken = true;
            return None;
        }
        self.slots = self.slots.max(slot + 1);
        Some(slot + 1)
    }

    /// Reads blocks of a frame, starting at block `first`. The slot stays in use.
    pub(super) fn read(&self, slot: u32, first: usize, blocks: &mut [Block]) {
        let mut bytes = [0; SLOT_LEN];
        let bytes = &mut bytes[..(blocks.len() * BLOCK_LEN).min(SLOT_LEN)];
        let Some((slot, file)) = slot.checked_sub(1).zip(self.file.as_ref()) else { return };
        if file.read_exact_at(bytes, offset_of(slot) + (first * BLOCK_LEN) as u64).is_err() {
            return;
        }
        for (block, bytes) in blocks.iter_mut().zip(bytes.chunks_exact(BLOCK_LEN)) {
            let u64_at = |at: usize| bytes[at * 8..][..8].try_into().map_or(0, u64::from_le_bytes);
            let u32_at = |at: usize| bytes[32 + at * 4..][..4].try_into().map_or(0, u32::from_le_bytes);
            *block = Block {
                address: u64_at(0),
                size: u64_at(1),
                tick: u64_at(2),
                number: u64_at(3),
                site: u32_at(0),
                thread: u32_at(1),
                resizes: u32_at(2),
                entry: bytes[44],
                inherited: bytes[45] != 0,
                tick_error: bytes[46],
            };
        }
    }

    /// Frees a slot for another frame.
    pub(super) fn release(&mut self, slot: u32) {
        self.free.extend(slot.checked_sub(1));
    }
}

/// Returns the offset of a slot in the file.
fn offset_of(slot: u32) -> u64 {
    u64::from(slot) * SLOT_LEN as u64
}

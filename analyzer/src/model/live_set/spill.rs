//! Frames of the live set that do not fit into memory: a file without a name in the folder for
//! temporary files, in slots of one frame. When it cannot be written, frames stay in memory.

use super::{Block, PLACES};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Bytes of a block.
const BLOCK: usize = 46;
/// Bytes of a slot.
const SLOT: usize = BLOCK * PLACES;

/// The file.
#[derive(Debug, Default)]
pub struct Spill {
    file: Option<File>,
    broken: bool,
    slots: u32,
    free: Vec<u32>,
}

impl Spill {
    /// Whether it cannot be written.
    pub const fn is_broken(&self) -> bool {
        self.broken
    }

    /// Writes a frame; gives its slot plus one.
    pub fn put(&mut self, blocks: &[Block; PLACES]) -> Option<u32> {
        let slot = self.free.pop().unwrap_or(self.slots);
        let mut bytes = Vec::with_capacity(SLOT);
        for block in blocks {
            let Block { address, size, tick, number, site, thread, resizes, entry, inherited } = block;
            [address, size, tick, number].into_iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
            [site, thread, resizes].into_iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
            bytes.extend_from_slice(&[*entry, u8::from(*inherited)]);
        }
        if self.file.is_none() {
            self.file = tempfile::tempfile().ok();
        }
        let written = self.file.as_ref().is_some_and(|file| file.write_all_at(&bytes, offset(slot)).is_ok());
        if !written {
            self.broken = true;
            return None;
        }
        self.slots = self.slots.max(slot + 1);
        Some(slot + 1)
    }

    /// Reads blocks of a frame from its block `first` on; they stay in the file.
    pub fn read(&self, slot: u32, first: usize, blocks: &mut [Block]) {
        let mut bytes = [0; SLOT];
        let bytes = &mut bytes[..(blocks.len() * BLOCK).min(SLOT)];
        let Some((slot, file)) = slot.checked_sub(1).zip(self.file.as_ref()) else { return };
        if file.read_exact_at(bytes, offset(slot) + (first * BLOCK) as u64).is_err() {
            return;
        }
        for (block, bytes) in blocks.iter_mut().zip(bytes.chunks_exact(BLOCK)) {
            let long = |at: usize| bytes[at * 8..][..8].try_into().map_or(0, u64::from_le_bytes);
            let short = |at: usize| bytes[32 + at * 4..][..4].try_into().map_or(0, u32::from_le_bytes);
            *block = Block {
                address: long(0),
                size: long(1),
                tick: long(2),
                number: long(3),
                site: short(0),
                thread: short(1),
                resizes: short(2),
                entry: bytes[44],
                inherited: bytes[45] != 0,
            };
        }
    }

    /// Gives a slot back.
    pub fn give(&mut self, slot: u32) {
        self.free.extend(slot.checked_sub(1));
    }
}

fn offset(slot: u32) -> u64 {
    u64::from(slot) * SLOT as u64
}
